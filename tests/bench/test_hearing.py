"""What is made of an answer's bytes and their times, against a player that plays them."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_serving.bench.hearing import LOUD, Hearing, Unplayable

RATE = 24_000
# (seconds since the piece before, bytes): odd lengths and long waits among them
PIECES = st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 9_001)), min_size=1, max_size=30)


def hear(pieces: list[tuple[float, bytes]], rate: int = RATE) -> Hearing:
    hearing, now = Hearing(rate), 100.0
    for wait, data in pieces:
        now += wait
        hearing.heard(data, now)
    return hearing


def gaps(pieces: list[tuple[float, int]], buffer: float) -> int:
    """A player that starts `buffer` seconds after the first byte and takes a byte every 1 / (2 * RATE) s: how often it waits."""
    moments = np.cumsum([wait for wait, _ in pieces])
    moments -= moments[0]
    behind, waits, played = 0.0, 0, 0
    for moment, (_, size) in zip(moments, pieces, strict=True):
        wanted = buffer + played / (2 * RATE) + behind
        if moment > wanted:
            waits += 1
            behind += moment - wanted
        played += size
    return waits


@given(PIECES)
def test_lateness_is_the_smallest_buffer_without_a_gap(pieces: list[tuple[float, int]]) -> None:
    lateness = hear([(wait, bytes(size)) for wait, size in pieces]).lateness
    assert gaps(pieces, lateness + 1e-6) == 0
    if lateness > 1e-5:
        assert gaps(pieces, lateness - 1e-6) > 0


@given(PIECES, st.integers(0, 100_000))
def test_speech_begins_with_the_first_loud_sample_wherever_bytes_are_cut(pieces: list[tuple[float, int]], position: int) -> None:
    total = sum(size for _, size in pieces)
    samples = np.full(total // 2 + 1, LOUD, dtype="<i2")  # as loud as silence may be
    samples[position % len(samples) :] = -LOUD - 1
    stream = io.BytesIO(samples.tobytes()[:total])
    hearing, now, expected = Hearing(), 0.0, None
    for wait, size in pieces:
        now += wait
        hearing.heard(stream.read(size), now)
        if expected is None and stream.tell() >= 2 * (position % len(samples) + 1):
            expected = now
    assert hearing.first_speech == expected
    if expected is not None:
        assert hearing.lead_in == pytest.approx(position % len(samples) / RATE)


def test_the_loudest_negative_sample_is_loud() -> None:
    assert hear([(0, np.array([-32768], dtype="<i2").tobytes())]).first_speech == 100.0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.booleans())
def test_a_wav_header_is_no_audio_wherever_it_is_cut(sizes: list[int], padded: bool) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(48_000)
        writer.writeframes(np.full(100, 1000, dtype="<i2").tobytes())
    content = file.getvalue()
    if padded:  # another chunk, of an odd size, before the samples
        content = content[:36] + b"LIST\x03\x00\x00\x00abc\x00" + content[36:]
    header = len(content) - 200
    hearing, at, now = Hearing(), 0, 0.0
    first = speech = None
    for size in [*sizes, len(content)]:
        hearing.heard(content[at : at + size], now)
        at += size
        if first is None and at > header:
            first = now
        if speech is None and at > header + 1:
            speech = now
        now += 1
    hearing.finish()
    assert hearing.total == 200
    assert hearing.audio == pytest.approx(100 / 48_000)
    assert (hearing.first, hearing.first_speech) == (first, speech)


@pytest.mark.parametrize("content", [b"RIFF", b"RIFF\x00\x00\x00\x00WAVEfmt ", b"R"])
def test_a_header_alone_is_not_playable(content: bytes) -> None:
    hearing = hear([(0, content)])
    with pytest.raises(Unplayable, match="header"):
        hearing.finish()


def test_stereo_and_half_samples_are_not_playable() -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(2)
        writer.setsampwidth(2)
        writer.setframerate(24_000)
        writer.writeframes(bytes(8))
    with pytest.raises(Unplayable, match="2 channels"):
        hear([(0, file.getvalue())])
    with pytest.raises(Unplayable, match="half a sample"):
        hear([(0, bytes(3))]).finish()
