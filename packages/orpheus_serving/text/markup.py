"""Angle brackets: emotion tags stay, control tokens and other markup go, in one pass and to a fixed point.

    "<Laugh> hi <|eo<|eot_id|>t_id|> <b>there</b>" -> "<laugh> hi  there"

The pass keeps what it has written so far already reduced, with a stack of the brackets still open in it, so removing
one token can never leave another behind, and no text is read twice. A bracket that belongs to nothing ("a < b")
stays. `<|` and `|>` never stay, whatever is between them: no control token can be spelled with what is left.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from .characters import strip_marks

MAX_CONTROL = 64  # characters inside `<|...|>`; further apart they are two strangers, and only they are removed

_BRACKET = re.compile(r"([<>|])")
_CUSTOM_TOKEN = re.compile(r"\s*/?\s*custom[\s_-]*token[\s_-]*\d*\s*", re.IGNORECASE)
_ELEMENT = re.compile(
    r"""(?:/?[a-z][a-z0-9:_-]*                                      # <b, </b, <laugh
        (?:\s+[a-z][a-z0-9:_-]*=(?:"[^"<>]*"|'[^'<>]*'|[^\s"'=<>]+))*   # attributes
        \s*/?
        |!--[^<>]*--)""",
    re.IGNORECASE | re.VERBOSE,
)


def tag_names(tags: Collection[str]) -> frozenset[str]:
    """Names of tags, lower-cased and without brackets: `laugh` for `laugh`, `<laugh>` and `<Laugh>`."""
    return frozenset(name for tag in tags if (name := " ".join(tag.strip("<> ").lower().split())))


def strip_markup(text: str, names: frozenset[str]) -> str:
    """Remove control tokens and markup; keep `<name>`, lower-cased, for the given names. Linear, idempotent."""
    if "<" not in text and ">" not in text:
        return text
    return _Reducer(names).reduce(text)


class _Reducer:
    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.out: list[str] = []
        # Open brackets: where in `out`, whether it is `<|`, and `last` as it was before the bracket.
        self.open: list[tuple[int, bool, str]] = []
        self.last = ""  # the last piece written that is not blank: "<", "<|", "|", ">" or "word"
        self.gap = False  # something was removed right here

    def reduce(self, text: str) -> str:
        for piece in _BRACKET.split(text):
            if piece == "<":
                self.open.append((len(self.out), False, self.last))
                self._write(piece, piece)
            elif piece == ">":
                self._close()
            elif piece == "|":
                self._pipe()
            elif piece:
                self._write(piece, "word")
        self._forget_open()
        return "".join(self.out)

    def _write(self, piece: str, kind: str) -> None:
        if self.gap:
            piece = strip_marks(piece)
            if not piece:
                return
            if piece[0].isalnum() and self.out and self.out[-1][-1:].isalnum():
                piece = " " + piece
            self.gap = False
        self.out.append(piece)
        if not piece.isspace():
            self.last = kind

    def _pipe(self) -> None:
        if self.last == "<" and self.open:
            start, _, before = self.open.pop()
            self.open.append((start, True, before))
            self.last = "<|"
        if self.last == "<|":
            self.gap = True
        else:
            self._write("|", "|")

    def _close(self) -> None:
        if not self.open:
            self._write_close()
            return
        start, control, before = self.open[-1]
        if control or self.last == "|":
            if self._is_short(start + 1):
                self._remove()
                return
            self.gap = True  # this `>` goes alone, and so does the `<|` that it would have closed
            if control:
                self.open.pop()
                self.out[start] = " "
                self.last = before if self.last == "<|" else self.last
            return
        inner = "".join(self.out[start + 1 :])
        name = " ".join(inner.lower().split())
        if _CUSTOM_TOKEN.fullmatch(inner):
            self._remove()
        elif name in self.names:
            self._remove()
            self.gap = False
            self._write(f"<{name}>", "word")
        elif _ELEMENT.fullmatch(inner):
            self._remove()
        else:
            self._forget_open()
            self._write(">", ">")

    def _write_close(self) -> None:
        if self.last == "|":
            self.gap = True
        else:
            self._write(">", ">")

    def _is_short(self, start: int) -> bool:
        """Whether at most MAX_CONTROL characters were written from `start` on; looks at no more than that."""
        pieces = self.out[start : start + MAX_CONTROL + 1]  # none is empty
        return sum(map(len, pieces)) <= MAX_CONTROL

    def _remove(self) -> None:
        start, _, self.last = self.open.pop()
        del self.out[start:]
        self.gap = True

    def _forget_open(self) -> None:
        """After a bracket that closes nothing, no earlier one can be closed any more."""
        for start, control, _ in self.open:
            if control:
                self.out[start] = " "
        self.open.clear()
