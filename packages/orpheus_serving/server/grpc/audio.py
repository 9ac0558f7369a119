"""Samples to the bytes that a Riva client asked for.

float32 samples -> Resampler, where the rate differs -> PCM | G.711 | an encoder of audio/encoders.py -> bytes
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...audio.encoders import Encoder, Format, open_encoder
from ...audio.formats import pcm16
from ...audio.rate import Resampler
from ...errors import InvalidRequest
from ...synthesizer import Samples
from .riva_common_pb2 import ALAW, ENCODING_UNSPECIFIED, FLAC, LINEAR_PCM, MULAW, OGGOPUS

LOWEST_RATE, HIGHEST_RATE = 8_000, 48_000
FORMATS: dict[int, Format] = {ENCODING_UNSPECIFIED: "pcm", LINEAR_PCM: "pcm", FLAC: "flac", OGGOPUS: "opus"}
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)


class AudioWriter:
    """Bytes of one stream in one encoding (a number of AudioEncoding) at `rate` Hz (0: `source_rate`, that of the samples).

    Raises InvalidRequest for an encoding or a rate that there is not.
    """

    def __init__(self, encoding: int, source_rate: int, rate: int) -> None:
        rate = rate or source_rate
        if not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise InvalidRequest("sample_rate_hz", f"{rate} is not between {LOWEST_RATE} and {HIGHEST_RATE}")
        if encoding == OGGOPUS and rate not in OPUS_RATES:
            raise InvalidRequest("sample_rate_hz", f"{rate} is no rate of OGGOPUS, which has {', '.join(map(str, OPUS_RATES))}")
        self._resampler = None if rate == source_rate else Resampler(source_rate, rate)
        self._encoder = _encoder(encoding, rate)

    async def write(self, samples: Samples) -> bytes:
        """What can leave by now; may be empty."""
        return await asyncio.to_thread(self._write, samples) if self._encoder.slow else self._write(samples)

    async def finish(self) -> bytes:
        """What was held back, and the encoding's end."""
        return await asyncio.to_thread(self._end) if self._encoder.slow else self._end()

    def _write(self, samples: Samples) -> bytes:
        return self._encoder.encode(samples if self._resampler is None else self._resampler.push(samples))

    def _end(self) -> bytes:
        rest = b"" if self._resampler is None else self._encoder.encode(self._resampler.finish())
        return rest + self._encoder.finish()


def _encoder(encoding: int, rate: int) -> Encoder:
    if encoding == MULAW:
        return _G711(mulaw, "audio/PCMU")
    if encoding == ALAW:
        return _G711(alaw, "audio/PCMA")
    if encoding in FORMATS:
        return open_encoder(FORMATS[encoding], rate)
    raise InvalidRequest("encoding", f"{encoding} is not known; there are LINEAR_PCM, FLAC, MULAW, OGGOPUS and ALAW")


class _G711:
    slow = False

    def __init__(self, encode: Callable[[Samples], bytes], content_type: str) -> None:
        self._encode = encode
        self.content_type = content_type

    def encode(self, samples: Samples) -> bytes:
        return self._encode(samples)

    def finish(self) -> bytes:
        return b""


# G.711: a sign, three bits for the octave (segment) and four for the place in it. ITU-T G.711, tables 1 and 2.
MULAW_BIAS, MULAW_CLIP = 132, 32_635


def mulaw(samples: Samples) -> bytes:
    """Float samples in -1 .. 1 (clipped) to mu-law, one byte each."""
    pcm = _pcm(samples)
    magnitude = np.minimum(np.abs(pcm), MULAW_CLIP) + MULAW_BIAS
    segment = np.frexp(magnitude)[1] - 8  # 132 .. 32,767 have 8 to 15 bits
    code = (segment << 4) | ((magnitude >> (segment + 3)) & 15)
    return (~(code | np.where(pcm < 0, 0x80, 0)) & 0xFF).astype(np.uint8).tobytes()


def alaw(samples: Samples) -> bytes:
    """Float samples in -1 .. 1 (clipped) to A-law, one byte each."""
    pcm = _pcm(samples)
    magnitude = np.where(pcm < 0, ~pcm, pcm)
    segment = np.maximum(np.frexp(magnitude)[1] - 8, 0)  # the lowest two segments are equally fine
    code = (segment << 4) | ((magnitude >> np.maximum(segment + 3, 4)) & 15)
    return (code ^ np.where(pcm < 0, 0x55, 0xD5)).astype(np.uint8).tobytes()


def _pcm(samples: Samples) -> NDArray[np.int32]:
    return np.frombuffer(pcm16(samples), "<i2").astype(np.int32)
