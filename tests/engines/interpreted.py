"""Triton's interpreter for tests: import this first. Skips the module where there is no Triton, or a GPU.

The interpreter (seen in 3.9) cuts to bf16 instead of rounding, and rounds to FP8 without the carry into the exponent, so that
31.9 becomes 16. PyTorch converts here instead, as the GPU does it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU", allow_module_level=True)

from triton import language as tl
from triton.runtime import interpreter

theirs = interpreter._convert_float


def convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
    if source != tl.float32 or target not in (tl.float8e4nv, tl.bfloat16):
        return theirs(data, source, target, rounding)
    numbers = torch.from_numpy(np.ascontiguousarray(data)).view(torch.float32)
    if target == tl.bfloat16:
        return numbers.bfloat16().view(torch.uint16).numpy().reshape(data.shape)
    return numbers.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(data.shape)


interpreter._convert_float = convert_float
