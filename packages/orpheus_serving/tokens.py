"""Token ids of a speech language model: where the audio codes live, the prompt, and ids back into frames.

    text ids -> prompt_ids() -> [engine] -> token ids -> FrameAssembler -> frames [7] of codes -> [codec]

An Orpheus model writes audio as *frames* of seven tokens. The token in slot `s` with code `c` has the id
`first_code + codes_per_slot * s + c`, so a token's slot follows from its id alone. That is the whole trick of the
assembler: it never counts tokens, so a stray or missing one cannot shift what comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import sub


@dataclass(frozen=True)
class TokenLayout:
    """Where a checkpoint keeps its special ids and audio codes. The defaults are those of Orpheus 3B 0.1.

    Audio ids are `first_code .. last_code`; slot-major, `codes_per_slot` ids a slot, `slots` slots a frame.
    """

    first_code: int = 128266
    codes_per_slot: int = 4096
    slots: int = 7
    end_of_speech: int = 128258
    prompt_before: tuple[int, ...] = (128259, 128000)  # start of human turn, begin of text
    prompt_after: tuple[int, ...] = (128009, 128260, 128261, 128257)  # eot, end of human, start of AI, start of speech

    def __post_init__(self) -> None:
        for name in ("codes_per_slot", "slots"):
            if getattr(self, name) < 1:
                raise ValueError(f"token layout: {name} must be at least 1, got {getattr(self, name)}")
        special = {self.end_of_speech, *self.prompt_before, *self.prompt_after}
        clash = sorted(i for i in special if i < 0 or self.is_code(i))
        if clash:
            raise ValueError(f"token layout: special ids {clash} are negative or fall among the audio codes")

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The id of code 0 in each slot."""
        return tuple(range(self.first_code, self.last_code + 1, self.codes_per_slot))

    @property
    def last_code(self) -> int:
        return self.first_code + self.slots * self.codes_per_slot - 1

    def is_code(self, token: int) -> bool:
        return self.first_code <= token <= self.last_code

    def slot(self, token: int) -> int:
        """Slot (0-based) of an audio id; only meaningful where `is_code` holds."""
        return (token - self.first_code) // self.codes_per_slot

    def code(self, token: int) -> int:
        """Code (0 .. codes_per_slot - 1) of an audio id; only meaningful where `is_code` holds."""
        return (token - self.first_code) % self.codes_per_slot

    def token(self, slot: int, code: int) -> int:
        """The id of a code in a slot. Raises ValueError for a slot or code out of range (4096 is not a code)."""
        if not 0 <= slot < self.slots or not 0 <= code < self.codes_per_slot:
            raise ValueError(f"slot {slot}, code {code}: outside {self.slots} slots of {self.codes_per_slot} codes")
        return self.first_code + self.codes_per_slot * slot + code

    def frame_tokens(self, codes: Sequence[int]) -> list[int]:
        """The ids of one frame given its codes in slot order."""
        if len(codes) != self.slots:
            raise ValueError(f"a frame has {self.slots} codes, got {len(codes)}")
        return [self.token(slot, code) for slot, code in enumerate(codes)]

    def prompt_ids(self, text_ids: Sequence[int]) -> list[int]:
        return [*self.prompt_before, *text_ids, *self.prompt_after]


@dataclass(slots=True)
class FrameAssembler:
    """Token ids in any portions -> whole frames, each a tuple of `slots` codes in slot order.

    Only the id that continues the frame is taken; slot 0 always starts a new one. So a stray, missing or repeated id costs
    at most the frame it fell into, and every later frame is what it would have been. `dropped` counts the ids (the end of
    speech apart) that reached no frame; it is final after `finish()`.
    """

    layout: TokenLayout
    dropped: int = 0
    _codes: list[int] = field(default_factory=list)

    def push(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """The frames that these ids complete. Ids that are not audio codes (4096 above a slot's first is the next slot's 0,
        past the last slot it is no code) are dropped."""
        layout = self.layout
        if len(tokens) == layout.slots and not self._codes:  # nearly always, and hundreds of streams go through here
            whole = tuple(map(sub, tokens, layout.firsts))
            if min(whole) >= 0 and max(whole) < layout.codes_per_slot:
                return [whole]
        frames = []
        for token in tokens:
            if token == layout.end_of_speech:
                continue
            if not layout.is_code(token):
                self.dropped += 1
                continue
            slot = layout.slot(token)
            if slot == 0 and self._codes:
                self._drop_unfinished()
            if slot != len(self._codes):
                self.dropped += 1
                continue
            self._codes.append(layout.code(token))
            if len(self._codes) == layout.slots:
                frames.append(tuple(self._codes))
                self._codes.clear()
        return frames

    def finish(self) -> None:
        """The stream has ended: what is left of a frame is dropped."""
        self._drop_unfinished()

    def _drop_unfinished(self) -> None:
        self.dropped += len(self._codes)
        self._codes.clear()
