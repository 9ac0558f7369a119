"""Functions in Python that numba compiles for the processor at hand, where it is installed. No compiler is needed.

`compiled` functions are called from Python and kept on disk, beside their source or in the user's cache, so that only the
first start pays for compiling them; `part` functions are called by compiled ones. Both let go of the interpreter's lock while
they run. Additions of a sum may be regrouped for vector registers, once, when the code is made: the same call gives the same
bits ever after. Infinities and NaNs are kept.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
OPTIONS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "arcp", "nsz"}, "nogil": True, "error_model": "numpy"}


@cache
def has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, or load what was compiled; without a place to keep it, compile at every start."""
    from numba import njit

    try:
        return njit(function, cache=True, **OPTIONS)
    except RuntimeError:
        return njit(function, **OPTIONS)


def part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Something that only compiled functions call: without the code by which Python would call it, it compiles faster."""
    from numba import njit

    return njit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)
