"""How many real-time streams one core can turn from the TensorRT-LLM runtime's text into token ids.

    python benchmarks/briton.py [--seconds 2]

Prints, for texts cut in several ways, the tokens a second of the parser alone and of the whole engine path (one chunk
at a time through `BritonEngine`, as the runtime hands it over), and how many streams that is: a stream in real time
says 82.03 tokens a second.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Iterator

from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.briton import BritonEngine, CustomTokenParser
from orpheus_serving.tokens import TokenLayout

TOKENS_PER_SECOND = 7 * 24_000 / 2_048  # seven ids are 2,048 samples at 24 kHz
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


def generate(pieces: list[str]) -> int:
    class Runtime:
        async def predict(self, model_input: dict, request: object) -> AsyncIterator[str]:
            async def text() -> AsyncIterator[str]:
                for piece in pieces:
                    yield piece

            return text()

    async def run() -> int:
        engine = BritonEngine(Runtime(), LAYOUT, lambda ids: "prompt")
        await engine.start()
        return sum([len(ids) async for ids in engine.generate([1], Sampling(10**9), "r")])

    return asyncio.run(run())


def rates(work, pieces: list[str], seconds: float) -> Iterator[float]:
    until = time.perf_counter() + seconds
    while (start := time.perf_counter()) < until:
        count = work(pieces)
        yield count / (time.perf_counter() - start)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=2.0, help="how long each line is measured")
    seconds = options.parse_args().seconds
    print(f"{'text arrives':<20}{'what':<10}{'tokens/s (median)':>18}{'real-time streams':>20}")
    for cut in ("a token each", "7 characters each", "a frame each"):
        pieces = chunks(2_000, cut)
        for name, work in (("parser", parse), ("engine", generate)):
            found = sorted(rates(work, pieces, seconds))
            rate = found[len(found) // 2]
            print(f"{cut:<20}{name:<10}{rate:>18,.0f}{rate / TOKENS_PER_SECOND:>20,.0f}")


if __name__ == "__main__":
    main()
