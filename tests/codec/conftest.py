"""Reference decodes by the `snac` package itself, with its noise made a function of position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from orpheus_serving.codec.noise import noise_at
from orpheus_serving.codec.noise_codec import SNAC_24KHZ, TINY, noise_snac
from orpheus_serving.codec.weights import fold, frame_slots

CONFIGS: dict[str, dict[str, Any]] = {
    "snac_24khz": SNAC_24KHZ,
    "tiny": TINY,
    "dense, no noise": TINY | {"depthwise": False, "noise": False},
    "odd strides, four codebooks": TINY
    | {"decoder_rates": [7, 5, 3, 2], "encoder_rates": [2, 3, 5, 7], "vq_strides": [8, 4, 2, 1]},
    "attention over two frames": TINY | {"attn_window_size": 8, "decoder_dim": 128, "encoder_dim": 8},
}


class Reference:
    """A random codec and what `snac` says about its codes."""

    def __init__(self, config: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
        self.model = noise_snac(config)
        self.weights = fold(self.model)
        self.model.to(dtype)
        self._seed = 0
        blocks = [m for m in self.model.modules() if type(m).__name__ == "NoiseBlock"]
        for layer, block in enumerate(blocks):
            block.forward = self._noise(block, layer)

    def _noise(self, block: Any, layer: int) -> Any:
        def forward(x: torch.Tensor) -> torch.Tensor:
            noise = noise_at(torch.tensor([self._seed]), layer, torch.arange(x.shape[-1])[None])
            return x + noise[:, None].to(x.dtype) * block.linear(x)

        return forward

    @property
    def whole(self) -> int:
        """`snac` decodes multiples of so many frames: whole windows of the attention, if there is any."""
        window = self.model.attn_window_size or 1
        return math.lcm(window, self.weights.latents_per_frame) // self.weights.latents_per_frame

    def frames(self, count: int, seed: int = 0) -> list[tuple[int, ...]]:
        codes = np.random.default_rng(seed).integers(0, self.weights.codes, (count, self.weights.slots))
        return [tuple(map(int, frame)) for frame in codes]

    @torch.inference_mode()
    def decode(self, frames: Sequence[Sequence[int]], seed: int) -> np.ndarray:
        self._seed = seed
        table = torch.tensor(frames)
        codes = [table[:, list(slots)].reshape(1, -1) for slots in frame_slots(self.model.vq_strides)]
        return self.model.decode(codes)[0, 0].numpy()


@pytest.fixture(scope="session", params=list(CONFIGS))
def any_reference(request: pytest.FixtureRequest) -> Reference:
    return Reference(CONFIGS[request.param])


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference(TINY)
