"""Text as people write it, into text that a speech model may be given.

    clean    any str -> sayable characters -> markup out -> one line, tidy punctuation
    spoken   clean -> English words for numbers, money, times, symbols -> letters and `. , ! ? ' -` only

`clean` suits a real Orpheus checkpoint, whose language model reads numbers itself. `spoken` is for a small model that
knows characters and little else. Both are idempotent, linear in the length, and accept every `str`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from typing import Literal

from . import english
from .characters import is_mark, sayable
from .markup import strip_markup, tag_names

Level = Literal["clean", "spoken"]

_SPACES = re.compile(r"\s+")
_BULLET = re.compile(r"\n(?:[-*+] |(?=\d{1,3}[.)] ))")
# The lookahead and what it found make a possessive repeat. Python's own, of a group, reads on after a failed turn up to 3.11.4.
_RUN = re.compile(r"( ?)(?=([!?.,]+(?: [!?.,]+(?= |$))*))\2(?=(.?))")
_ENDS = ".!?,;:-\u3002\uff01\uff1f\u2026\uff0c\u3001\uff1b\uff1a\u061f\u06d4\u0964"
SPOKEN_PASSES = 8

# Letters that Unicode does not decompose, and signs that read as words.
_FOLD = str.maketrans(
    {
        **{
            "\u00df": "ss",
            "\u00e6": "ae",
            "\u00c6": "Ae",
            "\u00f8": "o",
            "\u00d8": "O",
            "\u0153": "oe",
            "\u0152": "Oe",
        },
        **{"\u0142": "l", "\u0141": "L", "\u0111": "d", "\u0110": "D", "\u00fe": "th", "\u00de": "Th", "\u0131": "i"},
        **{"\u00b2": " squared", "\u00b3": " cubed", "\u2044": "/", "\u2103": "\u00b0C", "\u2109": "\u00b0F"},
        **{"\u3002": ".", "\uff01": "!", "\uff1f": "?", "\uff0c": ",", "\u3001": ",", "\u061f": "?", "\u0964": "."},
        **dict.fromkeys("\u2122\u00a9\u00ae", " "),
        **dict.fromkeys(map(chr, range(0xFDF0, 0xFDFE)), " "),  # Arabic phrases that would grow eighteenfold
    }
)
_VULGAR = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])")
_TAG = re.compile(r"(<[^<>]*>)")
# Letters that are a syllable or a word: Ethiopic, Cherokee, Canadian syllabics, kana, Han, Yi, Hangul.
_SYLLABLE = re.compile(
    "[\u1200-\u139f\u13a0-\u167f\u3005-\u3007\u3041-\u30fa\u3100-\u31ff\u3400-\u4dbf\u4e00-\ua48c"
    "\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]"
)


def normalise(text: str, level: Level = "clean", tags: Collection[str] = ()) -> str:
    """`text` on one line, safe to put into a prompt; see the module for the two levels.

    `tags` are the emotion tags that the model knows (`laugh` or `<laugh>`): those stay, as `<laugh>`; all other markup
    and every spelling of a control token goes. The result may be empty: ask `speakable` first.
    """
    names = tag_names(tags)
    if level == "clean":
        return _clean(text, names)
    # What one pass writes may, put together, read as something else to say; the second pass mostly finds nothing.
    for _ in range(SPOKEN_PASSES):
        before, text = text, _spoken(text, names)
        if text == before:
            break
    return text


def speakable(text: str, tags: Collection[str] = ()) -> bool:
    """Whether anything of `text` would be heard: a letter or digit of any script, or one of the tags."""
    return any(char.isalnum() for char in _clean(text, tag_names(tags)))


def spoken_length(text: str) -> int:
    """How many characters of English take about as long to say as `text`, which may write numbers in digits.

    Where a character is a syllable or a word, it counts as three.
    """
    return max(len(text), len(english.say(text))) + 2 * len(_SYLLABLE.findall(text))


def _spoken(text: str, names: frozenset[str]) -> str:
    text = _VULGAR.sub(" ", sayable(text)).translate(_FOLD)
    text = _clean(unicodedata.normalize("NFKC", text).translate(_FOLD), names)
    pieces = _TAG.split(text)  # every second one is a tag; what is between may look like one: "<laugh<"
    text = "".join(
        piece if at % 2 and piece[1:-1] in names else _to_alphabet(english.say(piece)) for at, piece in enumerate(pieces)
    )
    text = _punctuate(text).rstrip(",' -")
    if not any(map(str.isalnum, text)):
        return ""
    return text if text[-1] in ".!?" else text + "."


def _to_alphabet(text: str) -> str:
    """Only ASCII letters, spaces and `. , ! ? ' -`: accents fold, brackets and colons become commas, the rest goes."""
    text = unicodedata.normalize("NFKD", text)
    text = "".join(char for char in text if char.isascii() or not is_mark(char))
    text = re.sub(r" ?[()\[\]{};:]+ ?| --? ", ", ", text)
    text = re.sub(r"[^A-Za-z .,!?'-]", " ", text)
    text = re.sub(r"(?<![A-Za-z])['-]+|['-]+(?![A-Za-z])", " ", text)
    return text


def _clean(text: str, names: frozenset[str]) -> str:
    text = _SPACES.sub(_space, sayable(text))
    text = _SPACES.sub(_space, strip_markup(text, names))
    text = _punctuate(_join_lines(text.strip()))
    # Where a bracket or a mark lost its neighbour, letters may have met marks: compose them.
    return sayable(text)


def _space(run: re.Match[str]) -> str:
    """A run of white space as one space, one line break, or one empty line."""
    return "\n" * min(run[0].count("\n"), 2) or " "


def _join_lines(text: str) -> str:
    """Paragraphs become sentences, list items too, and other line breaks spaces."""
    text = _BULLET.sub("\n\n", text)
    first, *rest = text.split("\n\n")
    out = [first.replace("\n", " ")]
    for part in rest:
        end = out[-1].rstrip(" \"')]}")[-1:]
        if end and end not in _ENDS:
            out.append(".")
        out.append(" " + part.replace("\n", " "))
    return "".join(out)


def _punctuate(text: str) -> str:
    """Collapse runs of stops, commas and marks, and take away the space in front of them."""
    text = _RUN.sub(_collapse, _SPACES.sub(" ", text))
    return re.sub(r"^[!?.,]+ ", "", text.strip()).strip()


def _collapse(run: re.Match[str]) -> str:
    space, marks, after = run[1], run[2].replace(" ", ""), run[3]
    if "?" in marks:
        marks = "?!" if "!" in marks else "?"
    elif "!" in marks:
        marks = "!"
    elif marks.count(".") >= 3:
        marks = "..."
    elif marks != ".,":
        marks = "." if "." in marks else ","
    return (space if after.strip() else "") + marks
