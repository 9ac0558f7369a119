"""Chunks out of text that is still being written, as a language model streams it.

    deltas -> UnitScanner -> units -> Packer -> chunks

The same scanner and packer as in `chunks.py`; only the question differs: what can be spoken already?
"""

from __future__ import annotations

from collections.abc import Collection

from .boundaries import UnitScanner
from .chunks import Packer


class IncrementalChunker:
    """Collect text deltas and hand out chunks as soon as their ends are certain.

    The text is the concatenation of the deltas, which may split words, tags and surrogate pairs anywhere. A chunk
    leaves when it ends with a sentence, or when its limit of `most` characters is reached; "Dr.", "3." or
    "<lau" are not an end. Chunks keep all that `plan_chunks` promises, but for one: what `flush` returns may be only
    punctuation, when nothing else came since the chunk before. Time and memory are linear in the text.
    Raises ValueError unless `1 <= most`.
    """

    def __init__(self, most: int, tags: Collection[str] = ()) -> None:
        self._packer = Packer(most)
        self._scanner = UnitScanner(most, tags)

    def add(self, delta: str) -> None:
        """Add text; whoever calls `take` later gets more of it in one chunk than one who calls it at once."""
        self._packer.add(self._scanner.push(delta))

    def take(self) -> str | None:
        """The next chunk, if one is ready: as many whole sentences as are there and fit."""
        return next(self._packer.ready(self._scanner.waiting), None)

    def push(self, delta: str) -> list[str]:
        """Add text; returns the chunks that are ready, often none."""
        self.add(delta)
        return list(self._packer.ready(self._scanner.waiting))

    def flush(self) -> list[str]:
        """The text is over, or must be heard now: returns all that is left. The next push starts a new text."""
        self._packer.add(self._scanner.finish())
        return list(self._packer.rest())
