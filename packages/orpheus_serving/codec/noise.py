"""Noise that is a function of where it falls.

SNAC's noise blocks draw fresh random numbers at each call, so a decode in pieces could never equal a decode at once. Here
the number at a position follows from (seed, layer, absolute position) alone: streamed, batched and offline decodes agree,
and a seeded request sounds the same twice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_U32 = 0xFFFFFFFF


def _mix(h: Tensor) -> Tensor:
    """32-bit avalanche (constants: the low-bias hash of the "hash prospector" project), in int64: torch has no uint32."""
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & _U32
    h = h ^ (h >> 15)
    h = (h * 0x846CA68B) & _U32
    return h ^ (h >> 16)


def noise_at(seed: Tensor, layer: int, position: Tensor) -> Tensor:
    """Standard normal numbers [B, T] float32 for seed [B] int64 and position [B, T] int64 (at the layer's own rate).

    Two hashes make two uniforms, and the Box-Muller formula makes them one normal.
    """
    key = _mix((seed & _U32)[:, None] ^ ((layer + 1) * 0x9E3779B9 & _U32))
    key = _mix(key ^ ((seed >> 32) & _U32)[:, None])
    first = _mix(key ^ _mix(position & _U32))
    second = _mix(first ^ 0x5BD1E995)
    radius = torch.sqrt(-2.0 * torch.log(((first >> 8).float() + 0.5) * (1.0 / (1 << 24))))
    return radius * torch.cos((second >> 8).float() * (2 * math.pi / (1 << 24)))
