"""The edges of an utterance: the same samples however they were portioned, no late start, no click."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from orpheus_serving.audio.shaping import FADE, GATE, LONGEST_TRIM, PRE_ROLL, EdgeShaper

RATE = 8000
FADED = round(FADE * RATE)


def shape(samples: NDArray[np.float32], cuts: list[int] | None = None) -> tuple[NDArray[np.float32], int]:
    shaper = EdgeShaper(RATE)
    edges = [0, *sorted(c % (len(samples) + 1) for c in cuts or []), len(samples)]
    parts = [shaper.push(samples[a:b]) for a, b in itertools.pairwise(edges)]
    return np.concatenate([*parts, shaper.finish()]), shaper.trimmed


def speech(silence: float, sound: float, level: float = 0.5) -> NDArray[np.float32]:
    generator = np.random.default_rng(1)
    quiet = generator.normal(0, GATE / 20, round(silence * RATE))
    loud = generator.normal(0, level, round(sound * RATE)).clip(-1, 1)
    return np.concatenate([quiet, loud]).astype(np.float32)


@given(st.floats(0, 0.8), st.floats(0, 0.4), st.lists(st.integers(0, 10**6), max_size=12))
def test_portions_do_not_matter_and_nothing_else_is_lost(silence: float, sound: float, cuts: list[int]) -> None:
    samples = speech(silence, sound)
    whole, trimmed = shape(samples)
    pieces, _ = shape(samples, cuts)
    assert np.array_equal(pieces, whole)
    assert len(whole) == len(samples) - trimmed
    inner = slice(FADED, -FADED)
    assert np.array_equal(whole[inner], samples[trimmed:][inner])


def test_a_late_start_is_cut_to_the_pre_roll() -> None:
    shaped, trimmed = shape(speech(0.3, 0.3))
    assert trimmed == pytest.approx((0.3 - PRE_ROLL) * RATE, abs=0.010 * RATE)
    assert np.abs(shaped[: round((PRE_ROLL - 0.011) * RATE)]).max() < GATE


@pytest.mark.parametrize("level", [0.0, GATE / 20])
def test_no_more_than_the_longest_trim_is_cut(level: float) -> None:
    samples = np.full(2 * RATE, level, np.float32)
    _, trimmed = shape(samples)
    assert trimmed <= LONGEST_TRIM * RATE


def test_both_ends_reach_zero() -> None:
    shaped, _ = shape(np.full(RATE, 0.9, np.float32))
    assert shaped[0] == shaped[-1] == 0
    assert np.abs(np.diff(shaped)).max() <= 0.9 / (FADED - 1) + 1e-6


def test_nothing_and_very_little_are_fine() -> None:
    for count in (0, 1, 5):
        shaped, _ = shape(np.full(count, 0.5, np.float32))
        assert len(shaped) == count
