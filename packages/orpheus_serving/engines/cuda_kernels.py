"""The small kernels of a decode step, in Triton: what happens between two matrix products is one launch, or two.

    norm      residual + last product -> RMS norm -> FP8 rows
    rotate    q, k, v -> rotated queries (fp16), keys and values written to their pages (FP8)
    attend    queries, pages -> sums over parts of the context -> attention's output -> FP8 rows
    gate      silu(gate) * up -> FP8 rows

Rows. All kernels work on rows [n]: a row is one token of one stream, the newest of a stream that is decoding or any of a
prompt. `places` [n] and `positions` [n] int32 say whose it is and where it stands. Rows do not know of each other: a token of a
prompt reads the keys of the tokens before it from the pages, where `rotate` wrote them in the same step.

Pages. The cache of a layer is [pages, 2, kv_heads, PAGE * head_dim] FP8 (e4m3): of each page and head the keys, token after
token, and the values, dimension after dimension, which is how the tensor cores want either. `tables` [places, width] int32 has
the pages of each place in the order of the context. A page may hold what others left, but it must hold numbers.

FP8 rows. A row y is codes * scale, with the largest |y| at 448, the largest number of e4m3. A product of codes is left as it is
(bf16): who reads it multiplies by the row's scale and the weight channel's (`Raw`). The library's products that scale by row and
channel took 1.3 to 1.6 times as long on an H200.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from triton import jit, next_power_of_2
from triton import language as tl

PAGE = 64  # tokens
ATTEND_WARPS, ATTEND_STAGES = 2, 5  # of attention's programs, and of their pipeline: table, then page, then two pages ahead
LOG2E = 1.4426950408889634
FP8 = torch.float8_e4m3fn


class Rows(NamedTuple):
    """FP8 rows."""

    codes: Tensor  # [n, width]
    scales: Tensor  # [n] fp32


class Raw(NamedTuple):
    """A product of FP8 rows and FP8 weights before its scales: y[i, j] = codes[i, j] * rows[i] * channels[j]."""

    codes: Tensor  # [n, width] bf16
    rows: Tensor  # [n] fp32
    channels: Tensor  # [width] fp32


@jit
def _store_fp8(y, out_ptr, scale_ptr, row, columns, mask, width):
    """One FP8 row and its scale."""
    scale = tl.maximum(tl.max(tl.abs(y), axis=0), 1e-12) / 448.0
    tl.store(out_ptr + row * width + columns, (y / scale).to(tl.float8e4nv), mask=mask)
    tl.store(scale_ptr + row, scale)


@jit
def _load_raw(codes_ptr, row_scale_ptr, channel_ptr, row, width, columns, mask):
    """fp32 numbers of a row of a product."""
    codes = tl.load(codes_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    return codes * tl.load(row_scale_ptr + row) * tl.load(channel_ptr + columns, mask=mask, other=0.0)


@jit
def _norm_kernel(
    x_ptr, raw_ptr, raw_scale_ptr, channel_ptr, weight_ptr, out_ptr, scale_ptr, width, eps,
    ADD: tl.constexpr, FP8_OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += _load_raw(raw_ptr, raw_scale_ptr, channel_ptr, row, width, columns, mask)
        tl.store(x_ptr + row * width + columns, x.to(x_ptr.dtype.element_ty), mask=mask)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    y *= tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    if FP8_OUT:
        _store_fp8(y, out_ptr, scale_ptr, row, columns, mask, width)
    else:
        tl.store(out_ptr + row * width + columns, y.to(out_ptr.dtype.element_ty), mask=mask)


def _norm(x: Tensor, raw: Raw | None, weight: Tensor, eps: float, out: Tensor, scales: Tensor) -> None:
    rows, width = x.shape
    raw_codes, raw_rows, channels = raw or (x, x, x)
    _norm_kernel[(rows,)](
        x, raw_codes, raw_rows, channels, weight, out, scales, width, eps,
        ADD=raw is not None, FP8_OUT=out.dtype == FP8, BLOCK=next_power_of_2(width), num_warps=8,
    )  # fmt: skip


def norm(x: Tensor, raw: Raw | None, weight: Tensor, eps: float) -> Rows:
    """x [n, width] bf16 += a product, in place; returns its RMS norm times weight."""
    rows = Rows(torch.empty_like(x, dtype=FP8), x.new_empty(len(x), dtype=torch.float32))
    _norm(x, raw, weight, eps, *rows)
    return rows


def last_norm(x: Tensor, raw: Raw, weight: Tensor, eps: float) -> Tensor:
    """The same as bf16 [n, width], for the head."""
    out = torch.empty_like(x)
    _norm(x, raw, weight, eps, out, out)
    return out


@jit
def _rotate_kernel(
    qkv_ptr, scale_ptr, channel_ptr, q_ptr, cache_ptr, cos_ptr, sin_ptr, places_ptr, positions_ptr, tables_ptr, table_width,
    q_factor,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)  # 0 .. GROUP - 1: queries, a KV_HEADS of them each; then keys; then values
    HALF: tl.constexpr = HEAD_DIM // 2
    heads = tl.arange(0, HEADS_BLOCK)[:, None]
    half = tl.arange(0, HALF)[None, :]
    mask = (heads < KV_HEADS) & (half < HALF)
    columns = (part * KV_HEADS + heads) * HEAD_DIM + half
    width = (GROUP + 2) * KV_HEADS * HEAD_DIM
    low = _load_raw(qkv_ptr, scale_ptr, channel_ptr, row, width, columns, mask)
    high = _load_raw(qkv_ptr, scale_ptr, channel_ptr, row, width, columns + HALF, mask)
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
        head = ((page * 2 + (part - GROUP)) * KV_HEADS + heads) * PAGE * HEAD_DIM
        is_key = part == GROUP
        at = tl.where(is_key, (position % PAGE) * HEAD_DIM + half, half * PAGE + position % PAGE)
        further = tl.where(is_key, HALF, HALF * PAGE)
        tl.store(cache_ptr + head + at, low.to(tl.float8e4nv), mask=mask)
        tl.store(cache_ptr + head + at + further, high.to(tl.float8e4nv), mask=mask)


def rotate(qkv: Raw, cache: Tensor, cos: Tensor, sin: Tensor, places: Tensor, positions: Tensor, tables: Tensor) -> Tensor:
    """Write the keys and values of qkv [n, heads + 2 * kv_heads, times head_dim] to their pages; returns the queries.

    Queries [n, heads, head_dim] fp16 come with the softmax' factor and log2(e) in them. cos, sin [length, head_dim / 2] fp32.
    """
    kv_heads, head_dim = cache.shape[2], 2 * cos.shape[1]
    rows, width = qkv.codes.shape
    group = width // (kv_heads * head_dim) - 2
    q = qkv.codes.new_empty((rows, group * kv_heads, head_dim), dtype=torch.float16)
    _rotate_kernel[(rows, group + 2)](
        *qkv, q, cache, cos, sin, places, positions, tables, tables.shape[1], LOG2E * head_dim**-0.5,
        GROUP=group, KV_HEADS=kv_heads, HEADS_BLOCK=next_power_of_2(kv_heads), HEAD_DIM=head_dim, PAGE=PAGE, num_warps=2,
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
        k = tl.load(keys + tokens[None, :] * HEAD_DIM + width[:, None])
        v = tl.load(values + tokens[:, None] + width[None, :] * PAGE)
        scores = tl.where(index * PAGE + tokens[None, :] < length, tl.dot(q, k.to(tl.float16)), -1e30)
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
    HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_BLOCK)
    columns = head[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    is_head = head < HEADS
    mask = is_head[:, None] & (columns >= 0)
    best = tl.full([HEADS_BLOCK], -1e30, tl.float32)
    for part in tl.static_range(PARTS):
        best = tl.maximum(best, tl.load(best_ptr + (row * PARTS + part) * HEADS + head, mask=is_head, other=-1e30))
    mass = tl.zeros([HEADS_BLOCK], tl.float32)
    out = tl.zeros([HEADS_BLOCK, HEAD_DIM], tl.float32)
    for part in tl.static_range(PARTS):
        source = (row * PARTS + part) * HEADS
        share = tl.exp2(tl.load(best_ptr + source + head, mask=is_head, other=-1e30) - best)
        mass += share * tl.load(mass_ptr + source + head, mask=is_head, other=1.0)
        out += share[:, None] * tl.load(partial_ptr + source * HEAD_DIM + columns, mask=mask, other=0.0)
    out /= mass[:, None]
    scale = tl.maximum(tl.max(tl.max(tl.abs(out), axis=1), axis=0), 1e-12) / 448.0
    tl.store(out_ptr + row * HEADS * HEAD_DIM + columns, (out / scale).to(tl.float8e4nv), mask=mask)
    tl.store(scale_ptr + row, scale)


def attend(q: Tensor, cache: Tensor, places: Tensor, positions: Tensor, tables: Tensor, *, parts: int) -> Rows:
    """Attention of q [n, heads, head_dim] to each row's context, rows of heads * head_dim.

    parts: into how many pieces a row's context is cut, so that few rows still keep the whole GPU busy.
    """
    rows, heads, head_dim = q.shape
    kv_heads = cache.shape[2]
    group = heads // kv_heads
    partial = q.new_empty((rows, parts, heads, head_dim), dtype=torch.float32)
    best, mass = q.new_empty((2, rows, parts, heads), dtype=torch.float32)
    _attend_kernel[(rows, kv_heads, parts)](
        q, cache, partial, best, mass, places, positions, tables, tables.shape[1],
        GROUP=group, GROUP_BLOCK=max(16, next_power_of_2(group)), KV_HEADS=kv_heads, HEAD_DIM=head_dim, PAGE=PAGE, PARTS=parts,
        num_warps=ATTEND_WARPS, num_stages=ATTEND_STAGES,
    )  # fmt: skip
    out = Rows(q.new_empty((rows, heads * head_dim), dtype=FP8), q.new_empty(rows, dtype=torch.float32))
    _combine_kernel[(rows,)](
        partial, best, mass, *out, HEADS=heads, HEADS_BLOCK=next_power_of_2(heads), HEAD_DIM=head_dim, PARTS=parts, num_warps=8
    )
    return out


@jit
def _gate_kernel(gate_up_ptr, gate_up_scale_ptr, channel_ptr, out_ptr, scale_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    gate = _load_raw(gate_up_ptr, gate_up_scale_ptr, channel_ptr, row, 2 * width, columns, mask)
    up = _load_raw(gate_up_ptr, gate_up_scale_ptr, channel_ptr, row, 2 * width, columns + width, mask)
    _store_fp8(gate * tl.sigmoid(gate) * up, out_ptr, scale_ptr, row, columns, mask, width)


def gate(gate_up: Raw) -> Rows:
    """silu(gate) * up of gate_up [n, 2 * width]."""
    rows, width = gate_up.codes.shape[0], gate_up.codes.shape[1] // 2
    out = Rows(gate_up.codes.new_empty((rows, width), dtype=FP8), gate_up.codes.new_empty(rows, dtype=torch.float32))
    _gate_kernel[(rows,)](*gate_up, *out, width, BLOCK=next_power_of_2(width), num_warps=8)
    return out
