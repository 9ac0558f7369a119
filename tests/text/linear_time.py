"""Whether a function's time grows with its input's length and not with its square, by a ratio within one run."""

from __future__ import annotations

import time
from collections.abc import Callable

GROWTH = 16


def assert_linear(work: Callable[[str], object], piece: str, length: int = 2000) -> None:
    """Linear work takes GROWTH times longer for GROWTH times the text, quadratic work GROWTH times that: allow 4."""

    def seconds(characters: int) -> float:
        text = piece * (characters // len(piece))
        start = time.process_time()
        work(text)
        return time.process_time() - start

    seconds(length)
    for _attempt in range(3):
        small = min(seconds(length) for _ in range(3))
        large = seconds(GROWTH * length)
        if large < 4 * GROWTH * small + 0.005:
            return
    raise AssertionError(f"{length} characters of {piece!r}: {small:.4f} s, {GROWTH} times as many: {large:.4f} s")
