"""The bytes of one answer, as they arrive -> when the first came, when speech began, how late each was for playback.

    bytes, time -> (WAV header off) -> samples -> Hearing.first, .first_speech, .lateness, .audio

Lateness: a player that starts `b` seconds after the first byte needs the sample at position `p` (seconds) at first + b + p.
A piece of audio that begins at `p` and arrives at `a` is there in time exactly where a - first - p <= b. The largest such
difference in an answer is therefore the smallest jitter buffer with which it would have played without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SAMPLE_RATE = 24_000
LOUD = 328  # of 32,767: a sample beyond 1 % of full scale is speech, what is below is silence or the codec's noise


class Unplayable(Exception):
    """The bytes are not 16-bit mono PCM. The message is short, it is counted by."""


@dataclass(slots=True)
class Hearing:
    """16-bit little-endian mono PCM, bare or as WAV. Times are the caller's clock, in seconds.

    rate: samples a second of bare PCM; a WAV header's own wins.
    """

    rate: int = SAMPLE_RATE
    first: float | None = None  # when the first byte of audio arrived
    first_speech: float | None = None  # when the first sample louder than LOUD arrived
    lead_in: float | None = None  # seconds of audio before that sample
    lateness: float = 0.0  # seconds; see above
    total: int = 0  # bytes of audio
    _head: bytes | None = b""  # what may yet be a WAV header; None once that is known
    _odd: bytes = b""

    @property
    def audio(self) -> float:
        """Seconds of audio so far."""
        return self.total / (2 * self.rate)

    def heard(self, data: bytes, now: float) -> None:
        """`data` has arrived at `now`. Raises Unplayable."""
        if self._head is not None:
            data = self._after_header(self._head + data)
        if not data:
            return
        if self.first is None:
            self.first = now
        self.lateness = max(self.lateness, now - self.first - self.audio)
        if self.first_speech is None:
            self._look_for_speech(data, now)
        self.total += len(data)

    def finish(self) -> None:
        """The answer is complete. Raises Unplayable where it ended within a header or a sample."""
        if self._head:
            raise Unplayable("a header without audio")
        if self.total % 2:
            raise Unplayable("half a sample at the end")

    def _look_for_speech(self, data: bytes, now: float) -> None:
        whole = self._odd + data
        self._odd = whole[len(whole) & ~1 :]
        samples = np.frombuffer(whole[: len(whole) & ~1], dtype="<i2")
        loud = np.flatnonzero((samples > LOUD) | (samples < -LOUD))
        if len(loud):
            self.first_speech = now
            before = (self.total - len(whole) + len(data)) // 2  # samples that came with earlier bytes
            self.lead_in = (before + int(loud[0])) / self.rate

    def _after_header(self, data: bytes) -> bytes:
        """The audio in `data`, which is all that has come; empty while that cannot be told."""
        self._head = data
        if data[:4] != b"RIFF"[: len(data)]:
            self._head = None
            return data
        at = 12
        while len(data) >= at + 8:
            name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
            if name == b"data":
                self._head = None
                return data[at + 8 :]
            if name == b"fmt " and len(data) >= at + 24:
                kind, channels = (int.from_bytes(data[i : i + 2], "little") for i in (at + 8, at + 10))
                bits = int.from_bytes(data[at + 22 : at + 24], "little")
                if (kind, channels, bits) != (1, 1, 16):
                    raise Unplayable(f"WAV with {channels} channels of {bits} bits")
                self.rate = int.from_bytes(data[at + 12 : at + 16], "little") or self.rate
            at += 8 + size + size % 2
        if len(data) > 65_536:
            raise Unplayable("WAV without a data chunk")
        return b""
