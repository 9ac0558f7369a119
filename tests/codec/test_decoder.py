"""Streaming equals offline, computed by the `snac` package, whatever the company."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import CONFIGS, Reference
from orpheus_serving.codec.decoder import OPEN_END, StreamingDecoder, snake
from orpheus_serving.codec.precision import gpu_dtype
from orpheus_serving.codec.weights import Snake, fold, frame_slots

TOLERANCE = 1e-4


def row(decoder: StreamingDecoder, slot: int, done: int, seed: int, codes: tuple[int, ...] | None) -> list[int]:
    weights = decoder.weights
    return [slot, done * weights.latents_per_frame, OPEN_END, seed, *(codes or (0,) * weights.slots)]


@torch.inference_mode()
def stream(decoder: StreamingDecoder, frames: list[tuple[int, ...]], seed: int, slot: int = 0) -> np.ndarray:
    parts = [decoder.step(torch.tensor([row(decoder, slot, n, seed, f)])) for n, f in enumerate(frames)]
    parts.append(decoder.tail(torch.tensor([row(decoder, slot, len(frames), seed, None)])))
    return torch.cat(parts, 1)[0, decoder.delay :].numpy()


def test_every_config_streams_as_it_decodes_offline(any_reference: Reference) -> None:
    decoder = StreamingDecoder(any_reference.weights, slots=3)
    decoder.state.fill_(9.0)  # what a slot held before must not matter
    for count in (n * any_reference.whole for n in (1, 2, 3, 9)):
        frames = any_reference.frames(count, seed=count)
        audio = stream(decoder, frames, seed=2**40 + count, slot=1)
        assert audio.shape == (count * any_reference.weights.frame_samples,)
        assert np.abs(audio - any_reference.decode(frames, 2**40 + count)).max() < TOLERANCE


def test_double_precision_leaves_no_difference() -> None:
    reference = Reference(CONFIGS["dense, no noise"], torch.float64)  # the noise itself is made in single precision
    decoder = StreamingDecoder(fold(reference.model, torch.float64), 1, dtype=torch.float64)
    frames = reference.frames(6)
    assert np.abs(stream(decoder, frames, 7) - reference.decode(frames, 7)).max() < 1e-10


def test_half_precision_is_near_single_precision(any_reference: Reference) -> None:
    frames = any_reference.frames(6 * any_reference.whole)
    exact = stream(StreamingDecoder(any_reference.weights, 1), frames, 7)
    half = stream(StreamingDecoder(any_reference.weights, 1, dtype=torch.float16), frames, 7)
    assert half.dtype == np.float32
    noise = 10 * np.log10(np.mean((half - exact) ** 2) / np.mean(exact**2))
    assert -90 < noise < -40  # dB; -inf if nothing were rounded
    assert gpu_dtype(any_reference.weights, "cpu") == torch.float16


def test_a_codec_whose_numbers_are_too_large_for_half_precision_gets_single(
    reference: Reference, caplog: pytest.LogCaptureFixture
) -> None:
    loud = replace(reference.weights, codebooks=tuple(replace(b, table=b.table * 1e6) for b in reference.weights.codebooks))
    assert gpu_dtype(loud, "cpu") == torch.float32
    assert "it decodes in float32" in caplog.text


@torch.inference_mode()
def test_streams_join_and_leave_between_any_two_steps(reference: Reference) -> None:
    rng = random.Random(3)
    decoder = StreamingDecoder(reference.weights, slots=4)
    todo = [(reference.frames(rng.randint(1, 9), seed=i), 100 + i) for i in range(16)]
    free, live, audio = [0, 1, 2, 3], {}, {}
    waiting = list(range(len(todo)))
    while waiting or live:
        while free and waiting and rng.random() < 0.7:
            live[waiting.pop(0)] = [free.pop(rng.randrange(len(free))), 0, []]
        chosen = [i for i in live if rng.random() < 0.8]
        rng.shuffle(chosen)
        going = [i for i in chosen if live[i][1] < len(todo[i][0])]
        ending = [i for i in chosen if i not in going]
        for batch, run in ((going, decoder.step), (ending, decoder.tail)):
            if not batch:
                continue
            rows = [row(decoder, live[i][0], live[i][1], todo[i][1], (todo[i][0] + [None])[live[i][1]]) for i in batch]
            for i, samples in zip(batch, run(torch.tensor(rows)), strict=True):
                live[i][1] += 1
                live[i][2].append(samples)
        for i in ending:
            slot, _, parts = live.pop(i)
            audio[i] = torch.cat(parts)[decoder.delay :].numpy()
            free.append(slot)
    for i, (frames, seed) in enumerate(todo):
        assert np.abs(audio[i] - reference.decode(frames, seed)).max() < TOLERANCE, i


def test_tail_midway_is_the_ending_of_what_there_is(reference: Reference) -> None:
    decoder = StreamingDecoder(reference.weights, 1)
    frames = reference.frames(6)
    with torch.inference_mode():
        for n, frame in enumerate(frames, 1):
            decoder.step(torch.tensor([row(decoder, 0, n - 1, 5, frame)]))
            tail = decoder.tail(torch.tensor([row(decoder, 0, n, 5, None)]))[0].numpy()
            offline = reference.decode(frames[:n], 5)
            known = min(decoder.delay, len(offline))
            assert np.abs(tail[-known:] - offline[-known:]).max() < TOLERANCE


@torch.inference_mode()
def test_attention_of_a_window_that_is_cut_sees_what_there_is() -> None:
    """`snac` cannot decode such a length at all; whole windows before it must be as they are."""
    reference = Reference(CONFIGS["attention over two frames"])
    decoder = StreamingDecoder(reference.weights, 1)
    frames = reference.frames(9)
    audio = stream(decoder, frames, 3)
    whole = reference.decode(frames[:8], 3)
    assert np.isfinite(audio).all()
    assert len(audio) == 9 * 2048
    settled = 2 * 2048  # the window of frames 6 and 7 differs at its end, and convolutions reach three frames back
    assert np.abs(audio[:settled] - whole[:settled]).max() < TOLERANCE


def test_the_delay_of_snac_24khz_is_as_documented() -> None:
    decoder = StreamingDecoder(Reference(CONFIGS["snac_24khz"]).weights, 1)
    assert (decoder.delay, decoder.weights.frame_samples, decoder.state.shape[1]) == (4757, 2048, 81792)
    assert frame_slots([4, 2, 1]) == [(0,), (1, 4), (2, 3, 5, 6)]


def test_the_compiled_snake_is_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels that do not fill a register, a count of positions that does not fill a loop, arguments of either sign and size."""
    generator = torch.Generator().manual_seed(0)
    alpha = torch.rand(24, generator=generator) * 3 + 0.1
    weights = Snake(alpha, 1 / (alpha + 1e-9))
    x = torch.randn(2, 13, 24, generator=generator) * torch.logspace(-2, 2, 24)
    exact = x.double() + torch.sin(alpha.double() * x.double()) ** 2 / alpha.double()
    torch.testing.assert_close(snake(weights)(x), exact.float(), atol=3e-4, rtol=1e-6)  # the argument's own rounding: 300 * 2^-24
    small = x.abs() < 3
    torch.testing.assert_close(snake(weights)(x)[small], exact.float()[small], atol=3e-6, rtol=1e-6)
    monkeypatch.setattr("orpheus_serving.codec.decoder.has_numba", lambda: False)
    torch.testing.assert_close(snake(weights)(x)[small], exact.float()[small], atol=3e-6, rtol=1e-6)
