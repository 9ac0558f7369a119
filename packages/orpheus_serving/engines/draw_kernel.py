"""One kernel from the head's logits to the next ids: slot, repetition penalty, temperature, top-k, top-p, draw.

    logits [rows, width] --one program a row--> ids [rows], seen [requests, width] marked, sampled [rows] 0 or 1

The logits are those of the audio ids alone, slot after slot, then the end of speech; `width` may be padded behind it. A row
looks at the codes of the one slot that can follow, and at the end of speech where a frame begins: 4,097 numbers instead of
156,940. They stay in registers from the load to the draw. Nothing is sorted: the k-th best value and the value where top-p is
reached are found by bisection over the bits of the numbers, which is exact in 32 rounds.

Among equals at either limit all stay in. The draw is the largest of (logit + Gumbel noise), with noise from the row's seed and
the number of ids that it has generated, so a seeded request draws the same in any company, up to the last bits of its logits.
"""

from __future__ import annotations

from torch import Tensor
from triton import jit, next_power_of_2
from triton import language as tl


@jit
def _ordered(x):
    """The bits of fp32 numbers as integers of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@jit
def _gumbel(u):
    """Gumbel noise of uniform numbers in [0, 1): -log(-log(1 - u)), exact where u is small, which is where draws are won."""
    u = tl.minimum(tl.maximum(u, 4.6566e-10), 0.9999999)
    exponential = tl.where(u < 0.01, u * (1.0 + u * (0.5 + u * 0.33333334)), -tl.log(1.0 - u))
    return -tl.log(exponential)


@jit(do_not_specialize=["logits_stride", "seen_stride", "first_code", "end_of_speech"])
def _draw_kernel(
    ids_ptr,
    sampled_ptr,
    logits_ptr,
    logits_stride,
    seen_ptr,
    seen_stride,
    request_ptr,
    length_ptr,
    prompt_ptr,
    prefill_ptr,
    temperature_ptr,
    top_p_ptr,
    top_k_ptr,
    penalty_ptr,
    seed_ptr,
    first_code,
    end_of_speech,
    SLOTS: tl.constexpr,
    CODES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    request = tl.load(request_ptr + row)
    length = tl.load(length_ptr + row)
    generated = tl.maximum(length - tl.load(prompt_ptr + request), 0)
    complete = length >= tl.load(prefill_ptr + request)  # else a part of the prompt is still to come: nothing is drawn
    temperature = tl.load(temperature_ptr + request).to(tl.float32)
    top_p = tl.load(top_p_ptr + request).to(tl.float32)
    top_k = tl.load(top_k_ptr + request)
    penalty = tl.load(penalty_ptr + request).to(tl.float32)
    seed = tl.load(seed_ptr + request)

    slot = generated % SLOTS
    columns = tl.arange(0, BLOCK)
    real = columns < CODES
    logits_row = logits_ptr + row.to(tl.int64) * logits_stride
    seen_row = seen_ptr + request.to(tl.int64) * seen_stride
    x = tl.load(logits_row + slot * CODES + columns, mask=real, other=float("-inf")).to(tl.float32)
    end = tl.load(logits_row + SLOTS * CODES).to(tl.float32)

    said = tl.load(seen_row + slot * CODES + columns, mask=real, other=0) != 0
    x = tl.where(said, tl.where(x > 0, x / penalty, x * penalty), x)
    end_said = tl.load(seen_row + SLOTS * CODES) != 0
    end = tl.where(end_said, tl.where(end > 0, end / penalty, end * penalty), end)
    end = tl.where(slot == 0, end, float("-inf"))

    sampling = temperature >= 1e-4  # below it greedy, as in `sampling.py`
    scale = tl.where(sampling, temperature, 1.0)
    x = x / scale
    end = end / scale
    best = tl.maximum(tl.max(x, axis=0), end)
    key = _ordered(x)
    end_key = _ordered(end)
    top = _ordered(best)
    limit = tl.full((), -2147483647, tl.int32)  # what is kept has a key of at least this

    if sampling & (top_k < CODES):
        high = top
        for _ in range(32):
            middle = (limit | high) - ((limit ^ high) >> 1)  # the mean, rounded up, without overflow
            count = tl.sum((key >= middle).to(tl.int32), axis=0) + (end_key >= middle).to(tl.int32)
            enough = count >= top_k
            limit = tl.where(enough, middle, limit)
            high = tl.where(enough, high, middle - 1)

    if sampling & (top_p < 1.0):
        weight = tl.where(key >= limit, tl.exp(x - best), 0.0)
        end_weight = tl.where(end_key >= limit, tl.exp(end - best), 0.0)
        wanted = top_p * (tl.sum(weight, axis=0) + end_weight)
        high = top
        for _ in range(32):
            middle = (limit | high) - ((limit ^ high) >> 1)
            mass = tl.sum(tl.where(key >= middle, weight, 0.0), axis=0) + tl.where(end_key >= middle, end_weight, 0.0)
            enough = mass >= wanted
            limit = tl.where(enough, middle, limit)
            high = tl.where(enough, high, middle - 1)

    step_seed = tl.randint(seed, generated)
    noise = _gumbel(tl.rand(step_seed, columns))
    end_noise = _gumbel(tl.rand(step_seed, slot * 0 + BLOCK))  # a tensor, past the columns
    x = tl.where(real & (key >= limit), tl.where(sampling, x + noise, x), float("-inf"))
    end = tl.where(end_key >= limit, tl.where(sampling, end + end_noise, end), float("-inf"))
    column = tl.argmax(x, axis=0)
    column = tl.where(end >= tl.max(x, axis=0), SLOTS * CODES, slot * CODES + column)
    drawn = tl.where(column == SLOTS * CODES, end_of_speech, first_code + column)
    tl.store(ids_ptr + row, drawn.to(tl.int64))
    tl.store(sampled_ptr + row, complete.to(tl.int32))
    tl.store(seen_row + column, tl.full((), 1, tl.int8), mask=complete)


def draw(
    logits: Tensor,
    seen: Tensor,
    requests: Tensor,
    lengths: Tensor,
    prompts: Tensor,
    prefills: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    penalty: Tensor,
    seeds: Tensor,
    *,
    slots: int,
    codes_per_slot: int,
    first_code: int,
    end_of_speech: int,
) -> tuple[Tensor, Tensor]:
    """ids [rows] int64, and sampled [rows] int32: 0 for rows whose prompt is not complete, whose ids mean nothing.

    logits [rows, >= slots * codes_per_slot + 1]: any float; seen [requests, likewise] int8, in which the drawn column is marked.
    requests [rows] int32: the row of each in `seen` and in what follows. lengths [rows] int32: ids in the sequence so far.
    prompts, prefills [requests] int32: ids of the prompt, and of what is computed before the first draw. temperature, top_p,
    penalty [requests] fp32; top_k [requests] int32 (codes_per_slot or more is off); seeds [requests] int64.
    """
    rows = len(logits)
    ids = requests.new_empty(rows, dtype=seeds.dtype)
    sampled = requests.new_empty(rows)
    _draw_kernel[(rows,)](
        ids,
        sampled,
        logits,
        logits.stride(0),
        seen,
        seen.stride(0),
        requests,
        lengths,
        prompts,
        prefills,
        temperature,
        top_p,
        top_k,
        penalty,
        seeds,
        first_code,
        end_of_speech,
        SLOTS=slots,
        CODES=codes_per_slot,
        BLOCK=next_power_of_2(codes_per_slot),
        num_warps=8,
    )
    return ids, sampled
