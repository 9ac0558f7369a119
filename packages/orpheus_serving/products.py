"""Matrix products with constant weights, laid out once for the processor at hand.

    weight [out, in], bias [out] --product(...)--> y = f(x), x [..., in] -> y [..., out]

On a CPU, torch's own product of a few rows with a wide matrix is slow: it goes to a general BLAS that reads the matrix as
it lies in memory. oneDNN, which comes with torch, wants the matrix packed beforehand and is then two to four times as fast
(one core of an AMD EPYC with AVX-512, [4, 2048] by [2048, 4096]: 0.9 ms instead of 3.4). Weights in eight bits are smaller by
four; for one stream, whose products wait for the memory, they are that much faster again.

The operators are those that torch.compile itself generates for a CPU. Where a build of torch lacks them, the plain
product does the same, slower.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

Product = Callable[[Tensor], Tensor]


def product(weight: Tensor, bias: Tensor | None = None) -> Product:
    """The fastest product that keeps the weight's precision."""
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and _has_packed():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        linear = torch.ops.mkldnn._linear_pointwise
        return lambda x: linear(x, packed, bias, "none", [], "")
    return lambda x: F.linear(x, weight, bias)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Eight bits of weight [out, in] and a scale an output, fp32 [out]: weight is about int8 * scale.

    The error is at most half of a 127th of the largest weight of its output. The scale is a bfloat16 number, as the
    product below reads it.
    """
    scale = (weight.abs().amax(1).clamp_(min=1e-12) / 127).bfloat16().float()
    return torch.round(weight / scale[:, None]).clamp_(-127, 127).to(torch.int8), scale


def int8_product(quantised: Tensor, scale: Tensor) -> Product:
    """A product with what `quantise` returned, for x [n, in] float32; x is rounded to bfloat16."""
    if not _has_int8():
        restored = quantised.to(scale) * scale[:, None]
        return lambda x: F.linear(x, restored)
    multiply, scale16 = torch.ops.aten._weight_int8pack_mm, scale.bfloat16()
    return lambda x: multiply(x.bfloat16(), quantised, scale16).float()


def rows_are_alike(apply: Product, width: int, most: int, dtype: torch.dtype = torch.float32) -> bool:
    """Whether a row of `x` [n, width], n up to `most`, gives the same bits wherever it stands and whatever stands beside it."""
    rows = torch.randn(most, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    alone = torch.cat([apply(rows[n : n + 1]) for n in range(most)])
    beside = all(torch.equal(apply(rows[:n]), alone[:n]) for n in range(2, most + 1))
    return beside and torch.equal(apply(rows.flip(0)), alone.flip(0))


def one_by_one(apply: Product) -> Product:
    """The same product, a row at a time: slower, and exact in any company."""
    return lambda x: torch.cat([apply(row) for row in x.split(1)])


@cache
def _has_packed() -> bool:
    x, weight = torch.ones(2, 16), torch.eye(16)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 2)
        return torch.equal(torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""), x)
    except (AttributeError, RuntimeError):
        return False


@cache
def _has_int8() -> bool:
    x, weight = torch.ones(2, 32, dtype=torch.bfloat16), torch.eye(32, dtype=torch.int8)
    try:
        return torch.equal(torch.ops.aten._weight_int8pack_mm(x, weight, torch.ones(32, dtype=torch.bfloat16)), x)
    except (AttributeError, RuntimeError):
        return False
