"""Run a decoder's steps fast: fixed batch sizes, compiled on request, and on a GPU one CUDA graph for each.

    rows (ints) -> pinned host buffer -> one copy -> graph of the bucket's size -> one copy -> samples (numpy)

A batch is padded to the next bucket with rows that point at the decoder's spare slot. Buckets are close together, since a step
takes time in proportion to its rows. The graphs share their memory: one is replayed at a time, and what it says is copied before
the next. Compiled code for several rows has no bucket of one. On a CPU there are no graphs, and buckets for compiled code only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .decoder import OPEN_END, SLOT, StreamingDecoder


def buckets(most: int) -> list[int]:
    """1 to 8, then four an octave (10, 12, 14, 16, 20, ...), and `most`: a batch of n is padded by less than n / 4 rows."""
    sizes = {eighths << octave for octave in range(most.bit_length()) for eighths in range(1, 8)}
    return [*sorted(size for size in sizes if size < most), most]


@dataclass(slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    rows: Tensor  # on the device; the graph reads it
    samples: Tensor  # on the device; the graph writes it
    host_rows: Tensor  # pinned
    host_samples: Tensor  # pinned


class Runner:
    """`step` and `tail` of a decoder on lists of rows. One thread only; call `warm_up` on it first."""

    def __init__(self, decoder: StreamingDecoder, max_batch: int, compile: bool) -> None:
        self._decoder = decoder
        self._on_gpu = decoder.device.type == "cuda"
        self._compile = compile
        # Compiled code is made once, for any number of rows; but torch.compile makes code of its own for exactly one.
        least = min(2, max_batch) if compile else 1
        self.buckets = [size for size in buckets(max_batch) if size >= least]
        self._graphs: dict[tuple[str, int], _Graph] = {}
        self._stream = torch.cuda.Stream(decoder.device) if self._on_gpu else None
        self._step: Callable[[Tensor], Tensor] = decoder.step
        self._tail: Callable[[Tensor], Tensor] = decoder.tail

    def warm_up(self) -> None:
        """Compile and capture everything that a stream can reach."""
        if self._compile:
            self._step = torch.compile(self._decoder.step)
            self._tail = torch.compile(self._decoder.tail)
        spare = self._spare_row()
        pool = torch.cuda.graph_pool_handle() if self._on_gpu else None
        for size in (
            reversed(self.buckets) if self._on_gpu or self._compile else [1]
        ):  # the largest first: others fit into its memory
            for name, function in (("step", self._step), ("tail", self._tail)):
                if self._on_gpu:
                    self._graphs[name, size] = self._capture(function, size, pool)
                else:
                    function(self._rows([spare] * size))

    def step(self, rows: Sequence[Sequence[int]]) -> NDArray[Any]:
        """Rows as in `StreamingDecoder.step` -> samples [len(rows), frame_samples] float32"""
        return self._run("step", self._step, rows)

    def tail(self, rows: Sequence[Sequence[int]]) -> NDArray[Any]:
        """Rows as in `StreamingDecoder.tail` -> samples [len(rows), delay] float32"""
        return self._run("tail", self._tail, rows)

    def _rows(self, rows: Sequence[Sequence[int]]) -> Tensor:
        tensor = torch.tensor(rows, device=self._decoder.device)
        if self._compile and len(rows) > 1:
            torch._dynamo.mark_dynamic(tensor, 0)
        return tensor

    def _spare_row(self) -> list[int]:
        row = [0] * self._decoder.row_width
        row[SLOT], row[2] = self._decoder.slots, OPEN_END
        return row

    def _run(self, name: str, function: Callable[[Tensor], Tensor], rows: Sequence[Sequence[int]]) -> NDArray[Any]:
        count = len(rows)
        size = self.buckets[bisect_left(self.buckets, count)] if self._on_gpu or self._compile else count
        padded = [*rows, *[self._spare_row()] * (size - count)]
        if not self._on_gpu:
            return function(self._rows(padded))[:count].float().numpy()
        captured = self._graphs[name, size]
        captured.host_rows.numpy()[:] = np.asarray(padded, dtype=np.int64)
        with torch.cuda.stream(self._stream):
            captured.rows.copy_(captured.host_rows, non_blocking=True)
            captured.graph.replay()
            captured.host_samples.copy_(captured.samples, non_blocking=True)
        assert self._stream is not None
        self._stream.synchronize()
        return captured.host_samples.numpy()[:count].copy()

    def _capture(self, function: Callable[[Tensor], Tensor], size: int, pool: Any) -> _Graph:
        device = self._decoder.device
        rows = self._rows([self._spare_row()] * size)
        with torch.cuda.stream(self._stream):
            for _ in range(3):  # compile, tune, allocate
                function(rows)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=self._stream):
            samples = function(rows).float()
        return _Graph(
            graph,
            rows,
            samples,
            torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True),
            torch.empty(samples.shape, dtype=samples.dtype, pin_memory=True),
        )
