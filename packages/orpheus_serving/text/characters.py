"""Which characters may reach a model, and in what form.

    any str -> join surrogate pairs -> drop -> NFC -> plain ASCII punctuation -> at most MAX_MARKS marks on a letter

Letters of every script, digits, punctuation, currency and mathematical signs stay. What nobody can say or see goes:
control and format characters (zero width, bidirectional), private use, unassigned, lone surrogates, emoji.
"""

from __future__ import annotations

import re
import unicodedata

MAX_MARKS = 8  # on one base letter; no orthography needs more, and Unicode normalisation sorts long runs in O(n^2)

# Written with a letter's category but without a visible form: Hangul fillers, Khmer inherent vowels, a joiner.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
# Emoji outside the two symbol ranges below: congratulations, secret, wavy dash, part alternation mark, replacements.
_STRAY_EMOJI = frozenset("\u3297\u3299\u3030\u303d\ufffc\ufffd")
_GAP = "\0"  # stands for a removed emoji until `_close_gaps`; a NUL of the input's own is dropped before

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\u2036\u275d\u275e", '"'),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2039\u203a\u2032\u2035\u00b4`\u02bc", "'"),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-"),
        **dict.fromkeys("\u2014\u2015\u2e3a\u2e3b", " - "),
        "\u2026": "...",
        "\u2025": "..",
        "\u203c": "!!",
        "\u2047": "??",
        "\u2048": "?!",
        "\u2049": "!?",
        "\u2022": " - ",
    }
)
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class _Drops(dict[int, str]):
    """A table for `str.translate` that decides about each character once."""

    def __missing__(self, code: int) -> str:
        self[code] = kept = _kept(chr(code))
        return kept


def _kept(char: str) -> str:
    """The character itself, a space for white space, a gap for a pictograph, nothing for the unsayable."""
    if char.isspace():
        return "\n" if char in "\n\r\v\f\x85\u2028" else "\n\n" if char == "\u2029" else " "
    code, category = ord(char), unicodedata.category(char)
    if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Me") or char in _INVISIBLE:
        return ""
    if 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or 0x180B <= code <= 0x180F:  # variation selectors
        return ""
    pictograph = (category == "So" and (0x2190 <= code <= 0x2BFF or code >= 0x1F000)) or char in _STRAY_EMOJI
    if pictograph or (category == "Sk" and code >= 0x1F000) or (category == "Sm" and 0x25A0 <= code <= 0x25FF):
        return _GAP
    return char


_DROPS = _Drops()


def is_mark(char: str) -> bool:
    """Whether the character combines with the one before it."""
    return unicodedata.category(char)[0] == "M"


def strip_marks(text: str) -> str:
    """`text` without the combining marks that it begins with."""
    start = 0
    while start < len(text) and is_mark(text[start]):
        start += 1
    return text[start:]


def join_surrogates(text: str) -> str:
    """Two halves of one character, as a stream split inside it delivers them, become that character."""
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def sayable(text: str) -> str:
    """Keep the characters that can be said, in NFC, with plain quotes, dashes and ellipses. Keeps line breaks.

    Idempotent, linear in the length, and total: every `str` is accepted.
    """
    text = text.replace("\r\n", "\n")
    if not text.isascii():
        text = join_surrogates(text)
    text = text.translate(_DROPS)
    if text.isascii() and _GAP not in text:
        return text.translate(_PLAIN)
    text = _limit_marks(_close_gaps(text), 2 * MAX_MARKS)
    return _limit_marks(unicodedata.normalize("NFC", text), MAX_MARKS).translate(_PLAIN)


def _close_gaps(text: str) -> str:
    """An emoji between two words was a space; elsewhere nothing. Marks that sat on it go with it."""
    first, *rest = text.split(_GAP)
    out = [first]
    for piece in map(strip_marks, rest):
        if piece:
            if out[-1][-1:].isalnum() and piece[0].isalnum():
                out.append(" ")
            out.append(piece)
    return "".join(out)


def _limit_marks(text: str, most: int) -> str:
    if text.isascii():
        return text
    out, marks = [], 0
    for char in text:
        marks = marks + 1 if char > "\u02ff" and is_mark(char) else 0
        if marks <= most:
            out.append(char)
    return "".join(out)
