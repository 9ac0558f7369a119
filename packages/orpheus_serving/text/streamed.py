"""Text that is still being written, into what the model is given to say.

    deltas -> hold what may be markup -> IncrementalChunker -> raw chunk -> normalise -> plan_chunks -> prompts

Whole text is normalised first and cut then. A stream cannot do that: what stands later could still change what came
before. So it is cut first, where a sentence surely ends, and each raw chunk is normalised by itself. What holds:

- However the deltas are cut, the text is exactly their concatenation, and nothing is said twice or left out.
- Every prompt is as safe as one of whole text: it went through the same `normalise`, on its own.
- The words are those of the whole text while sentences fit into a chunk, for no rule of `normalise` reaches over the end
  of a sentence. In a longer one, cut between words, an expression of several words ("$5 million") may be cut too.
- A chunk's last punctuation may differ: `normalise` ends every text of level "spoken" with a stop, here every chunk, and
  a paragraph without a stop gets one only where the next paragraph is in the same chunk.
- A tag or element that is not closed within MAX_MARKUP characters is read as plain text.
- Where chunks end depends on when the text came: the slower it comes, the fewer sentences share a chunk.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection
from enum import Enum
from typing import Final, Literal

from .chunks import SHORT, plan_chunks
from .incremental import IncrementalChunker
from .markup import tag_names
from .normalise import Level, normalise, speakable

MAX_MARKUP = 200  # characters that are held back because they may turn out to be markup
# `<` at the end, or with what an element, a comment or a control token goes on with; not "a < b" and not "<3".
_MAYBE_MARKUP = re.compile(rf"<(?:(?:[/!A-Za-z]|\s{{0,4}}\|)[^<>]{{0,{MAX_MARKUP}}})?\Z")
_MARKUP = re.compile(rf"<[^<>]{{1,{MAX_MARKUP}}}>")
_SPACE = "\0"  # stands for white space in markup until the chunk is cut; a NUL of the text's own is nothing to say


class _Mark(Enum):
    FLUSHED = "flushed"


FLUSHED: Final = _Mark.FLUSHED
"Stands between chunks where the writer asked for a flush: all text before it has been handed out."


class StreamedText:
    """Deltas in, prompts out, none longer than about `most` characters (see `plan_chunks`)."""

    def __init__(self, level: Level, tags: Collection[str], most: int) -> None:
        self._level = level
        self._tags = tags
        self._names = tag_names(tags)
        self._most = most
        self._chunker = IncrementalChunker(most, tags)
        self._held = ""  # the end of the text that may be markup
        self._short = ""  # a raw chunk too short to be spoken alone: "Yes." makes models ramble
        self._ready: deque[str | Literal[_Mark.FLUSHED]] = deque()

    def push(self, delta: str) -> None:
        text = self._held + delta.replace(_SPACE, "")
        found = _MAYBE_MARKUP.search(text)
        cut = found.start() if found else len(text)
        self._held = text[cut:]
        self._chunker.add(_MARKUP.sub(self._tie, text[:cut]))

    def _tie(self, markup: re.Match[str]) -> str:
        """Markup as one word, so that no chunk ends inside; the model's tags are known to the chunker."""
        name = " ".join(markup[0][1:-1].lower().split())
        return markup[0] if name in self._names else "".join(_SPACE if char.isspace() else char for char in markup[0])

    def flush(self, mark: bool = False) -> None:
        """Let out all that is there, and FLUSHED behind it if `mark`. The next delta starts a new text."""
        self._chunker.add(self._held)
        self._held = ""
        for raw in self._chunker.flush():
            self._make_ready(raw)
        if self._short:
            self._plan(self._short)
            self._short = ""
        if mark:
            self._ready.append(FLUSHED)

    def take(self) -> str | Literal[_Mark.FLUSHED] | None:
        """The next prompt, or FLUSHED, or None: nothing is certain yet."""
        while not self._ready:
            raw = self._chunker.take()
            if raw is None:
                return None
            self._make_ready(raw)
        return self._ready.popleft()

    def _make_ready(self, raw: str) -> None:
        raw = f"{self._short} {raw}".lstrip()
        self._short = ""
        if len(raw) < SHORT:
            self._short = raw
        else:
            self._plan(raw)

    def _plan(self, raw: str) -> None:
        text = normalise(raw.replace(_SPACE, " "), self._level, self._tags)
        if text and speakable(text, self._tags):
            self._ready.extend(plan_chunks(text, most=self._most, tags=self._tags))
