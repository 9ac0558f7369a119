"""What is held back, and for how long."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orpheus_serving.codec.pieces import HELD_SHARE, LONGEST, Pieces

RATE, FRAME = 24000, 2048
# Frames of any length at any intervals: (samples, seconds until the next).
FRAMES = st.lists(st.tuples(st.integers(0, 2 * FRAME), st.floats(0, 0.3)), max_size=60)


@given(FRAMES, st.sampled_from([0.5, 1.0, 2.0]), st.booleans())
def test_everything_leaves_in_order_and_little_is_held(frames: list[tuple[int, float]], speed: float, ends: bool) -> None:
    pieces, now, count = Pieces(RATE * speed), 1000.0, 0
    left: list[np.ndarray] = []
    runs_dry = now  # when a listener who hears each piece from when the first one came has heard all
    for samples, seconds in frames:
        pieces.add(np.arange(count, count + samples))
        count += samples
        if (piece := pieces.take(now)) is not None:
            runs_dry = (runs_dry if left else now) + len(piece) / RATE / speed
            left.append(piece)
        held = (count - sum(map(len, left))) / RATE / speed
        assert held <= max(0.0, min(LONGEST, HELD_SHARE * (runs_dry - now))) + 1e-9
        now += seconds
    if ends and (piece := pieces.rest()) is not None:
        left.append(piece)
        assert sum(map(len, left)) == count
    assert all(len(piece) for piece in left)
    assert np.concatenate([np.zeros(0, int), *left]).tolist() == list(range(sum(map(len, left))))


def test_pieces_grow_with_what_the_listener_has() -> None:
    """Frames come twice as fast as they are heard."""
    pieces, sizes = Pieces(RATE), []
    for number in range(60):
        pieces.add(np.zeros(FRAME))
        if (piece := pieces.take(number * FRAME / RATE / 2)) is not None:
            sizes.append(len(piece) // FRAME)
    assert sizes == sorted(sizes)
    assert sizes[0] == 1
    assert sizes[-1] == 4


def test_who_has_nothing_ahead_waits_for_nothing() -> None:
    """Frames come as fast as they are heard."""
    pieces = Pieces(RATE)
    for number in range(40):
        pieces.add(np.zeros(FRAME))
        assert pieces.take(number * FRAME / RATE) is not None
