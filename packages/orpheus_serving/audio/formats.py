"""Samples to bytes: raw PCM, and a WAV header for a stream whose length nobody knows yet."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN_SIZE = 0xFFFFFFFF  # what streaming encoders write into both sizes of a WAV that is not finished


def pcm16(samples: NDArray[Any]) -> bytes:
    """Float samples in -1 .. 1 (clipped) to signed 16-bit little-endian PCM."""
    scaled = np.rint(np.multiply(samples, 32767, dtype=np.float32))
    np.minimum(scaled, 32767, out=scaled)  # in place and without np.clip, which takes longer than all the rest
    np.maximum(scaled, -32767, out=scaled)
    return scaled.astype("<i2").tobytes()


def wav_header(sample_rate: int, data_bytes: int | None = None) -> bytes:
    """44 bytes: mono, 16 bit. Without `data_bytes` the sizes say "unknown", as players of streams expect."""
    riff = UNKNOWN_SIZE if data_bytes is None else 36 + data_bytes
    data = UNKNOWN_SIZE if data_bytes is None else data_bytes
    fmt = struct.pack("<IHHIIHH", 16, 1, 1, sample_rate, sample_rate * 2, 2, 16)
    return b"RIFF" + struct.pack("<I", riff) + b"WAVEfmt " + fmt + b"data" + struct.pack("<I", data)


def content_type(response_format: str, sample_rate: int) -> str:
    """The honest content type of `pcm` or `wav`."""
    if response_format == "wav":
        return "audio/wav"
    return f"audio/pcm; rate={sample_rate}; channels=1; bits=16; big-endian=false"
