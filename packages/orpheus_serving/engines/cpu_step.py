"""One step of a Llama decoder on a CPU, as one compiled function: no call of torch, no lock of the interpreter, no thread.

    x [n, hidden], the embedded newest ids
      -> for each layer: rms norm -> q, k, v -> turned to its position -> k, v into the cache -> attention -> + x
                         rms norm -> gate, up -> silu(gate) * up -> down -> + x
      -> rms norm -> [n, hidden]

A step of a small model by torch is some five hundred calls of a few microseconds, half of whose time goes into calling,
and each of which gives the interpreter's lock away and waits to have it back. Numba compiles the same arithmetic from the
Python below (see `compiled.py`).

Rows are computed one after another by the same code, in the same order of additions. So what a row gets is the same bits
in any company.

The loops are written for vector registers: an inner one runs over whole arrays, cut out beforehand, since an index that is
computed could be negative and would have to be looked at one by one.

Weights are int8 with one scale an output, or float32 with scales of 1; activations, sums and cache are float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orpheus_serving.compiled import Floats, compiled, part

LOG2_E = np.float32(1.4426950408889634)
LN_2 = np.float32(0.6931471805599453)
ONE, HALF = np.float32(1), np.float32(0.5)


@compiled
def step(
    x: Floats,  # [n, hidden]; used up
    rows: NDArray[np.int64],  # [n] rows of the cache
    positions: NDArray[np.int64],  # [n] of the newest ids
    norms: Floats,  # [layers, 2, hidden]: before attention, before the MLP
    qkv: NDArray[np.generic],  # the matrices: [layers, out, in]
    qkv_scale: Floats,  # their scales: [layers, out]
    output: NDArray[np.generic],
    output_scale: Floats,
    gate_up: NDArray[np.generic],
    gate_up_scale: Floats,
    down: NDArray[np.generic],
    down_scale: Floats,
    last_norm: Floats,  # [hidden]
    cos: Floats,  # [length, head_dim]
    sin: Floats,  # [length, head_dim]; the first half negated
    cache: Floats,  # [layers, rows, 2 * kv_heads, length, head_dim]: keys, then values
    eps: float,
) -> Floats:  # [n, hidden]
    n, hidden = x.shape
    normed = np.empty((n, hidden), np.float32)
    turned = np.empty((n, qkv.shape[1]), np.float32)
    attended = np.empty((n, output.shape[2]), np.float32)
    gated = np.empty((n, gate_up.shape[1]), np.float32)
    more = np.empty((n, hidden), np.float32)
    scores = np.empty(cache.shape[3], np.float32)
    for layer in range(len(qkv)):
        rms_norm(x, norms[layer, 0], eps, normed)
        multiply(normed, qkv[layer], qkv_scale[layer], turned)
        for i in range(n):
            own = cache[layer, rows[i]]
            turn(turned[i], cos, sin, positions[i], own)
            attend(turned[i], own, positions[i] + 1, scores, attended[i])
        multiply(attended, output[layer], output_scale[layer], more)
        add(x, more)
        rms_norm(x, norms[layer, 1], eps, normed)
        multiply(normed, gate_up[layer], gate_up_scale[layer], gated)
        gate(gated)
        multiply(gated, down[layer], down_scale[layer], more)
        add(x, more)
    rms_norm(x, last_norm, eps, normed)
    return normed


@compiled
def head_product(x: Floats, weight: Floats) -> Floats:
    """x [n, in], weight [outs, in] -> [n, outs]: for the logits, whose rows have to be alike as well."""
    out = np.empty((len(x), len(weight)), np.float32)
    multiply(x, weight, np.ones(len(weight), np.float32), out)
    return out


@part
def add(x: Floats, more: Floats) -> None:
    for i in range(len(x)):
        for j in range(x.shape[1]):
            x[i, j] += more[i, j]


@part
def gate(gated: Floats) -> None:
    """[n, 2 * width]: gates, then what they let through -> silu(gate) * up in the first half"""
    width = gated.shape[1] // 2
    for i in range(len(gated)):
        gates, ups = gated[i, :width], gated[i, width:]
        for j in range(width):
            gates[j] = gates[j] / (ONE + exponential(-gates[j])) * ups[j]


@part
def rms_norm(x: Floats, weight: Floats, eps: float, out: Floats) -> None:
    width = len(weight)
    for i in range(len(x)):
        total = np.float32(0)
        for j in range(width):
            total += x[i, j] * x[i, j]
        scale = ONE / np.sqrt(total / np.float32(width) + np.float32(eps))
        for j in range(width):
            out[i, j] = x[i, j] * scale * weight[j]


@part
def multiply(x: Floats, weight: NDArray[np.generic], scale: Floats, out: Floats) -> None:
    """x [n, in or more], weight [outs, in] -> out [n, outs]. An output's weights are read from memory once for all rows."""
    outs, width = weight.shape
    for j in range(outs):
        weights = weight[j]
        for i in range(len(x)):
            row = x[i]
            total = np.float32(0)
            for k in range(width):
                total += np.float32(weights[k]) * row[k]
            out[i, j] = total * scale[j]


@part
def turn(qkv: Floats, cos: Floats, sin: Floats, position: int, own: Floats) -> None:
    """Turn queries and keys of qkv [(heads + 2 * kv_heads) * head_dim] to their position; put keys and values into `own`."""
    parts, width = len(own), cos.shape[1]
    half, start, kept = width // 2, len(qkv) - parts * width, len(own) * width // 2
    for at in range(0, start + kept, width):
        firsts, seconds = qkv[at : at + half], qkv[at + half : at + width]
        for j in range(half):
            first, second = firsts[j], seconds[j]
            firsts[j] = first * cos[position, j] + second * sin[position, j]
            seconds[j] = second * cos[position, half + j] + first * sin[position, half + j]
    for head in range(parts):
        for j in range(width):
            own[head, position, j] = qkv[start + head * width + j]


@part
def attend(qkv: Floats, own: Floats, length: int, scores: Floats, out: Floats) -> None:
    """The queries of `qkv` to the first `length` positions of own [2 * kv_heads, positions, head_dim] -> out [width of q]"""
    kv_heads, width = len(own) // 2, own.shape[2]
    heads = len(out) // width
    scale = ONE / np.sqrt(np.float32(width))
    for h in range(heads):
        query, to = qkv[h * width : (h + 1) * width], out[h * width : (h + 1) * width]
        keys, values = own[h * kv_heads // heads], own[kv_heads + h * kv_heads // heads]
        highest = np.float32(-np.inf)
        for t in range(length):
            key, score = keys[t], np.float32(0)
            for d in range(width):
                score += query[d] * key[d]
            scores[t] = score * scale
            highest = max(highest, scores[t])
        total = np.float32(0)
        for t in range(length):
            scores[t] = exponential(scores[t] - highest)
            total += scores[t]
        for d in range(width):
            to[d] = 0
        for t in range(length):
            value, share = values[t], scores[t] / total
            for d in range(width):
                to[d] += share * value[d]


@part
def exponential(x: np.float32) -> np.float32:
    """e^x to 3e-7 of it, for vector registers: 2^whole, written into a float's exponent, times e^rest by its series."""
    x = min(max(x, np.float32(-87)), np.float32(87))
    whole = np.floor(x * LOG2_E + HALF)
    rest = x - whole * LN_2
    series = ONE + rest * np.float32(1 / 7)
    series = ONE + rest * np.float32(1 / 6) * series
    series = ONE + rest * np.float32(1 / 5) * series
    series = ONE + rest * np.float32(1 / 4) * series
    series = ONE + rest * np.float32(1 / 3) * series
    series = ONE + rest * HALF * series
    series = ONE + rest * series
    return series * np.int32((np.int32(whole) + np.int32(127)) << 23).view(np.float32)
