"""The highest level that holds: twice as many until one does not, then halves of what is between.

    holds(16) yes, 32 yes, 64 yes, 128 no, 96 yes, 112 no, 104 yes, 108 no -> 104

It presumes that a level above one that does not hold does not hold either. Levels near the limit hold one time and not the
next; that is why every try is recorded, and why steps finer than 5 % are not tried.
"""

from __future__ import annotations

from collections.abc import Callable

FINEST = 0.05  # of the level that holds


def search(holds: Callable[[int], bool], start: int, most: int) -> int:
    """The highest level up to `most` for which `holds` was true, 0 where it was for none. Asks once a level, `start` first."""
    low, high = 0, most + 1  # low holds; high does not, or is out of bounds
    level = min(start, most)
    while high - low > max(1, int(FINEST * low)):
        if holds(level):
            low = level
        else:
            high = level
        level = min(2 * low, most) if low and high > most else (low + high) // 2
    return low
