"""The order of need, and how many are in it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from orpheus_serving.engines.pacing import LEAD, by_need


@dataclass(eq=False)
class Stream:
    heard: float


AHEAD = st.lists(st.floats(-5, 5), max_size=40)  # seconds
NOW = 1000.0


def asked(ahead: list[float]) -> tuple[list[Stream], list[Stream], int]:
    streams = [Stream(NOW + seconds) for seconds in ahead]
    return streams, *by_need(streams, NOW)


@given(AHEAD)
def test_everybody_has_a_place_and_the_least_is_first(ahead: list[float]) -> None:
    streams, ordered, in_need = asked(ahead)
    assert sorted(map(id, ordered)) == sorted(map(id, streams))
    assert [stream.heard for stream in ordered] == sorted(stream.heard for stream in streams)
    assert 0 <= in_need <= len(streams)


@given(AHEAD)
def test_who_is_behind_is_in_need_and_who_has_the_lead_is_not(ahead: list[float]) -> None:
    _, ordered, in_need = asked(ahead)
    assert all(stream.heard > NOW for stream in ordered[in_need:])
    assert all(stream.heard < NOW + LEAD for stream in ordered[:in_need])


@given(AHEAD, st.floats(0, 2))
def test_with_less_ahead_no_fewer_are_in_need(ahead: list[float], less: float) -> None:
    assert asked([seconds - less for seconds in ahead])[2] >= asked(ahead)[2]


@given(st.integers(1, 200), st.floats(0.01, 0.99))
def test_where_all_have_alike_a_share_is_in_need(count: int, share: float) -> None:
    """The share of the lead that they lack: no jump between none and all."""
    assert abs(asked([LEAD * (1 - share)] * count)[2] - share * count) <= 1
