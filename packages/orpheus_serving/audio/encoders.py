"""Samples to a file format, as they come: no seeking back, one header, every frame out as soon as it is full.

    encoder = open_encoder("mp3", 24000)
    encoder.encode(samples) -> bytes, often; encoder.finish() -> the last bytes

pcm     s16le, no header                      exactly the samples
wav     s16le, sizes "unknown" in the header   exactly the samples
flac    16 bit, blocks of 24 ms                exactly the samples
opus    in Ogg, frames and pages of 20 ms      as long as the samples
mp3     frames of 24 ms                        starts about 46 ms late and fills up its last frame, as a stream of it has to
aac     ADTS, frames of 43 ms                  starts about 43 ms late, likewise

`slow` encoders belong on a thread: a piece of 85 ms takes them up to a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidRequest
from .formats import content_type, pcm16, wav_header

Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
FORMATS: tuple[Format, ...] = get_args(Format)


class Encoder(Protocol):
    content_type: str
    slow: bool

    def encode(self, samples: NDArray[np.float32]) -> bytes:
        """Samples [n] in -1 .. 1 to what can be written now, perhaps nothing."""
        ...

    def finish(self) -> bytes:
        """The last bytes. Nothing may follow."""
        ...


def open_encoder(response_format: Format, sample_rate: int) -> Encoder:
    """A new encoder for one stream of mono samples. Raises InvalidRequest for a format that does not exist."""
    if response_format in ("pcm", "wav"):
        return _Plain(response_format, sample_rate)
    if recipe := _RECIPES.get(response_format):
        return _Compressed(recipe, sample_rate)
    raise InvalidRequest("response_format", f"no format {str(response_format)[:20]!r}; there are: {', '.join(FORMATS)}")


class _Plain:
    slow = False

    def __init__(self, response_format: str, sample_rate: int) -> None:
        self.content_type = content_type(response_format, sample_rate)
        self._header = wav_header(sample_rate) if response_format == "wav" else b""

    def encode(self, samples: NDArray[np.float32]) -> bytes:
        header, self._header = self._header, b""
        return header + pcm16(samples)

    def finish(self) -> bytes:
        return self.encode(np.zeros(0, np.float32))


@dataclass(frozen=True)
class _Recipe:
    """How libav makes a format: codec and muxer with their options, sample type, bits a second."""

    content_type: str
    codec: str
    muxer: str
    samples: str
    bit_rate: int | None = None
    codec_options: dict[str, str] = field(default_factory=dict)
    muxer_options: dict[str, str] = field(default_factory=dict)


_RECIPES = {
    "mp3": _Recipe("audio/mpeg", "libmp3lame", "mp3", "fltp", 96_000),
    "opus": _Recipe("audio/ogg", "libopus", "ogg", "flt", 48_000, muxer_options={"page_duration": "20000"}),  # microseconds
    "aac": _Recipe("audio/aac", "aac", "adts", "fltp", 96_000),
    # Level 2 has the longest blocks below 27 ms; higher ones wait for 105 ms. Players of streams need no room for tags.
    "flac": _Recipe("audio/flac", "flac", "flac", "s16", None, {"compression_level": "2"}, {"metadata_header_padding": "0"}),
}


class _Compressed:
    slow = True

    def __init__(self, recipe: _Recipe, sample_rate: int) -> None:
        import av  # here: PCM and WAV do without it

        self.content_type = recipe.content_type
        self._recipe = recipe
        self._rate = sample_rate
        self._written = _Collector()
        self._frame: Any = av.AudioFrame
        options = {"flush_packets": "1"} | recipe.muxer_options
        self._container: Any = av.open(self._written, "w", format=recipe.muxer, options=options)
        self._stream: Any = self._container.add_stream(recipe.codec, rate=sample_rate, options=recipe.codec_options)
        context: Any = self._stream.codec_context
        context.layout = "mono"
        context.format = recipe.samples
        if recipe.bit_rate:
            context.bit_rate = recipe.bit_rate
        self._position = 0

    def encode(self, samples: NDArray[np.float32]) -> bytes:
        if not len(samples):
            return b""
        values: NDArray[Any] = np.clip(samples, -1, 1).astype(np.float32)
        if self._recipe.samples == "s16":
            values = np.frombuffer(pcm16(samples), "<i2").astype(np.int16)
        frame = self._frame.from_ndarray(values[None, :], format=self._recipe.samples, layout="mono")
        frame.sample_rate = self._rate
        frame.pts = self._position
        self._position += len(samples)
        self._container.mux(self._stream.encode(frame))
        return self._written.take()

    def finish(self) -> bytes:
        if self._position:
            self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._written.take()


class _Collector:
    """A file that can only be written to, so that no muxer comes back to its header."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)
