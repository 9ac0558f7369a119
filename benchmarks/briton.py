"""How many real-time streams one core can turn from the TensorRT-LLM runtime's text into token ids.

    python benchmarks/briton.py [--seconds 2] [--out benchmarks/results/briton_cpu.json]

For texts cut in several ways: the parser alone, and the whole engine path (`BritonEngine`, a chunk at a time as the runtime hands
it over), for one stream and for 256 that take turns at every chunk. The process keeps to one core, and the rates are of its CPU
time, so that other work on the machine does not count. 256 streams at 83 tokens/s are 21,248 tokens/s; "margin" is the rate over
that. The turns themselves, a cycle of the event loop for each chunk, are part of the time; the runtime's own work is not there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from orpheus_serving.bench.result import write_result
from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.briton import BritonEngine, CustomTokenParser
from orpheus_serving.tokens import TokenLayout

STREAMS = 256
TOKENS_PER_SECOND = 83  # of a stream: seven ids are 2,048 samples at 24 kHz, 82.03 a second
NEEDED = STREAMS * TOKENS_PER_SECOND
LAYOUT = TokenLayout()


def chunks(frames: int, cut: str) -> list[str]:
    numbers = [10 + 4096 * slot + (37 * frame + slot) % 4096 for frame in range(frames) for slot in range(7)]
    tokens = [f"<custom_token_{n}>" for n in numbers]
    if cut == "a token each":
        return tokens
    size = {"7 characters each": 7, "a frame each": 7 * 18}[cut]
    text = "".join(tokens)
    return [text[i : i + size] for i in range(0, len(text), size)]


def parse(pieces: list[str]) -> int:
    parser = CustomTokenParser()
    return sum(len(parser.feed(piece)) for piece in pieces)


class Runtime:
    """Says `pieces`; with `turns` it lets the others say theirs after each."""

    def __init__(self, pieces: list[str], turns: bool) -> None:
        self.pieces = pieces
        self.turns = turns

    async def predict(self, model_input: dict[str, Any], request: object) -> AsyncIterator[str]:
        async def text() -> AsyncIterator[str]:
            for piece in self.pieces:
                if self.turns:
                    await asyncio.sleep(0)
                yield piece

        return text()


def generate(pieces: list[str], streams: int = 1) -> int:
    async def read(engine: BritonEngine, name: str) -> int:
        return sum([len(ids) async for ids in engine.generate([1], Sampling(10**9), name)])

    async def run() -> int:
        engine = BritonEngine(Runtime(pieces, turns=streams > 1), LAYOUT, lambda ids: "prompt")
        await engine.start()
        return sum(await asyncio.gather(*(read(engine, str(n)) for n in range(streams))))

    return asyncio.run(run())


def rates(work: Callable[[], int], seconds: float) -> Iterator[float]:
    """Tokens per second of CPU time, of one run after another."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.process_time()
        count = work()
        yield count / (time.process_time() - start)


def measure(cut: str, seconds: float) -> Iterator[dict[str, Any]]:
    long, short = chunks(2_000, cut), chunks(40, cut)
    works: list[tuple[str, int, Callable[[], int]]] = [
        ("parser", 1, lambda: parse(long)),
        ("engine", 1, lambda: generate(long)),
        ("engine", STREAMS, lambda: generate(short, STREAMS)),
    ]
    for what, streams, work in works:
        found = sorted(rates(work, seconds))
        rate = found[len(found) // 2]
        yield {
            "text": cut,
            "what": what,
            "streams": streams,
            "runs": len(found),
            "tokens_per_cpu_s": rate,
            "real_time_streams": rate / TOKENS_PER_SECOND,
            "margin": rate / NEEDED,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each line is measured")
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    parser.add_argument("--commit", help="of the code, where this is no checkout")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    levels = []
    print(f"{'text arrives':<20}{'what':<9}{'streams':>8}{'tokens/s (median)':>20}{'real-time streams':>20}{'margin':>9}")
    for cut in ("a token each", "7 characters each", "a frame each"):
        for row in measure(cut, args.seconds):
            levels.append(row)
            print(
                f"{row['text']:<20}{row['what']:<9}{row['streams']:>8}{row['tokens_per_cpu_s']:>20,.0f}"
                f"{row['real_time_streams']:>20,.0f}{row['margin']:>9.1f}"
            )
    if args.out:
        settings = {"cores_used": 1, "tokens_per_s_needed": NEEDED, "seconds": args.seconds}
        write_result(args.out, "briton text path", levels, settings=settings, commit=args.commit)


if __name__ == "__main__":
    main()
