"""A small codec in SNAC's own format, whose codes come from a mel encoder.

    wave [B, T] -> mel [B, 100, T/256] -> MelEncoder -> latents [B, 256, T/512] -> residual VQ -> codes, 7 a frame of
    2,048 samples
    codes -> snac's quantiser and decoder -> wave

Training SNAC end to end from the waveform needs far more time than an hour of one GPU; codes learned on a mel
spectrogram, then
frozen, do not. The quantiser and decoder are the `snac` package's modules with its parameter names, so a server
loads them as
it loads the real codec. Only `MelEncoder` is ours: preparing data and cloning need it, serving does not.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

FRAME = 2048  # samples a frame of seven codes stands for
MELS, FFT, HOP = 100, 1024, 256
SNAC_CONFIG: dict[str, Any] = {
    "sampling_rate": 24000, "encoder_dim": 16, "encoder_rates": [2, 4, 8, 8], "decoder_dim": 384,
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None, "codebook_size": 1024, "codebook_dim": 8, "vq_strides": [4, 2, 1], "noise": False,
    "depthwise": False,
}  # fmt: skip
LATENT = SNAC_CONFIG["encoder_dim"] * 2 ** len(SNAC_CONFIG["encoder_rates"])


def build_snac(config: dict[str, Any] = SNAC_CONFIG) -> Any:
    """An untrained `snac.SNAC` whose snake activation takes fewer passes over memory (same function)."""
    import snac
    import snac.layers

    def snake(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        # x + sin(a x)^2 / a  =  x + (1 - cos(2 a x)) / 2a
        half = 0.5 / (alpha + 1e-9)
        return torch.addcmul(x + half, torch.cos(x * (2 * alpha)), -half)

    snac.layers.snake = snake
    return snac.SNAC(**config)


@cache
def mel_filters(n_fft: int, mels: int, device: str, rate: int = 24000) -> torch.Tensor:
    """Triangular filters [mels, n_fft/2 + 1], evenly spaced on the 2595 log10(1 + f/700) scale."""
    to_mel, to_hz = (lambda f: 2595 * np.log10(1 + f / 700)), (lambda m: 700 * (10 ** (m / 2595) - 1))
    bins = np.linspace(0, rate / 2, n_fft // 2 + 1)
    edges = to_hz(np.linspace(0, to_mel(rate / 2), mels + 2))
    rise = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    return torch.tensor(np.maximum(0, np.minimum(rise, fall)), dtype=torch.float32, device=device)


@cache
def window(n_fft: int, device: str) -> torch.Tensor:
    return torch.hann_window(n_fft, device=device)


def spectrum(wave: torch.Tensor, n_fft: int, hop: int) -> torch.Tensor:
    """wave [B, T] -> complex [B, n_fft/2 + 1, 1 + T/hop]."""
    return torch.stft(wave, n_fft, hop, n_fft, window(n_fft, str(wave.device)), return_complex=True)


def log_mel(wave: torch.Tensor) -> torch.Tensor:
    """wave [B, T], T a multiple of 256 -> [B, 100, T/256], about zero mean and unit spread for speech."""
    power = spectrum(wave, FFT, HOP).abs()[..., :-1]
    return (mel_filters(FFT, MELS, str(wave.device)) @ power).clamp(1e-4).log10() * 0.7 + 1


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.wide = nn.Conv1d(width, width, 5, padding=2)
        self.point = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.point(F.gelu(self.wide(self.norm(x))))
        return y


class MelEncoder(nn.Module):
    """log mel [B, 100, 2 N] -> latents [B, 256, N]."""

    def __init__(self, width: int = 256, latent: int = LATENT) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(MELS, width, 5, padding=2), Residual(width), Residual(width),
            nn.Conv1d(width, width, 4, 2, 1), Residual(width), Residual(width), Residual(width),
            nn.Conv1d(width, latent, 3, padding=1),
        )  # fmt: skip

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(mel)
        return out


class MelDecoder(nn.Module):
    """Quantised latents [B, 256, N] -> log mel [B, 100, 2 N]: scaffolding while the codes are learned."""

    def __init__(self, width: int = 384, latent: int = LATENT) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(latent, width, 5, padding=2), Residual(width), Residual(width),
            nn.ConvTranspose1d(width, width, 4, 2, 1), Residual(width), Residual(width),
            nn.Conv1d(width, MELS, 3, padding=1),
        )  # fmt: skip

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(latents)
        return out


def nearest(codebook: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """Index of the closest direction: codebook [K, D], unit [N, D] -> [N]."""
    return (unit @ F.normalize(codebook).T).argmax(1)


def quantise(quantizer: Any, latents: torch.Tensor) -> list[torch.Tensor]:
    """latents [B, C, N] -> codes per level [B, N / stride], as `snac`'s quantiser numbers them."""
    codes = []
    residual = latents
    for level in quantizer.quantizers:
        z = F.avg_pool1d(residual, level.stride, level.stride) if level.stride > 1 else residual
        unit = F.normalize(level.in_proj(z), dim=1)
        index = nearest(level.codebook.weight, unit.transpose(1, 2).flatten(0, 1)).view(len(z), -1)
        back = level.out_proj(level.codebook(index).transpose(1, 2)).repeat_interleave(level.stride, -1)
        residual = residual - back
        codes.append(index)
    return codes


def to_frames(codes: list[torch.Tensor]) -> torch.Tensor:
    """Levels [B, F], [B, 2F], [B, 4F] -> frames [B, F, 7] in slot order: coarse, mid, fine, fine, mid, fine, fine."""
    coarse, mid, fine = codes[0][..., None], codes[1].unflatten(-1, (-1, 2)), codes[2].unflatten(-1, (-1, 4))
    return torch.cat([coarse, mid[..., :1], fine[..., :2], mid[..., 1:], fine[..., 2:]], -1)


def to_levels(frames: torch.Tensor) -> list[torch.Tensor]:
    """Frames [B, F, 7] -> levels [B, F], [B, 2F], [B, 4F]."""
    return [frames[..., 0], frames[..., [1, 4]].flatten(-2), frames[..., [2, 3, 5, 6]].flatten(-2)]


class MelCodec(nn.Module):
    """Mel encoder + SNAC. `encode` and `decode` are what the rest of training uses."""

    def __init__(self, config: dict[str, Any] = SNAC_CONFIG) -> None:
        super().__init__()
        self.config = config
        self.mel_encoder = MelEncoder()
        self.snac = build_snac(config)

    @torch.no_grad()
    def encode(self, wave: torch.Tensor) -> torch.Tensor:
        """wave [B, T], T a multiple of 2,048 -> frames [B, T / 2048, 7]."""
        return to_frames(quantise(self.snac.quantizer, self.mel_encoder(log_mel(wave))))

    def decode(self, frames: torch.Tensor) -> torch.Tensor:
        """frames [B, F, 7] -> wave [B, F * 2048]."""
        wave: torch.Tensor = self.snac.decode(to_levels(frames))[:, 0]
        return wave

    def export(self, folder: Path, mel_path: Path, wave_encoder: bool) -> None:
        """`config.json` and `pytorch_model.bin` as `snac.SNAC.from_pretrained` reads them, and the mel encoder; fp16.

        Where SNAC's own encoder was not trained, its place is filled with weights whose output is zero.
        """
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1) + "\n", encoding="utf-8")
        if not wave_encoder:
            for name, p in self.snac.encoder.named_parameters():
                p.data.fill_(1.0 if name.endswith(("original1", "alpha")) else 0.0)
        half = {k: v.detach().cpu().half().contiguous() for k, v in self.snac.state_dict().items()}
        torch.save(half, folder / "pytorch_model.bin")
        save_file({k: v.detach().cpu().half().contiguous() for k, v in self.mel_encoder.state_dict().items()}, mel_path)


def load_codec(folder: Path, mel_path: Path | None = None, device: str = "cpu") -> MelCodec:
    """An exported codec; without `mel_path` it can only decode."""
    from safetensors.torch import load_file

    codec = MelCodec(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    codec.snac.load_state_dict({k: v.float() for k, v in weights.items()})
    if mel_path is not None:
        codec.mel_encoder.load_state_dict({k: v.float() for k, v in load_file(mel_path).items()})
    return codec.eval().to(device)
