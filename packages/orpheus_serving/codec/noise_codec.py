"""A random SNAC codec, for tests and for a first run without weights. It makes noise, not speech, and says so.

The weights are scaled layer by layer so that activations keep a healthy size (fresh torch weights fade to silence), which
makes numerical comparisons mean something.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

SNAC_24KHZ: dict[str, Any] = {
    "sampling_rate": 24000,
    "encoder_dim": 48,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_dim": 1024,
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
    "codebook_size": 4096,
    "codebook_dim": 8,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}
TINY = SNAC_24KHZ | {"encoder_dim": 2, "decoder_dim": 32, "codebook_size": 1024}


@torch.no_grad()
def noise_snac(config: dict[str, Any], seed: int = 0) -> Any:
    """A `snac.SNAC` with random weights whose output has a standard deviation of about 0.3."""
    from snac import SNAC

    generator = torch.Generator().manual_seed(seed)

    def randomise(module: Any, x: torch.Tensor, deviation: float) -> torch.Tensor:
        weight = torch.randn(module.weight.shape, generator=generator)
        if module.bias is not None:
            module.bias.copy_(0.02 * torch.randn(module.bias.shape, generator=generator))
        module.weight = weight
        module.weight = weight * (deviation / module(x).std())
        return module(x)

    def walk(module: Any, x: torch.Tensor) -> torch.Tensor:
        match type(module).__name__:
            case "DecoderBlock":
                for part in module.block:
                    x = walk(part, x)
                return x
            case "ResidualUnit":
                before, convolution, after, mix = module.block
                y = walk(after, randomise(convolution, walk(before, x), 1.0))
                return x + randomise(mix, y, 0.4 * float(x.std()))
            case "NoiseBlock":
                randomise(module.linear, x, 0.1 * float(x.std()))
                return x
            case "Snake1d":
                module.alpha.uniform_(0.3, 2.0, generator=generator)
                return module(x)
            case "Tanh" | "LocalMHA":
                return module(x)
        return randomise(module, x, 1.0)

    torch_state = torch.get_rng_state()
    torch.manual_seed(seed)  # SNAC's own initialisation
    model = SNAC(**config).eval()
    torch.set_rng_state(torch_state)
    codes = [
        torch.randint(0, model.codebook_size, (1, 16 * model.vq_strides[0] // stride), generator=generator)
        for stride in model.vq_strides
    ]
    for quantizer, deviation in zip(model.quantizer.quantizers, (1.0, 0.6, 0.4, 0.3), strict=False):
        shape = quantizer.out_proj.weight.shape
        quantizer.out_proj.weight = torch.randn(shape, generator=generator) * deviation / model.codebook_dim**0.5
        quantizer.out_proj.bias.zero_()
    x = model.quantizer.from_codes(codes)
    *layers, output, _ = model.decoder.model
    for layer in layers:
        x = walk(layer, x)
    randomise(output, x, 0.3)
    return model


def build_noise_codec(folder: str | Path, config: dict[str, Any] | None = None, seed: int = 0) -> Path:
    """Write a random codec in SNAC's own format; by default a tiny one (1,024 codes a slot). Returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = config or TINY
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    torch.save(noise_snac(config, seed).state_dict(), folder / "pytorch_model.bin")
    return folder
