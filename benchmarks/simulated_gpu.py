"""The real server with a GPU that takes its time and computes nothing, for `host.py`.

    python benchmarks/simulated_gpu.py --port PORT --streams N --counts FILE

    event loop <-> engine's thread -> Rows     sleeps as long as a step of so many rows took on an H200; every code is 0
               <-> codec's thread  -> Frames   the same for frames; all samples are noise

Times of steps are those of benchmarks/results/step_h200.json and codec_h200.json, times SLOWER: on a GPU the kernels of both wait
for each other. FILE gets a line of counts a second.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from orpheus_serving.bench.result import read_result
from orpheus_serving.build import noise_checkpoint
from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.codec import batcher
from orpheus_serving.codec.decoder import StreamingDecoder
from orpheus_serving.codec.graphs import buckets
from orpheus_serving.codec.weights import fold, load_snac
from orpheus_serving.engines import cuda
from orpheus_serving.engines.base import Sampling
from orpheus_serving.server import serve as server
from orpheus_serving.server.options import ServerOptions
from orpheus_serving.server.service import Service
from orpheus_serving.server.tracing import open_tracer
from orpheus_serving.settings import Settings
from orpheus_serving.synthesizer import Synthesizer
from orpheus_serving.tokens import TokenLayout

RESULTS = Path(__file__).parent / "results"
SLOWER = 1.3  # what a step of the engine beside the codec's took on an H200, against one alone
BUCKET = 32  # rows that a step's are padded to
THREADS = {"MainThread": "loop", "engine": "engine", "codec": "codec"}


def measured_seconds(file: str, size: str, only: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Sizes of steps and what they took, in seconds, those with `only` in their rows."""
    rows = [row for row in read_result(RESULTS / file)["levels"] if only.items() <= row.items()]
    points = sorted((float(row[size]), SLOWER * row["step_ms"] / 1000) for row in rows)
    return [at for at, _ in points], [seconds for _, seconds in points]


class Counts:
    """What the simulated GPU was asked for."""

    steps = rows = codec_steps = frames = pieces = 0


class Ticket:
    def __init__(self, drawn: list[int], done: float) -> None:
        self._drawn, self._done = drawn, done

    def ids(self) -> list[int]:
        time.sleep(max(0.0, self._done - time.monotonic()))
        return self._drawn


class Rows:
    """In the place of `RowModel`: every stream says code 0 for ever, one step after the other."""

    page_bytes = 1

    def __init__(
        self, config: Any, weights: Any, layout: TokenLayout, *, places: int, rows: int, length: int, device: Any
    ) -> None:
        self.rows = rows
        self.table_width = -(-length // cuda.PAGE)
        self._firsts = np.array(layout.firsts)
        self._prompts = np.zeros(places, np.int64)
        self._times = measured_seconds("step_h200.json", "rows", {})
        self._free = 0.0  # when the last step sent will be done

    def open_pages(self, count: int) -> None:
        pass

    def size(self, count: int) -> int:
        return min(-(-count // BUCKET) * BUCKET, self.rows)

    def admit(self, place: int, prompt: Sequence[int], sampling: Sampling, seed: int, pages: Sequence[int]) -> None:
        self._prompts[place] = len(prompt)

    def step(self, places: Sequence[int], positions: Sequence[int], tokens: Sequence[int]) -> Ticket:
        rows = np.array([places, positions, tokens])
        drawn = self._firsts[(rows[1] + 1 - self._prompts[rows[0]]) % len(self._firsts)].tolist()
        sizes, seconds = self._times
        size = self.size(len(places))
        took = float(np.interp(size, sizes, seconds)) + max(0.0, size - sizes[-1]) * seconds[-1] / sizes[-1]
        self._free = max(time.monotonic(), self._free) + took
        Counts.steps += 1
        Counts.rows += len(places)
        return Ticket(drawn, self._free)


class Frames:
    """In the place of the codec's `Runner`: noise."""

    def __init__(self, decoder: StreamingDecoder, max_batch: int, compile: bool) -> None:
        self._frame, self._delay = decoder.weights.frame_samples, decoder.delay
        self._noise = (0.1 * np.random.default_rng(0).standard_normal((max_batch, 2 * self._frame + self._delay))).astype(
            np.float32
        )
        compiled = {"compiled": True, "precision": "fp16", "decoder": "streaming"}
        self._sizes, self._seconds = measured_seconds("codec_h200.json", "batch", compiled)
        self.buckets = buckets(max_batch)

    def warm_up(self) -> None:
        pass

    def step(self, rows: Sequence[Sequence[int]]) -> NDArray[Any]:
        Counts.codec_steps += 1
        Counts.frames += len(rows)
        return self._run(rows, self._frame)

    def tail(self, rows: Sequence[Sequence[int]]) -> NDArray[Any]:
        return self._run(rows, self._delay)

    def _run(self, rows: Sequence[Sequence[int]], samples: int) -> NDArray[Any]:
        given = np.asarray(rows, dtype=np.int64)
        time.sleep(float(np.interp(self.buckets[bisect_left(self.buckets, len(given))], self._sizes, self._seconds)))
        return self._noise[: len(given), :samples].copy()


def thread_seconds() -> dict[str, float]:
    """Processor time of this process' threads so far, by THREADS' values."""
    ticks = os.sysconf("SC_CLK_TCK")
    seconds = {}
    for thread in threading.enumerate():
        if thread.name in THREADS:
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rsplit(")", 1)[1].split()
            seconds[THREADS[thread.name]] = (int(fields[11]) + int(fields[12])) / ticks
    return seconds


def report(path: Path) -> None:
    """A line of counts a second."""
    with path.open("w") as file:
        while True:
            time.sleep(1)
            counts = {name: getattr(Counts, name) for name in ("steps", "rows", "codec_steps", "frames", "pieces")}
            file.write(json.dumps({"at": time.monotonic(), **counts, **thread_seconds()}) + "\n")
            file.flush()


def counted(stream: Any, item: Any, put: Any = batcher.CodecStream._put) -> None:
    Counts.pieces += isinstance(item, np.ndarray)
    put(stream, item)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--counts", type=Path, required=True)
    arguments = parser.parse_args()
    streams = arguments.streams
    checkpoint = Checkpoint(noise_checkpoint())
    weights = fold(load_snac(checkpoint.codec, None))
    with patch.object(batcher, "Runner", Frames), patch.object(cuda, "RowModel", Rows):
        codec = batcher.Codec(StreamingDecoder(weights, 2 * streams), max_batch=streams)
        memory = 1 << 20  # pages, since one takes a byte
        engine = cuda.CudaEngine(checkpoint.source, checkpoint.layout, max_streams=streams, memory=memory, device="cpu")
        batcher.CodecStream._put = counted  # type: ignore[method-assign, assignment]
        threading.Thread(target=report, args=(arguments.counts,), name="report", daemon=True).start()
        options = ServerOptions(host="127.0.0.1", port=arguments.port)
        synthesizer = Synthesizer(checkpoint, engine, codec, Settings(max_streams=streams))
        with server.listen(options) as listener:
            server.run(Service(synthesizer, options, open_tracer(None)), listener)


if __name__ == "__main__":
    main()
