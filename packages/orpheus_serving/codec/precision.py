"""In which precision a GPU decodes: float16 where that is good enough for the codec at hand.

float16 has half the bytes of float32, and a decoder waits for memory. With products in TF32, the other way to the tensor cores, a
step takes 1.3 times as long on an H200. Its noise was 62 dB below the demo voice's speech, and 51 below that of random weights.
But it ends at 65,504, and weights may have been trained to numbers beyond; so each codec is tried out before it is used.
"""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from .decoder import OPEN_END, StreamingDecoder
from .weights import DecoderWeights

log = logging.getLogger(__name__)

WORST = -40.0  # dB of the signal; speech hides more
TRIED = 8  # frames of random codes: harder on the numbers than speech is


def gpu_dtype(weights: DecoderWeights, device: torch.device | str) -> torch.dtype:
    """float16, or float32 where float16 makes noise that might be heard."""
    exact, half = (_decode(weights, device, dtype) for dtype in (torch.float32, torch.float16))
    noise = float((half - exact).square().mean() / exact.square().mean())
    decibels = 10 * math.log10(noise) if 0 < noise < math.inf else math.nan
    if decibels < WORST:
        return torch.float16
    log.warning(
        "codec: in float16 it has noise of %.0f dB (nan: no number at all), so it decodes in float32, which is slower", decibels
    )
    return torch.float32


@torch.inference_mode()
def _decode(weights: DecoderWeights, device: torch.device | str, dtype: torch.dtype) -> Tensor:
    decoder = StreamingDecoder(weights, 1, device, dtype, kernels=False)  # which would be compiled one by one, for seconds
    codes = torch.randint(0, weights.codes, (TRIED, weights.slots), generator=torch.Generator().manual_seed(0)).to(device)
    parts = []
    for n, frame in enumerate(codes):
        head = torch.tensor([0, n * weights.latents_per_frame, OPEN_END, 0], device=device)
        parts.append(decoder.step(torch.cat([head, frame])[None]))
    return torch.cat(parts, 1)
