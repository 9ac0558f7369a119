"""Encoders, resampler and tempo, without a server: every format decodes to what went in, and comes as it is made."""

from __future__ import annotations

import io
import struct
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_serving.audio.encoders import FORMATS, open_encoder
from orpheus_serving.audio.formats import pcm16
from orpheus_serving.audio.rate import Resampler, Tempo
from orpheus_serving.errors import InvalidRequest

RATE = 24000
# Samples that a decoded stream may be longer than its source: the priming of the encoder and the filling of its last frame.
LONGER = {"pcm": 0, "wav": 0, "flac": 0, "opus": 0, "mp3": 1105 + 576, "aac": 1024 + 1024}
COMPRESSED = ("mp3", "opus", "aac", "flac")


def voice_like(seconds: float) -> np.ndarray:
    """A gliding tone with overtones: something that a lossy codec keeps well, and that matches itself at one shift only."""
    t = np.arange(round(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(180 + 60 * np.sin(2 * np.pi * 1.3 * t)) / RATE
    return (0.2 * sum(np.sin(k * phase) / k for k in (1, 2, 3)) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t))).astype(np.float32)


def encoded(name: Any, samples: np.ndarray, piece: int = 2048) -> list[bytes]:
    encoder = open_encoder(name, RATE)
    parts = [encoder.encode(samples[start : start + piece]) for start in range(0, len(samples), piece)]
    return [*parts, encoder.finish()]


def decoded(name: str, data: bytes, rate: int = RATE) -> np.ndarray:
    """What PyAV makes of it, as mono floats at `rate`."""
    if name == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32767
    known = "aac" if name == "aac" else None  # two bare ADTS frames are too few for libav to guess the format from
    with av.open(io.BytesIO(data), format=known) as container:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([np.zeros(0, np.float32), *(frame.to_ndarray()[0] for frame in frames)])  # a sample may vanish


def same_sound(audio: np.ndarray, source: np.ndarray, slack: int) -> float:
    """The best correlation of `source` with `audio` where it starts at most `slack` samples late."""
    best = 0.0
    for shift in range(slack + 1):
        part = audio[shift : shift + len(source)]
        ours = source[: len(part)]
        best = max(best, float(np.dot(part, ours) / (np.linalg.norm(part) * np.linalg.norm(ours) + 1e-12)))
    return best


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_decodes_to_what_went_in(name: str) -> None:
    source = voice_like(1.5)
    audio = decoded(name, b"".join(encoded(name, source)))
    assert 0 <= len(audio) - len(source) <= LONGER[name]
    if name in ("pcm", "wav", "flac"):
        assert np.abs(audio - source).max() < 2 / 32767
    else:
        assert same_sound(audio, source, LONGER[name]) > 0.98


@pytest.mark.parametrize("name", COMPRESSED)
def test_sound_comes_as_it_is_made(name: str) -> None:
    """After half of the samples, half of the sound can be decoded, less a frame or two."""
    source = voice_like(2.0)
    parts = encoded(name, source)
    heard = decoded(name, b"".join(parts[: len(parts) // 2]))
    assert len(heard) > len(source) / 2 - 0.12 * RATE


def test_a_streamed_wav_has_one_header_of_unknown_length() -> None:
    data = b"".join(encoded("wav", voice_like(0.5)))
    assert data.count(b"RIFF") == 1
    assert data[:4] == b"RIFF"
    assert struct.unpack("<I", data[40:44]) == (0xFFFFFFFF,)
    assert data[44:] == pcm16(voice_like(0.5))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=10, deadline=None)
@given(pieces=st.lists(st.integers(0, 5000), min_size=1, max_size=6))
def test_any_portions_give_the_same_bytes_of_sound(name: str, pieces: list[int]) -> None:
    source = voice_like(1.0)[: sum(pieces)]
    encoder = open_encoder(name, RATE)
    data, start = b"", 0
    for piece in pieces:
        data += encoder.encode(source[start : start + piece])
        start += piece
    data += encoder.finish()
    if len(source):
        audio = decoded(name, data)
        again = decoded(name, b"".join(encoded(name, source)))
        assert np.array_equal(audio, again)


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="mp3, opus"):
        open_encoder("midi", RATE)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [8000, 16000, 22050, 24000, 44100, 48000])
def test_another_rate_has_the_same_length_and_pitch(target: int) -> None:
    tone = (0.3 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)
    resampler = Resampler(RATE, target)
    out = np.concatenate([*(resampler.push(tone[i : i + 777]) for i in range(0, len(tone), 777)), resampler.finish()])
    assert abs(len(out) - target) <= 1
    assert peak(out, target) == pytest.approx(440, abs=2)
    assert np.abs(out).max() == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("speed", [0.25, 0.7, 1.0, 1.5, 4.0])
def test_speed_keeps_the_pitch(speed: float) -> None:
    tone = (0.3 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE)).astype(np.float32)
    tempo = Tempo(speed, RATE)
    out = np.concatenate([*(tempo.push(tone[i : i + 2048]) for i in range(0, len(tone), 2048)), tempo.finish()])
    assert len(out) / RATE == pytest.approx(2 / speed, abs=0.06)
    assert peak(out, RATE) == pytest.approx(440, abs=4)


def test_nothing_in_is_nothing_out() -> None:
    for stage in (Resampler(RATE, 8000), Tempo(2.0, RATE), Tempo(1.0, RATE), Resampler(RATE, RATE)):
        assert len(stage.push(np.zeros(0, np.float32))) == 0
        assert len(stage.finish()) == 0


@pytest.mark.parametrize("bad", [lambda: Tempo(0.1, RATE), lambda: Tempo(float("nan"), RATE), lambda: Resampler(RATE, 1)])
def test_what_cannot_be_done_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be from"):
        bad()


def peak(audio: np.ndarray, rate: int) -> float:
    """The loudest frequency in hertz."""
    spectrum = np.abs(np.fft.rfft(audio * np.hanning(len(audio))))
    return float(spectrum.argmax() * rate / len(audio))
