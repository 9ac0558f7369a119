"""In the place of `RowModel`: no arithmetic, and a check of every row that the engine sends.

What a request says depends on its prompt and seed alone: `said(layout, prompt, seed)` yields it, without end of speech where the
prompt's first id is even, else with one after a few frames.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.cuda_kernels import PAGE
from orpheus_serving.engines.cuda_model import MOST_SENT, NEWEST
from orpheus_serving.tokens import TokenLayout


def said(layout: TokenLayout, prompt: Sequence[int], seed: int) -> Iterator[int]:
    mark = (sum(prompt) + 31 * len(prompt) + seed) % 997
    frames = mark % 9 if prompt[0] % 2 else None
    for frame in itertools.count():
        if frame == frames:
            yield layout.end_of_speech
        for slot in range(layout.slots):
            yield layout.token(slot, (mark + 17 * frame + slot) % layout.codes_per_slot)


@dataclass
class Ticket:
    model: RowStandin
    drawn: list[int]

    number: int

    def ids(self) -> list[int]:
        if self.number == self.model.unreadable:
            raise RuntimeError("the GPU fell off the bus")
        self.model.unread -= 1
        return self.drawn


@dataclass
class Place:
    prompt: list[int]
    pages: list[int]
    ids: Iterator[int]
    next: int = 0  # the position of the next row


class RowStandin:
    """`fail_at`: the step that raises when it is sent; `unreadable`: when it is read. Until `gate` is set, no step is done."""

    made: ClassVar[list[RowStandin]] = []
    seconds: ClassVar[float] = 0  # that a step takes

    def __init__(
        self, config: Any, weights: Any, layout: TokenLayout, *, places: int, rows: int, length: int, device: Any
    ) -> None:
        self.layout = layout
        self.places: dict[int, Place] = {}
        self.rows = rows
        self.table_width = -(-length // PAGE)
        self.page_bytes = 1
        self.owner: dict[int, int] = {}  # page -> place
        self.most_places = places
        self.steps = 0
        self.unread = 0
        self.largest = 0
        self.sent: list[list[int]] = []  # the places of each step's rows
        self.fail_at: int | None = None
        self.unreadable: int | None = None
        self.gate = threading.Event()
        self.gate.set()
        RowStandin.made.append(self)

    def open_pages(self, count: int) -> None:
        self.pages = count

    def size(self, count: int) -> int:
        return count

    def admit(self, place: int, prompt: Sequence[int], sampling: Sampling, seed: int, pages: Sequence[int]) -> None:
        assert 0 <= place < self.most_places
        assert all(0 <= page < self.pages for page in pages)
        assert len(set(pages)) == len(pages) <= self.table_width
        for page in pages:
            self.owner[page] = place
        self.places[place] = Place(list(prompt), list(pages), said(self.layout, prompt, seed))

    def step(self, places: Sequence[int], positions: Sequence[int], tokens: Sequence[int]) -> Ticket:
        assert self.gate.wait(30)
        time.sleep(self.seconds)
        self.steps += 1
        if self.steps == self.fail_at:
            raise RuntimeError("the GPU fell off the bus")
        self.unread += 1
        assert self.unread <= MOST_SENT
        assert 1 <= len(places) == len(positions) == len(tokens) <= self.rows
        self.largest = max(self.largest, len(places))
        self.sent.append(list(places))
        drawn = []
        for place, position, token in zip(places, positions, tokens, strict=True):
            state = self.places[place]
            assert position == state.next, "a row is missing, or came twice"
            assert position < len(state.pages) * PAGE
            assert self.owner[state.pages[position // PAGE]] == place, "the page is somebody else's"
            assert token == (state.prompt[position] if position < len(state.prompt) else NEWEST)
            state.next += 1
            drawn.append(next(state.ids) if position >= len(state.prompt) - 1 else -7)
        return Ticket(self, drawn, self.steps)
