"""The cloning prompt: two turns, the first one complete with the reference's codes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_serving.cloning import Reference, clone_prompt, frames_from_levels
from orpheus_serving.errors import InvalidRequest
from orpheus_serving.tokens import TokenLayout

ORPHEUS = TokenLayout()


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_orpheus_layout_id_by_id() -> None:
    prompt = clone_prompt(ORPHEUS, letters, Reference("hi", [[0, 1, 2, 3, 4, 5, 4095]]), "yo")
    codes = [128266, 132363, 136460, 140557, 144654, 148751, 156937]
    assert prompt == [
        *[128259, 128000, ord("h"), ord("i"), 128009, 128260, 128261, 128257],
        *codes,
        *[128258, 128262],
        *[128259, 128000, ord("y"), ord("o"), 128009, 128260, 128261, 128257],
    ]


def test_a_layout_without_turns_has_nothing_between() -> None:
    small = TokenLayout(64, 16, 7, 1, (2,), (3,))
    prompt = clone_prompt(small, lambda _: [10], Reference("a", [[0] * 7]), "b", end_of_turn=())
    assert prompt == [2, 10, 3, *(64 + 16 * s for s in range(7)), 1, 2, 10, 3]


@settings(deadline=None)
@given(st.integers(1, 20))
def test_the_reference_keeps_its_codes_in_order(count: int) -> None:
    frames = [[(7 * f + s) % 4096 for s in range(7)] for f in range(count)]
    prompt = clone_prompt(ORPHEUS, letters, Reference("x", frames), "y")
    codes = [t for t in prompt if ORPHEUS.is_code(t)]
    assert [ORPHEUS.code(t) for t in codes] == [c for f in frames for c in f]
    assert [ORPHEUS.slot(t) for t in codes] == list(range(7)) * count
    assert prompt[-4:] == list(ORPHEUS.prompt_after)


@pytest.mark.parametrize(
    ("reference", "field"),
    [
        (Reference(" ", [[0] * 7]), "reference.text"),
        (Reference("a", []), "reference.frames"),
        (Reference("a", [[0] * 7] * 400), "reference.frames"),
        (Reference("a", [[4096] + [0] * 6]), "reference.frames"),
        (Reference("a", [[0] * 6]), "reference.frames"),
    ],
)
def test_a_bad_reference_names_its_field(reference: Reference, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        clone_prompt(ORPHEUS, letters, reference, "b")
    assert caught.value.field == field


def test_levels_become_frames_in_slot_order() -> None:
    assert frames_from_levels([[10, 11], [20, 21, 22, 23], list(range(30, 38))]) == [
        [10, 20, 30, 31, 21, 32, 33],
        [11, 22, 34, 35, 23, 36, 37],
    ]
    with pytest.raises(ValueError, match="expected F, 2 F and 4 F"):
        frames_from_levels([[1], [1], [1, 2, 3, 4]])
