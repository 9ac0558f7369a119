"""The GPU engines without codec or HTTP, on one checkpoint.

    python benchmarks/gpu/engines.py --checkpoint DIR --engine cuda --out benchmarks/results/x.json

Engines: `cuda` (our own), `vllm` (with our model, sampler and scheduler in it), `stock` (vLLM as it comes). DIR is what
`orpheus-serving synth-checkpoint DIR` writes. At each level the streams start within --spread seconds; each has --prompt ids and
reads to its end. A stream is real time if each frame is there when it is due: playback starts 100 ms after the third frame, which
is the first that yields sound. In ours a frame is what an output holds; stock vLLM is told `stream_interval=7`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from pathlib import Path
from typing import Any

from orpheus_serving.bench.result import write_result
from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.engines.base import Engine, Sampling
from orpheus_serving.engines.vllm import VllmEngine

FRAME_SECONDS = 2048 / 24000
PACE = 7 / FRAME_SECONDS  # ids a second that a listener hears
JITTER_BUFFER = 0.1
SAMPLINGS: dict[str, dict[str, Any]] = {
    "authors": {"temperature": 0.6, "top_p": 0.8, "repetition_penalty": 1.1},
    "temperature": {"temperature": 0.6, "top_p": 1.0, "repetition_penalty": 1.0},
}


class StockEngine(VllmEngine):
    """vLLM as it comes: its own Llama, sampler and scheduler, an output every seven tokens."""

    def _arguments(self, folder: Path) -> dict[str, Any]:
        arguments = super()._arguments(folder) | {"stream_interval": 7}
        for name in ("scheduler_cls", "max_num_batched_tokens", "max_cudagraph_capture_size"):
            arguments.pop(name, None)
        return arguments


def engine_of(kind: str, checkpoint: Checkpoint, max_streams: int) -> Engine:
    if kind == "cuda":
        from orpheus_serving.engines.cuda import CudaEngine

        return CudaEngine(checkpoint.source, checkpoint.layout, max_streams=max_streams)
    if kind == "stock":
        return StockEngine(checkpoint.source, checkpoint.layout, constrained=False, max_streams=max_streams)
    return VllmEngine(checkpoint.source, checkpoint.layout, max_streams=max_streams)


def percentile(values: list[float], share: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


async def stream(engine: Engine, prompt: list[int], sampling: Sampling, name: str, delay: float) -> list[tuple[float, int]]:
    """(seconds since its start, tokens so far) for each list of ids."""
    await asyncio.sleep(delay)
    began, count, events = time.monotonic(), 0, []
    async for ids in engine.generate(prompt, sampling, name):
        count += len(ids)
        events.append((time.monotonic() - began, count))
    return [(began, 0), *events]


def at(events: list[tuple[float, int]], tokens: int) -> float:
    return next((when for when, count in events if count >= tokens), float("inf"))


def in_time(events: list[tuple[float, int]]) -> bool:
    start = at(events, 21) + JITTER_BUFFER
    frames = events[-1][1] // 7
    return all(at(events, 7 * n) <= start + (n - 3) * FRAME_SECONDS for n in range(4, frames + 1))


async def level(
    engine: Engine, checkpoint: Checkpoint, streams: int, args: argparse.Namespace, sampling: dict[str, Any]
) -> dict[str, Any]:
    text = "A sentence of some length, as people say it. " * 20
    prompt = checkpoint.prompt(text, None)
    prompt = [*prompt[: args.prompt - 4], *prompt[-4:]]
    began = time.monotonic()
    runs = await asyncio.gather(
        *(
            stream(
                engine,
                prompt,
                Sampling(args.tokens, **sampling, seed=n if n % 2 else None, pace=PACE),
                f"{streams}-{n}",
                args.spread * random.random(),
            )
            for n in range(streams)
        )
    )
    events = [run[1:] for run in runs]
    took = max(run[0][0] + run[-1][0] for run in runs) - began
    said = [run[-1][1] for run in events]
    speeds = [(run[-1][1] - run[0][1]) / (run[-1][0] - run[0][0]) for run in events if len(run) > 1]
    return {
        "streams": streams,
        "tokens": sum(said),
        "tokens_per_stream": [min(said), max(said)],
        "tokens_per_s": sum(said) / took,
        "per_stream_p50": percentile(speeds, 0.5),
        "per_stream_p1": percentile(speeds, 0.01),
        "first_frame_ms": [1000 * percentile([at(run, 7) for run in events], share) for share in (0.5, 0.95, 0.99)],
        "token_28_ms": [1000 * percentile([at(run, 28) for run in events], share) for share in (0.5, 0.95, 0.99)],
        "real_time_share": sum(map(in_time, events)) / streams,
    }


async def run(args: argparse.Namespace) -> None:
    checkpoint = Checkpoint(args.checkpoint)
    engine = engine_of(args.engine, checkpoint, max_streams=args.max_streams or max(args.levels))
    began = time.monotonic()
    await engine.start()
    ready = time.monotonic() - began
    print(f"{args.engine}: ready in {ready:.0f} s", flush=True)
    levels = []
    for name in args.sampling:
        for streams in args.levels:
            row = {"sampling": name} | await level(engine, checkpoint, streams, args, SAMPLINGS[name])
            levels.append(row)
            print(
                f"{args.engine} {name} {streams}: {row['tokens_per_s']:.0f} tokens/s, {row['per_stream_p50']:.0f} a stream, "
                f"first frame {row['first_frame_ms'][0]:.0f}/{row['first_frame_ms'][1]:.0f} ms, "
                f"28th {row['token_28_ms'][0]:.0f}/{row['token_28_ms'][2]:.0f} ms, real time {row['real_time_share']:.3f}, "
                f"lengths {row['tokens_per_stream']}",
                flush=True,
            )
            settings = {
                "engine": args.engine,
                "ready_s": ready,
                "max_streams": args.max_streams or max(args.levels),
                "prompt": args.prompt,
                "spread_s": args.spread,
            }
            write_result(args.out, f"engine {args.engine}", levels, settings=settings, commit=args.commit)
    await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--engine", choices=("cuda", "vllm", "stock"), default="cuda")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 128, 256, 384, 512])
    parser.add_argument("--tokens", type=int, default=1200, help="most of a stream")
    parser.add_argument("--prompt", type=int, default=60, help="ids")
    parser.add_argument("--spread", type=float, default=1.0, help="seconds over which a level's streams start")
    parser.add_argument("--sampling", nargs="+", choices=tuple(SAMPLINGS), default=["authors"])
    parser.add_argument("--max-streams", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit")
    args = parser.parse_args()
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
