"""Where text may be cut: the one place that knows sentences, clauses, abbreviations, numbers and tags.

    characters -> UnitScanner -> units, each with the strength of the boundary behind it

A *unit* is what stays together: a word, or several words that an abbreviation ties ("Dr. Smith", "J. R. R. Tolkien").
The scanner takes text in pieces of any size and hands out a unit as soon as no later character can change it.
It looks at each character once, so a stream costs the same as the whole text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, auto

from .markup import tag_names

LONGEST_TIE = 64  # characters: words tied together, and how far to look for a good place inside a long word

_CLOSERS = "\"')]}*_\u00bb\u201d\u2019\u300d\u300f\u3011\uff09\u300b"
_OPENERS = "\"'([{*_\u00ab\u201c\u2018\u201e\u00bf\u00a1"
_STOPS = ("!", "?", "\u061f", "\u06d4", "\u0964", "\u0965", "\u3002", "\uff01", "\uff1f", "\uff61")
_COMMAS = (",", ";", ":", "\u2013", "\u2014", "\u060c", "\u061b", "\uff0c", "\u3001", "\uff1b", "\uff1a")
_DASHES = frozenset({"-", "--", "\u2013", "\u2014"})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Always tied to what follows.
_TIED = _words(
    "dr mr mrs ms mx messrs prof st ste mt ft gen sen rep gov pres capt cmdr lt col maj sgt cpl rev hon fr sra srta "
    "vs cf viz approx est dept univ e.g i.e eg ie"
)
# Tied to a number that follows; otherwise they end the sentence ("No. I will not.").
_TIED_TO_NUMBER = _words(
    "no nos nr p pp vol vols ch sec fig figs eq art par tel ext ca jan feb mar apr jun jul aug sep sept oct nov dec"
)
# May end a sentence: they do where a word follows that rarely stands inside one with a capital.
_MAY_END = _words("etc inc ltd co corp llc bros jr sr esq al am pm a.m p.m ph.d m.d b.a m.a b.c a.d c.e ave blvd rd")
STARTERS = _words(
    "the a an this that these those it he she we they you i my your his her our their its there here and but so or if "
    "when while then now in on at for from with after before as what who where why how please thanks yes no not "
    "however also let do does did is are was were can could would will should"
)
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_LIST_NUMBER = re.compile(r"\d{1,3}")


class Strength(IntEnum):
    """How good a place to cut is."""

    INSIDE = 0  # within a word that is too long to stay whole
    SPACE = 1
    CLAUSE = 2
    SENTENCE = 3


class _Ending(Enum):
    """What the end of a word says about the boundary behind it, before anything is known of the next word."""

    PLAIN = auto()
    CLAUSE = auto()
    STOP = auto()  # ends the sentence
    SOFT_STOP = auto()  # ends it unless a small letter follows: `"Why?" she said`
    TIED = auto()
    TIED_TO_NUMBER = auto()
    INITIALS = auto()  # tied, unless a sentence starter follows: "U.S. Army", "in the U.S. The"
    MAY_END = auto()  # a space, unless a sentence starter follows


@dataclass(slots=True)
class Unit:
    """Text that stays together, the white space behind it, and the boundary there."""

    text: str
    space: str
    strength: Strength
    spoken: bool  # holds a letter, a digit or a tag


class UnitScanner:
    """Cut a stream of characters into units. `longest` is the length above which a single word is cut."""

    def __init__(self, longest: int, tags: Collection[str] = ()) -> None:
        self.longest = longest
        self._names = tag_names(tags)
        self._reach = max([LONGEST_TIE, *(len(name) + 2 for name in self._names)])
        spelled = "|".join(rf"<\s*{re.escape(name)}\s*>" for name in sorted(self._names)) or "(?!)"
        self._tag = re.compile(spelled, re.IGNORECASE)
        self._last_tag = re.compile(rf"(?:{spelled})\Z", re.IGNORECASE)
        self._starts = {name[:n] for name in self._names for n in range(len(name) + 1)}
        self.reset()

    def reset(self) -> None:
        self._tied: list[str] = []  # words and spaces that wait for the word they are tied to
        self._tied_length = 0
        self._word: list[str] = []  # the word being read
        self._space: list[str] = []  # white space behind it
        self._lines = 0  # line breaks in it
        self._ending = _Ending.PLAIN  # of the word, once there is white space behind it
        self._held: tuple[str, str, _Ending] | None = None  # a word whose boundary depends on the next word
        self._cjk: Strength | None = None  # the boundary behind the last character, in text without spaces
        self._maybe_tag: list[str] | None = None  # what follows a `<` that may be a tag
        self._at_start = True  # at the first word of a sentence

    @property
    def waiting(self) -> int:
        """Characters read beyond the last boundary that is certain; 0 while a boundary is undecided."""
        return 0 if self._held else self._tied_length + len(self._word)

    def push(self, text: str) -> Iterator[Unit]:
        """Units that are certain now. Read them all: the text is scanned as they are taken."""
        for char in text:
            if char.isspace():
                if self._maybe_tag is not None and self._extends_tag(" "):
                    self._word.append(char)
                elif self._word:
                    yield from self._read_space(char)
            else:
                if self._space:
                    yield from self._end_word(self._strength_before(char))
                yield from self._read(char)

    def finish(self) -> Iterator[Unit]:
        """The rest, as it is. The scanner is then as new."""
        if self._word:
            if not self._space:
                self._ending = _classify(self._trimmed_word(), self._at_start)
                yield from self._settle_held("".join(self._word))
            yield from self._end_word(Strength.SENTENCE)
        elif self._held:
            word, space, _ = self._held
            self._held = None
            yield self._unit(word, space, Strength.SENTENCE)
        elif self._tied:
            yield self._unit("", "", Strength.SENTENCE)
        self.reset()

    # One character

    def _read_space(self, char: str) -> Iterator[Unit]:
        if not self._space:
            yield from self._settle_held("".join(self._word))
            self._ending = _classify(self._trimmed_word(), self._at_start)
            self._maybe_tag = None
        self._space.append(char)
        self._lines += char == "\n"
        if self._ending is _Ending.STOP or self._lines >= 2:
            yield from self._end_word(Strength.SENTENCE)

    def _read(self, char: str) -> Iterator[Unit]:
        if self._cjk is not None and not (char in _CLOSERS or char in _STOPS or char in _COMMAS or _joins(char)):
            yield from self._end_word(self._cjk)
        self._word.append(char)
        if char in "\u3002\uff01\uff1f\uff61":
            self._cjk = Strength.SENTENCE
        elif char in "\uff0c\u3001\uff1b\uff1a" and self._cjk is None:
            self._cjk = Strength.CLAUSE
        if char == "<":
            self._maybe_tag = []
        elif self._maybe_tag is not None and not self._extends_tag(char):
            self._maybe_tag = None
        if self._held and (strength := self._early_strength(char)) is not None:
            yield from self._release_held(strength)
        if len(self._word) > self.longest + 2 * self._reach:
            yield from self._settle_held("".join(self._word))
            yield from self._cut_word()

    def _extends_tag(self, char: str) -> bool:
        """Whether `char` may go on the tag that has begun; remembers it if so."""
        read = self._maybe_tag
        if read is None or len(read) > self._reach:
            return False
        name = " ".join("".join([*read, char]).lower().split())
        if name not in self._starts:
            return False
        read.append(char)
        return True

    # One word

    def _end_word(self, strength: Strength | None) -> Iterator[Unit]:
        """The word is over. Without a strength, its boundary depends on the word that follows."""
        yield from self._settle_held("".join(self._word))
        while len(self._word) > self.longest and self._cut_point() < len(self._word):
            yield from self._cut_word()
        word, space = "".join(self._word), "".join(self._space)
        ending = self._ending
        self._word, self._space, self._cjk, self._maybe_tag = [], [], None, None
        self._ending, self._lines = _Ending.PLAIN, 0
        if strength is None:
            self._held = (word, space, ending)
        elif ending is _Ending.TIED and strength < Strength.SENTENCE:
            yield from self._tie(word, space)
        else:
            yield self._unit(word, space, strength)

    def _strength_before(self, char: str) -> Strength | None:
        """The boundary between the word that ended and `char`, if that is enough to tell."""
        ending = self._ending
        if ending is _Ending.CLAUSE or self._cjk or (ending is _Ending.PLAIN and self._lines):
            return Strength.CLAUSE
        if ending in (_Ending.PLAIN, _Ending.TIED):
            return Strength.SPACE
        return None

    def _early_strength(self, char: str) -> Strength | _Ending | None:
        """What the next word's characters so far say about the held boundary."""
        assert self._held is not None
        ending = self._held[2]
        if char in _OPENERS:
            return None
        if ending is _Ending.SOFT_STOP:
            return Strength.CLAUSE if char.islower() else Strength.SENTENCE
        if ending is _Ending.TIED_TO_NUMBER:
            return _Ending.TIED if char.isdigit() else Strength.SPACE if char.islower() else Strength.SENTENCE
        return None

    def _settle_held(self, following: str) -> Iterator[Unit]:
        """The next word is known: decide the held boundary."""
        if not self._held:
            return
        ending = self._held[2]
        word = following.strip(_OPENERS + _CLOSERS + ".,!?;:")
        starts = word.lower() in STARTERS and word[:1].isupper()
        if ending is _Ending.SOFT_STOP or starts:
            yield from self._release_held(Strength.SENTENCE)
        elif ending is _Ending.INITIALS:
            yield from self._release_held(_Ending.TIED)
        else:
            yield from self._release_held(Strength.SPACE)

    def _release_held(self, strength: Strength | _Ending) -> Iterator[Unit]:
        assert self._held is not None
        word, space, _ = self._held
        self._held = None
        if isinstance(strength, Strength):
            yield self._unit(word, space, strength)
        else:
            yield from self._tie(word, space)

    def _tie(self, word: str, space: str) -> Iterator[Unit]:
        if self._tied_length + len(word) > LONGEST_TIE:
            yield self._unit(word, space, Strength.SPACE)
        else:
            self._tied += (word, space)
            self._tied_length += len(word) + len(space)
            self._at_start = False

    def _unit(self, word: str, space: str, strength: Strength) -> Unit:
        text = "".join([*self._tied, word])
        self._tied, self._tied_length = [], 0
        self._at_start = strength is Strength.SENTENCE
        return Unit(text, space, strength, any(map(str.isalnum, text)))

    def _trimmed_word(self) -> str:
        """The word as far as its ending matters: the last characters, without tags behind its punctuation."""
        word = "".join(self._word[-self._reach - LONGEST_TIE :])
        while (tag := self._last_tag.search(word, max(0, len(word) - self._reach))) and tag.start() > 0:
            word = word[: tag.start()]
        return word

    # A word that is too long

    def _cut_word(self) -> Iterator[Unit]:
        point = self._cut_point()
        text = "".join(self._word[:point])
        del self._word[:point]
        yield self._unit(text, "", Strength.INSIDE)

    def _cut_point(self) -> int:
        """Where to cut the word: near `longest`, best between letters, never inside a tag or a character.

        The word's own length where it is better left whole.
        """
        text = "".join(self._word[: self.longest + 2 * self._reach])
        tags = [found.span() for found in self._tag.finditer(text)]

        def whole(point: int) -> bool:
            return not _joins(text[point], text[point - 1]) and not any(a < point < b for a, b in tags)

        near = [
            *range(min(self.longest, len(text) - 1), max(0, self.longest - self._reach), -1),
            *range(self.longest + 1, min(self.longest + self._reach, len(text))),
        ]
        starts = {a for a, _ in tags}
        for point in near:
            if (point in starts or _is_good_cut(text, point)) and whole(point):
                return point
        if len(text) <= LONGEST_TIE:
            return len(text)  # "3.14" stays whole, whatever the limit
        return next(filter(whole, near), len(text))


def _classify(word: str, at_start: bool) -> _Ending:
    if word in _DASHES:
        return _Ending.CLAUSE
    core = word.rstrip(_CLOSERS)
    closed = len(core) < len(word)
    if core.endswith(_STOPS):
        return _Ending.SOFT_STOP if closed else _Ending.STOP
    if core.endswith(("...", "\u2026")):
        return _Ending.SOFT_STOP
    if core.endswith(_COMMAS) or closed:
        return _classify_period(core, closed) if core.endswith(".") else _Ending.CLAUSE
    if core.endswith("."):
        if at_start and _LIST_NUMBER.fullmatch(core[:-1]):
            return _Ending.TIED
        return _classify_period(core, closed)
    return _Ending.PLAIN


def _classify_period(core: str, closed: bool) -> _Ending:
    stem = core[:-1].lstrip(_OPENERS)
    small = stem.lower()
    if small in _TIED:
        return _Ending.TIED
    if small in _TIED_TO_NUMBER:
        return _Ending.TIED_TO_NUMBER
    if small in _MAY_END:
        return _Ending.MAY_END
    if _INITIALS.fullmatch(stem) and (len(stem) > 1 or stem.isupper()):
        return _Ending.INITIALS
    return _Ending.SOFT_STOP if closed else _Ending.STOP


def _joins(char: str, before: str = "") -> bool:
    """Whether `char` belongs to the character before it: marks, joiners, jamo, the low half of a pair."""
    return (
        unicodedata.category(char)[0] == "M"
        or char in "\u200c\u200d\u0e33\u0eb3\uff9e\uff9f"
        or "\u1160" <= char <= "\u11ff"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\udc00" <= char <= "\udfff"
        or before == "\u200d"
        or (before != "" and unicodedata.combining(before) == 9)  # a virama ties the consonant that follows
    )


def _is_good_cut(text: str, point: int) -> bool:
    """Between two letters or behind a separator; not inside a number, an address or before punctuation."""
    before, after = text[point - 1], text[point]
    return after.isalnum() and before not in ".,:'@\u2019" and not (before.isdigit() and after.isdigit())
