"""Text into chunks that a model speaks one after another.

    text -> UnitScanner -> units -> Packer -> chunks

A model needs its prompt whole, so long text is spoken in chunks. A chunk is as many whole sentences as fit; failing that,
clauses; failing that, words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from .boundaries import Strength, Unit, UnitScanner

SHORT = 10  # characters; a chunk as short as "Yes." makes models ramble; see streamed.py


def plan_chunks(text: str, *, most: int, tags: Collection[str] = ()) -> list[str]:
    """Cut `text` into chunks of at most `most` characters.

    Nothing but white space at the cuts is lost. Tags, abbreviations with what they belong to, numbers and characters
    with their marks stay whole, even beyond the limit. A word longer than `most` is cut. No chunk is only punctuation,
    unless the text is. Raises ValueError unless `1 <= most`.
    """
    scanner, packer = UnitScanner(most, tags), Packer(most)
    packer.add(scanner.push(text))
    packer.add(scanner.finish())
    return list(packer.rest())


class Packer:
    """Pack units into chunks. Only spoken units queue up; punctuation joins the unit before it, or the first one."""

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"most: must be at least 1 character, got {most}")
        self.most = most
        self.reset()

    def reset(self) -> None:
        self._units: deque[_Packed] = deque()
        self._lead: list[str] = []  # punctuation before the first spoken unit
        self._size = 0
        self._sentences = 0

    def add(self, units: Iterable[Unit]) -> None:
        for unit in units:
            if unit.spoken:
                self._units.append(_Packed([*self._lead, unit.text], unit.space, unit.strength))
                self._lead = []
                self._size += self._units[-1].size
                self._sentences += unit.strength is Strength.SENTENCE
            elif self._units:
                last = self._units[-1]
                self._sentences += unit.strength is Strength.SENTENCE and last.strength is not Strength.SENTENCE
                self._size += last.join(unit)
            else:
                self._lead += (unit.text, unit.space)

    def ready(self, waiting: int) -> Iterator[str]:
        """Chunks that need not wait for more text: they end with a sentence, or the limit is reached.

        `waiting` characters, not yet a unit, are known to follow.
        """
        while self._units and (self._sentences or self._size + waiting > self.most):
            yield self._take(self._cut())

    def rest(self) -> Iterator[str]:
        """All that is left, in chunks. The packer is then as new."""
        while self._units:
            size = self._size - len(self._units[-1].space)
            yield self._take(self._cut() if size > self.most else len(self._units))
        if self._lead:
            yield "".join(self._lead).strip()
        self.reset()

    def _cut(self) -> int:
        """How many units make the next chunk: up to the last of the strongest boundaries within the limit."""
        best: dict[Strength, int] = {}
        size = 0
        for count, unit in enumerate(self._units, 1):
            if size + unit.length > self.most:
                break
            best[unit.strength] = count
            size += unit.size
        return best[max(best)] if best else 1

    def _take(self, count: int) -> str:
        taken = [self._units.popleft() for _ in range(count)]
        self._size -= sum(unit.size for unit in taken)
        self._sentences -= sum(unit.strength is Strength.SENTENCE for unit in taken)
        return "".join(part for unit in taken for part in (*unit.parts, unit.space)).strip()


class _Packed:
    """A spoken unit with the punctuation that joined it."""

    __slots__ = ("length", "parts", "space", "strength")

    def __init__(self, parts: list[str], space: str, strength: Strength) -> None:
        self.parts, self.space, self.strength = parts, space, strength
        self.length = sum(map(len, parts))

    @property
    def size(self) -> int:
        return self.length + len(self.space)

    def join(self, unit: Unit) -> int:
        """Take in punctuation that follows; returns by how much this has grown."""
        before = self.size
        self.parts += (self.space, unit.text)
        self.length += len(self.space) + len(unit.text)
        self.space, self.strength = unit.space, max(self.strength, unit.strength)
        return self.size - before
