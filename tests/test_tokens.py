"""Frames out of whatever ids come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_serving.tokens import FrameAssembler, TokenLayout

ORPHEUS = TokenLayout()
frames_of = st.lists(st.lists(st.integers(0, 4095), min_size=7, max_size=7), min_size=1, max_size=8)


def assemble(tokens: list[int], portions: list[int] | None = None) -> tuple[list[tuple[int, ...]], int]:
    assembler = FrameAssembler(ORPHEUS)
    frames, at = [], 0
    for portion in portions or [len(tokens)]:
        frames += assembler.push(tokens[at : at + portion])
        at += portion
    frames += assembler.push(tokens[at:])
    assembler.finish()
    return frames, assembler.dropped


def tokens_of(frames: list[list[int]]) -> list[int]:
    return [token for frame in frames for token in ORPHEUS.frame_tokens(frame)]


@given(frames_of, st.lists(st.integers(0, 9), max_size=9))
def test_whole_frames_pass_in_any_portions(frames: list[list[int]], portions: list[int]) -> None:
    assert assemble(tokens_of(frames), portions) == ([tuple(f) for f in frames], 0)


@given(frames_of, st.data())
def test_one_bad_id_costs_at_most_its_frame(frames: list[list[int]], data: st.DataObject) -> None:
    tokens = tokens_of(frames)
    at = data.draw(st.integers(0, len(tokens) - 1))
    stray = data.draw(st.integers(0, 156_939).filter(lambda t: t != ORPHEUS.end_of_speech))
    broken = data.draw(
        st.sampled_from(
            [tokens[:at] + tokens[at + 1 :], [*tokens[:at], tokens[at], *tokens[at:]], [*tokens[:at], stray, *tokens[at:]]]
        )
    )
    got, dropped = assemble(broken)
    hit = at // 7
    before, after = [tuple(f) for f in frames[:hit]], [tuple(f) for f in frames[hit + 1 :]]
    assert got[: len(before)] == before
    assert len(got) >= len(frames) - 1
    assert got[len(got) - len(after) :] == after
    assert dropped == len(broken) - 7 * len(got)


@given(st.lists(st.integers(-5, 157_000)))
def test_any_ids_give_legal_frames_and_every_id_is_accounted_for(tokens: list[int]) -> None:
    frames, dropped = assemble(tokens)
    assert all(0 <= code < 4096 for frame in frames for code in frame)
    assert dropped + 7 * len(frames) == sum(t != ORPHEUS.end_of_speech for t in tokens)


def test_code_0_is_kept_and_4096_is_none() -> None:
    assert assemble(ORPHEUS.frame_tokens([0] * 7)) == ([(0,) * 7], 0)
    with pytest.raises(ValueError, match="4096"):
        ORPHEUS.token(6, 4096)
    past = ORPHEUS.first_code + 4096 * 6 + 4096  # what "code 4096 of slot 6" would be
    assert assemble([*ORPHEUS.frame_tokens([1] * 7)[:6], past]) == ([], 7)


def test_the_prompt_is_the_published_one() -> None:
    assert ORPHEUS.prompt_ids([1, 2]) == [128259, 128000, 1, 2, 128009, 128260, 128261, 128257]
    assert (ORPHEUS.first_code, ORPHEUS.last_code) == (128266, 156937)
