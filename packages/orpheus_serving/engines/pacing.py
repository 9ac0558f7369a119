"""Who is in an engine's next step: a stream that is ahead of its listener lets others go first.

    streams, now -> in the order of what they have ahead, and how many of them are in need

Speech is heard at a known pace (`Sampling.pace`), and more speed than that is worth nothing to a listener. But a step is done the
sooner the fewer rows it has, and a newcomer waits for 21 of them before he hears a sound.

Of n streams, ordered by what they have ahead, the i-th is in need while that is less than LEAD (1 - i / n) seconds. So a step
gets as many rows as keep everybody in time, and no more: the more there is to do, the less everybody has ahead, and the more of
them are in need. With one limit for all, steps would have few rows and all rows by turns: who has least goes first, so all have
alike, and fall below the limit together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import attrgetter
from typing import Protocol, TypeVar

LEAD = 2.0  # seconds ahead of its listener with which a stream lets any other go first


class Heard(Protocol):
    heard: float
    "When all that it has said will have been heard, had it been heard from its first id on: seconds on the clock of `now`."


Stream = TypeVar("Stream", bound=Heard)


def by_need(streams: Iterable[Stream], now: float) -> tuple[list[Stream], int]:
    """The streams, those with the least ahead first, and how many of them, from the first on, are in need."""
    ordered = sorted(streams, key=attrgetter("heard"))
    count = len(ordered)
    return ordered, bisect_left(range(count), True, key=lambda i: ordered[i].heard - now >= LEAD * (1 - i / count))


def id_seconds(pace: float | None) -> float:
    """For how long an id is heard; 0 without a pace, so that such a stream is never ahead."""
    return 1 / pace if pace else 0.0
