"""The small kernels of a decode step, in Triton: what happens between two matrix products is one launch.

    norm         residual + last product -> RMS norm -> FP8 row and its scale
    rotate       q, k, v -> rotated queries (fp16), keys and values written to their pages (FP8)
    attend       queries, pages -> partial sums over parts of the context
    combine      partial sums -> attention's output -> FP8 row and its scale
    gate         silu(gate) * up -> FP8 row and its scale

Rows. All kernels work on rows [n]: a row is one token of one stream, the newest of a stream that is decoding or any of a
prompt. `places` [n] and `positions` [n] int32 say whose it is and where it stands. Rows do not know of each other: a token of a
prompt reads the keys of the tokens before it from the pages, where `rotate` wrote them in the same step.

Pages. The cache of a layer is [pages, 2 (keys, values), kv_heads, PAGE, head_dim] FP8 (e4m3); `tables` [places, width] int32 has
the pages of each place in the order of the context. What was never written is never read.

FP8 rows: y = q * scale, with the largest |y| of the row at 448, the largest number of e4m3.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton import jit, next_power_of_2
from triton import language as tl

PAGE = 64  # tokens
LOG2E = 1.4426950408889634
FP8 = torch.float8_e4m3fn


@jit
def _store_fp8(y, out_ptr, scale_ptr, row, columns, mask, width):
    """One FP8 row and its scale."""
    scale = tl.maximum(tl.max(tl.abs(y), axis=0), 1e-12) / 448.0
    tl.store(out_ptr + row * width + columns, (y / scale).to(tl.float8e4nv), mask=mask)
    tl.store(scale_ptr + row, scale)


@jit
def _norm_kernel(
    x_ptr, delta_ptr, weight_ptr, out_ptr, scale_ptr, width, eps, ADD: tl.constexpr, FP8_OUT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(x_ptr + row * width + columns, x.to(x_ptr.dtype.element_ty), mask=mask)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    y *= tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    if FP8_OUT:
        _store_fp8(y, out_ptr, scale_ptr, row, columns, mask, width)
    else:
        tl.store(out_ptr + row * width + columns, y.to(out_ptr.dtype.element_ty), mask=mask)


def norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, *, fp8: bool = True) -> tuple[Tensor, Tensor]:
    """x [n, width] bf16 += delta, in place; returns its RMS norm: (FP8 [n, width], scales [n, 1] fp32), or bf16 and no scales."""
    rows, width = x.shape
    out = torch.empty_like(x, dtype=FP8 if fp8 else x.dtype)
    scales = x.new_empty((rows if fp8 else 0, 1), dtype=torch.float32)
    _norm_kernel[(rows,)](
        x, x if delta is None else delta, weight, out, scales, width, eps,
        ADD=delta is not None, FP8_OUT=fp8, BLOCK=next_power_of_2(width), num_warps=8,
    )  # fmt: skip
    return out, scales


@jit
def _rotate_kernel(
    qkv_ptr, q_ptr, cache_ptr, cos_ptr, sin_ptr, places_ptr, positions_ptr, tables_ptr, table_width, q_factor,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)  # 0 .. GROUP - 1: queries, a KV_HEADS of them each; then keys; then values
    HALF: tl.constexpr = HEAD_DIM // 2
    heads = tl.arange(0, HEADS_BLOCK)[:, None]
    half = tl.arange(0, HALF)[None, :]
    mask = (heads < KV_HEADS) & (half < HALF)
    source = qkv_ptr + (row * (GROUP + 2) + part) * KV_HEADS * HEAD_DIM + heads * HEAD_DIM + half
    low = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    position = tl.load(positions_ptr + row)
    if part <= GROUP:
        cos = tl.load(cos_ptr + position.to(tl.int64) * HALF + half)
        sin = tl.load(sin_ptr + position.to(tl.int64) * HALF + half)
        low, high = low * cos - high * sin, high * cos + low * sin
    if part < GROUP:
        target = q_ptr + (row * GROUP + part) * KV_HEADS * HEAD_DIM + heads * HEAD_DIM + half
        tl.store(target, (low * q_factor).to(tl.float16), mask=mask)
        tl.store(target + HALF, (high * q_factor).to(tl.float16), mask=mask)
    else:
        place = tl.load(places_ptr + row).to(tl.int64)
        page = tl.load(tables_ptr + place * table_width + position // PAGE).to(tl.int64)
        head = (page * 2 + (part - GROUP)) * KV_HEADS + heads
        kept = cache_ptr + (head * PAGE + position % PAGE) * HEAD_DIM + half
        tl.store(kept, low.to(tl.float8e4nv), mask=mask)
        tl.store(kept + HALF, high.to(tl.float8e4nv), mask=mask)


def rotate(
    qkv: Tensor, cache: Tensor, cos: Tensor, sin: Tensor, places: Tensor, positions: Tensor, tables: Tensor, group: int
) -> Tensor:
    """qkv [n, (group + 2) * kv_heads * head_dim]: write keys and values to their pages; returns the queries.

    Queries [n, heads, head_dim] fp16 come with the softmax' factor and log2(e) in them. cos, sin [length, head_dim / 2] fp32.
    """
    _, _, kv_heads, page, head_dim = cache.shape
    q = qkv.new_empty((len(qkv), group * kv_heads, head_dim), dtype=torch.float16)
    _rotate_kernel[(len(qkv), group + 2)](
        qkv, q, cache, cos, sin, places, positions, tables, tables.shape[1], LOG2E * head_dim**-0.5,
        GROUP=group, KV_HEADS=kv_heads, HEADS_BLOCK=next_power_of_2(kv_heads), HEAD_DIM=head_dim, PAGE=page, num_warps=2,
    )  # fmt: skip
    return q


@jit
def _attend_kernel(
    q_ptr, cache_ptr, out_ptr, best_ptr, mass_ptr, places_ptr, positions_ptr, tables_ptr, table_width,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions_ptr + row) + 1
    table = tables_ptr + tl.load(places_ptr + row).to(tl.int64) * table_width
    pages = (length + PAGE - 1) // PAGE
    each = (pages + PARTS - 1) // PARTS
    first = part * each
    last = tl.minimum(first + each, pages)

    group = tl.arange(0, GROUP_BLOCK)
    tokens = tl.arange(0, PAGE)
    width = tl.arange(0, HEAD_DIM)
    head = row * KV_HEADS * GROUP + kv_head * GROUP + group
    is_head = group < GROUP
    q = tl.load(q_ptr + head[:, None] * HEAD_DIM + width[None, :], mask=is_head[:, None], other=0.0)
    best = tl.full([GROUP_BLOCK], -1e30, tl.float32)
    mass = tl.zeros([GROUP_BLOCK], tl.float32)
    out = tl.zeros([GROUP_BLOCK, HEAD_DIM], tl.float32)
    for index in range(first, last):
        page = tl.load(table + index).to(tl.int64)
        keys = cache_ptr + (page * 2 * KV_HEADS + kv_head) * PAGE * HEAD_DIM
        values = keys + KV_HEADS * PAGE * HEAD_DIM
        there = index * PAGE + tokens < length
        k = tl.load(keys + tokens[None, :] * HEAD_DIM + width[:, None], mask=there[None, :], other=0.0)
        v = tl.load(values + tokens[:, None] * HEAD_DIM + width[None, :], mask=there[:, None], other=0.0)
        scores = tl.where(there[None, :], tl.dot(q, k.to(tl.float16)), -1e30)
        higher = tl.maximum(best, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(best - higher)
        mass = mass * shrink + tl.sum(weights, axis=1)
        out = tl.dot(weights.to(tl.float16), v.to(tl.float16), out * shrink[:, None])
        best = higher
    target = (row * PARTS + part) * KV_HEADS * GROUP + kv_head * GROUP + group
    tl.store(out_ptr + target[:, None] * HEAD_DIM + width[None, :], out, mask=is_head[:, None])
    tl.store(best_ptr + target, best, mask=is_head)
    tl.store(mass_ptr + target, mass, mask=is_head)


@jit
def _combine_kernel(
    partial_ptr, best_ptr, mass_ptr, out_ptr, scale_ptr,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < HEADS * HEAD_DIM
    head = columns // HEAD_DIM
    best = tl.full([BLOCK], -1e30, tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    out = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        source = row * PARTS + part
        other_best = tl.load(best_ptr + source * HEADS + head, mask=mask, other=-1e30)
        other_mass = tl.load(mass_ptr + source * HEADS + head, mask=mask, other=1.0)
        other_out = tl.load(partial_ptr + source * HEADS * HEAD_DIM + columns, mask=mask, other=0.0)
        higher = tl.maximum(best, other_best)
        old, new = tl.exp2(best - higher), tl.exp2(other_best - higher)
        mass = mass * old + other_mass * new
        out = out * old + other_out * new
        best = higher
    _store_fp8(out / mass, out_ptr, scale_ptr, row, columns, mask, HEADS * HEAD_DIM)


def attend(q: Tensor, cache: Tensor, places: Tensor, positions: Tensor, tables: Tensor, *, parts: int) -> tuple[Tensor, Tensor]:
    """Attention of q [n, heads, head_dim] to each row's context: (FP8 [n, heads * head_dim], scales [n, 1] fp32).

    parts: into how many pieces a row's context is cut, so that few rows still keep the whole GPU busy.
    """
    rows, heads, head_dim = q.shape
    kv_heads, page = cache.shape[2:4]
    group = heads // kv_heads
    partial = q.new_empty((rows, parts, heads, head_dim), dtype=torch.float32)
    best, mass = q.new_empty((2, rows, parts, heads), dtype=torch.float32)
    _attend_kernel[(rows, kv_heads, parts)](
        q, cache, partial, best, mass, places, positions, tables, tables.shape[1],
        GROUP=group, GROUP_BLOCK=max(16, next_power_of_2(group)), KV_HEADS=kv_heads, HEAD_DIM=head_dim, PAGE=page, PARTS=parts,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    out = q.new_empty((rows, heads * head_dim), dtype=FP8)
    scales = q.new_empty((rows, 1), dtype=torch.float32)
    _combine_kernel[(rows,)](
        partial, best, mass, out, scales,
        HEADS=heads, HEAD_DIM=head_dim, PARTS=parts, BLOCK=next_power_of_2(heads * head_dim), num_warps=8,
    )  # fmt: skip
    return out, scales


@jit
def _gate_kernel(gate_up_ptr, out_ptr, scale_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(gate_up_ptr + row * 2 * width + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * width + width + columns, mask=mask, other=0.0).to(tl.float32)
    _store_fp8(gate * tl.sigmoid(gate) * up, out_ptr, scale_ptr, row, columns, mask, width)


def gate(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """silu(gate) * up of gate_up [n, 2 * width]: (FP8 [n, width], scales [n, 1] fp32)."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, width), dtype=FP8)
    scales = gate_up.new_empty((rows, 1), dtype=torch.float32)
    _gate_kernel[(rows,)](gate_up, out, scales, width, BLOCK=next_power_of_2(width), num_warps=8)
    return out, scales
