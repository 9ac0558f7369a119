"""A residual unit of SNAC's decoder on a GPU in one kernel, together with the snake of what comes after it.

    x, y = snake(x)        [B, context + T, C]
        y -> seven taps -> snake -> product -> + x, masked = x' -> out x      [B, next context + T, C], after the next context
                                                           `-> snake -> out y       (the next operation's)
    left [B, next context, C]  ----------------------------------> both, in front

These units hold three quarters of what a decoder's step moves through memory. By torch.compile a unit is five kernels, which
read and write all of its positions nine times; here it is four times, and what lies between stays in registers.

One program takes a tile of positions of one stream with all channels. Numbers in memory are float16, sums and snakes float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from triton import cdiv, jit
from triton import language as tl

from .weights import SINE, TAPS, Residual, Snake

C0, C1, C2, C3, C4, C5 = map(tl.constexpr, SINE)
CHANNELS = (16, 32, 64, 128, 256, 512)  # that the kernel is made for


class Sizes(NamedTuple):
    """How a unit is cut up."""

    tile: int  # positions of a program
    part: int  # channels of the product's inner sum that are made at a time
    warps: int
    stages: int


def sizes(channels: int, count: int, shared: int) -> Sizes:
    """For `count` positions, a multiple of 16, and a GPU with so many bytes of shared memory a program.

    The fastest of some on an H200 with 40 and with 256 streams. Two stages need up to 128 KB, one needs 64.
    """
    tile = min(count & -count, 32 if channels > 256 else 64)
    return Sizes(tile, min(64, channels), 8 if channels > 128 else 4, 2 if channels > 64 and shared >= 128 * 1024 else 1)


@jit
def _snake(x, turns, inverse):
    """As `decoder.snake` when it is compiled."""
    turn = x * turns
    rest = turn - tl.floor(turn + 0.5)
    square = rest * rest
    sine = rest * (C0 + square * (C1 + square * (C2 + square * (C3 + square * (C4 + square * C5)))))
    return x + sine * sine * inverse


@jit
def _unit_kernel(
    x_ptr,
    y_ptr,
    left_ptr,
    out_x_ptr,
    out_y_ptr,
    position_ptr,
    end_ptr,
    taps_ptr,
    bias_ptr,
    turns_ptr,
    inverse_ptr,
    weight_ptr,
    mix_bias_ptr,
    next_turns_ptr,
    next_inverse_ptr,
    RATE: tl.constexpr,
    LAG: tl.constexpr,
    COUNT: tl.constexpr,
    NEXT: tl.constexpr,
    C: tl.constexpr,
    DILATION: tl.constexpr,
    TILE: tl.constexpr,
    PART: tl.constexpr,
):
    tile, stream = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, C)
    next_turns, next_inverse = tl.load(next_turns_ptr + columns)[None], tl.load(next_inverse_ptr + columns)[None]
    out = stream * (NEXT + COUNT)
    if tile * TILE < COUNT:
        where = tile * TILE + tl.arange(0, TILE)
        start = stream * (6 * DILATION + COUNT) + where
        total = tl.zeros((TILE, C), dtype=tl.float32)
        for first in range(0, C, PART):
            part = first + tl.arange(0, PART)
            sums = tl.zeros((TILE, PART), dtype=tl.float32) + tl.load(bias_ptr + part)[None].to(tl.float32)
            for tap in tl.static_range(7):
                values = tl.load(y_ptr + (start + tap * DILATION)[:, None] * C + part[None])
                sums += values.to(tl.float32) * tl.load(taps_ptr + tap * C + part)[None].to(tl.float32)
            turns, inverse = tl.load(turns_ptr + part)[None], tl.load(inverse_ptr + part)[None]
            sums = _snake(sums, turns, inverse)
            total = tl.dot(sums.to(tl.float16), tl.load(weight_ptr + part[:, None] * C + columns[None]), total)
        total += tl.load(mix_bias_ptr + columns)[None].to(tl.float32)
        total += tl.load(x_ptr + (start + 3 * DILATION)[:, None] * C + columns[None]).to(tl.float32)
        absolute = tl.load(position_ptr + stream) * RATE - LAG + where
        inside = (absolute >= 0) & (absolute < tl.load(end_ptr + stream) * RATE)
        x = tl.where(inside[:, None], total, 0.0).to(tl.float16)
        y = _snake(x.to(tl.float32), next_turns, next_inverse)
        places = (out + NEXT + where)[:, None] * C + columns[None]
        tl.store(out_x_ptr + places, x)
        tl.store(out_y_ptr + places, y.to(tl.float16))
    else:
        where = tile * TILE - COUNT + tl.arange(0, TILE)
        mask = (where < NEXT)[:, None]
        x = tl.load(left_ptr + (stream * NEXT + where)[:, None] * C + columns[None], mask=mask, other=0.0)
        y = _snake(x.to(tl.float32), next_turns, next_inverse)
        places = (out + where)[:, None] * C + columns[None]
        tl.store(out_x_ptr + places, x, mask=mask)
        tl.store(out_y_ptr + places, y.to(tl.float16), mask=mask)


def fits(op: Residual, dtype: torch.dtype) -> bool:
    """Whether there is a kernel for it."""
    return dtype == torch.float16 and op.convolution.taps.dim() == 2 and op.convolution.taps.shape[1] in CHANNELS


@dataclass(frozen=True, slots=True)
class FusedResidual:
    """A residual unit and the snake `after` it."""

    op: Residual
    taps: Tensor  # [7, C] fp16
    turns: Tensor  # [C] fp32, alpha / pi
    weight: Tensor  # [Cin, Cout] fp16
    after: Snake
    next_turns: Tensor  # [C] fp32
    shared: int  # bytes of shared memory that a program can have

    @classmethod
    def of(cls, op: Residual, after: Snake) -> FusedResidual:
        weight = op.mix.weight.t().contiguous()
        on_gpu = weight.device.type == "cuda"
        properties = torch.cuda.get_device_properties(weight.device) if on_gpu else None
        shared = getattr(properties, "shared_memory_per_block_optin", 0)
        taps, turns, next_turns = op.convolution.taps.contiguous(), op.after.alpha / math.pi, after.alpha / math.pi
        return cls(op, taps, turns, weight, after, next_turns, shared)

    def __call__(
        self, x: Tensor, y: Tensor, left: Tensor, position: Tensor, end: Tensor, rate: int, lag: int
    ) -> tuple[Tensor, Tensor]:
        """x, y [B, context + T, C] and left [B, next context, C] fp16, position and end [B] int64 -> out x, out y

        rate, lag: of the unit's stage. All contiguous; T is a multiple of 16.
        """
        dilation, channels = self.op.convolution.dilation, x.shape[2]
        count, following = x.shape[1] - (TAPS - 1) * dilation, left.shape[1]
        tile, part, warps, stages = sizes(channels, count, self.shared)
        out_x = x.new_empty(x.shape[0], following + count, channels)
        out_y = torch.empty_like(out_x)
        _unit_kernel[(count // tile + cdiv(following, tile), x.shape[0])](
            x, y, left, out_x, out_y, position, end,
            self.taps, self.op.convolution.bias, self.turns, self.op.after.inverse, self.weight, self.op.mix.bias,
            self.next_turns, self.after.inverse,
            RATE=rate, LAG=lag, COUNT=count, NEXT=following, C=channels, DILATION=dilation, TILE=tile, PART=part,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return out_x, out_y
