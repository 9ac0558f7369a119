"""Speak in a voice that the model has never been trained on: a prompt that begins with a reference.

    reference text + frames of codes (the reference audio through the codec's encoder) ┐
                                                               text to speak ----------┴-> prompt ids

The pretrained Orpheus checkpoint was trained on pairs of one speaker, so it carries the voice of the first utterance
into the
second. The layout is two turns, the first one complete:

    before text after  codes  end-of-speech end-of-turn   before text after

`before` and `after` are those of `TokenLayout`. Fine-tuned checkpoints (one voice a name) were not trained on this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .errors import InvalidRequest
from .tokens import TokenLayout

END_OF_AI_TURN = 128262  # Orpheus 3B closes a finished answer with it; a layout without turns has none
MAX_REFERENCE_FRAMES = 352  # 30 s: longer references cost context and time without sounding closer


@dataclass(frozen=True, slots=True)
class Reference:
    """What was said and its codes, frame by frame in slot order (as the codec's encoder gives them)."""

    text: str
    frames: Sequence[Sequence[int]]


def clone_prompt(
    layout: TokenLayout,
    encode_text: Callable[[str], Sequence[int]],
    reference: Reference,
    text: str,
    end_of_turn: Sequence[int] = (END_OF_AI_TURN,),
) -> list[int]:
    """Prompt ids that ask for `text` in the voice of `reference`.

    `end_of_turn` are the ids between the reference's end of speech and the next turn: empty for a layout without
    turns. Raises
    InvalidRequest for a reference without words or sound, longer than 30 s, or with codes that are not the layout's.
    """
    if not reference.text.strip():
        raise InvalidRequest("reference.text", "empty: write down what the reference recording says")
    if not 1 <= len(reference.frames) <= MAX_REFERENCE_FRAMES:
        raise InvalidRequest("reference.frames", f"{len(reference.frames)} frames: give 1 to {MAX_REFERENCE_FRAMES} (30 s)")
    try:
        codes = [token for frame in reference.frames for token in layout.frame_tokens([int(c) for c in frame])]
    except ValueError as error:
        raise InvalidRequest("reference.frames", f"{error}; encode the recording with this checkpoint's codec") from error
    return [
        *layout.prompt_ids(encode_text(reference.text)), *codes, layout.end_of_speech, *end_of_turn,
        *layout.prompt_ids(encode_text(text)),
    ]  # fmt: skip


def frames_from_levels(levels: Sequence[Sequence[int]]) -> list[list[int]]:
    """SNAC's three code levels (F, 2 F and 4 F codes) -> F frames of seven in slot order.

    What `snac.SNAC.encode` returns, one item of the batch, as lists.
    """
    coarse, mid, fine = levels
    if len(mid) != 2 * len(coarse) or len(fine) != 4 * len(coarse):
        raise ValueError(f"levels of {len(coarse)}, {len(mid)} and {len(fine)} codes: expected F, 2 F and 4 F")
    return [
        [c, mid[2 * i], fine[4 * i], fine[4 * i + 1], mid[2 * i + 1], fine[4 * i + 2], fine[4 * i + 3]]
        for i, c in enumerate(coarse)
    ]
