"""How much audio leaves at once: a listener who is far from the end of what he has gets longer pieces.

    samples of a frame -> Pieces.add -> Pieces.take(now) -> a piece of 1 to 4 frames, or nothing yet

Every piece costs the event loop the same, whatever its length: a queue, a task, an encoder, a write. That is most of what a
stream costs the host. But engines pace streams (engines/pacing.py), so most listeners have a second or so ahead of what they
hear, and need no piece every 85 ms. What is held back is at most HELD_SHARE of what a listener has ahead, so that the first
pieces leave at once, and those of a stream that is short of time as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[Any]

LONGEST = 4 * 2048 / 24000  # seconds: longer pieces save little more
HELD_SHARE = 0.5


class Pieces:
    """Samples of one utterance between the decoder and its reader. rate: samples that are heard in a second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._held: list[Samples] = []
        self._count = 0  # samples held
        self._heard = 0.0  # when all that was taken will have been heard, had it been heard from the first piece on

    def add(self, samples: Samples) -> None:
        if len(samples):
            self._held.append(samples)
            self._count += len(samples)

    def take(self, now: float) -> Samples | None:
        """A piece, if it is time for one. `now`: seconds on any clock that does not go back."""
        if self._count < self._rate * min(LONGEST, HELD_SHARE * (self._heard - now)):
            return None
        seconds = self._count / self._rate
        piece = self.rest()
        if piece is not None:
            self._heard = (self._heard or now) + seconds
        return piece

    def rest(self) -> Samples | None:
        """All that is held; the stream is over."""
        held, self._held, self._count = self._held, [], 0
        return np.concatenate(held) if held else None
