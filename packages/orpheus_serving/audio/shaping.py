"""The edges of an utterance: no late start, no click.

    samples of one chunk -> leading noise cut to a short pre-roll -> fade in -> ... -> last milliseconds held -> fade out

Models trained on untrimmed recordings begin with a stretch of room noise, and one that is stopped midway ends at any sample
value. Both ends of every chunk reach zero, so chunks can be joined and streams cut without a step in the signal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[Any]

GATE = 0.01  # RMS of a window that counts as sound: -40 dB of full scale
WINDOW = 0.010  # seconds
PRE_ROLL = 0.040  # seconds kept before the first sound: soft onsets lie below the gate
LONGEST_TRIM = 0.5  # seconds; quiet speech must not be eaten
FADE = 0.008  # seconds at both ends


class EdgeShaper:
    """`push` samples [n] float32 and get those that may leave; `finish` gives the faded rest."""

    def __init__(self, sample_rate: int) -> None:
        self._window = round(WINDOW * sample_rate)
        self._pre_roll = round(PRE_ROLL * sample_rate)
        self._longest_trim = round(LONGEST_TRIM * sample_rate)
        self._fade = round(FADE * sample_rate)
        self._held: Samples = np.zeros(0, np.float32)
        self._trimming = True
        self._faded_in = 0
        self.trimmed = 0
        "Samples cut from the start."

    def push(self, samples: Samples) -> Samples:
        self._held = np.concatenate([self._held, samples])
        if self._trimming:
            self._trim()
            if self._trimming:
                return self._held[:0]
        return self._release(len(self._held) - self._fade)

    def finish(self) -> Samples:
        self._trimming = False
        rest = self._release(len(self._held)).copy()
        count = min(self._fade, len(rest))
        if count:
            rest[-count:] *= np.linspace(1, 0, count, dtype=rest.dtype)
        return rest

    def _trim(self) -> None:
        """Cut whole quiet windows that lie more than a pre-roll before the first sound; what is cut does not depend on how the
        samples were portioned."""
        windows = len(self._held) // self._window
        power = (self._held[: windows * self._window].reshape(windows, self._window) ** 2).mean(1)
        loud = np.flatnonzero(power > GATE**2)
        if len(loud) or windows * self._window >= self._longest_trim:
            first = int(loud[0]) * self._window if len(loud) else self._longest_trim
            self.trimmed = max(0, min(first, self._longest_trim) - self._pre_roll)
            self._held = self._held[self.trimmed :]
            self._trimming = False

    def _release(self, count: int) -> Samples:
        count = max(0, count)
        out, self._held = self._held[:count], self._held[count:]
        fading = min(self._fade - self._faded_in, count)
        if fading > 0:
            out = out.copy()
            out[:fading] *= (np.arange(self._faded_in, self._faded_in + fading, dtype=np.float32)) / self._fade
            self._faded_in += fading
        return out
