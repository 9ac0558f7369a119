"""The GPU engines without codec or HTTP, on one checkpoint.

    python benchmarks/gpu/engines.py --checkpoint DIR --engine cuda --out benchmarks/results/x.json

Engines: `cuda` (our own), `vllm` (with our model, sampler and scheduler in it), `stock` (vLLM as it comes). DIR is what
`orpheus-serving synth-checkpoint DIR` writes.

The load is the bench's closed loop, so that a level here is comparable with the same level of `serving.py`: the same texts, the
first streams spread over --ramp seconds, each asked again as soon as it is over. Streams that begin in the --seconds after the
ramp count, and the load goes on until the last of them is over. A stream is real time if each frame is there when it is due:
playback starts 100 ms after the third frame, the first that yields sound. A level holds, as for a server, with 99 % of them and
with 95 % of the third frames within 300 ms. In ours a frame is what an output holds; stock vLLM is told `stream_interval=7`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from pathlib import Path
from typing import Any

from orpheus_serving.bench.plan import Load
from orpheus_serving.bench.report import JITTER_BUFFER, LIMITS
from orpheus_serving.bench.result import write_result
from orpheus_serving.bench.texts import mixed
from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.engines.base import Engine, Sampling
from orpheus_serving.engines.vllm import VllmEngine

FRAME_SECONDS = 2048 / 24000
PACE = 7 / FRAME_SECONDS  # ids a second that a listener hears
FIRST_SOUND = 21  # ids
TEXTS = ("medium", "long")  # as serving.py
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


Events = list[tuple[float, int]]  # (seconds since a stream was asked for, ids so far), an entry an output


async def stream(engine: Engine, prompt: list[int], sampling: Sampling, name: str) -> Events:
    began, count, events = time.monotonic(), 0, []
    async for ids in engine.generate(prompt, sampling, name):
        count += len(ids)
        events.append((time.monotonic() - began, count))
    return events


def at(events: Events, tokens: int) -> float:
    return next((when for when, count in events if count >= tokens), float("inf"))


def in_time(events: Events) -> bool:
    start = at(events, FIRST_SOUND) + JITTER_BUFFER
    frames = events[-1][1] // 7
    return all(at(events, 7 * n) <= start + (n - 3) * FRAME_SECONDS for n in range(4, frames + 1))


async def level(
    engine: Engine, checkpoint: Checkpoint, streams: int, args: argparse.Namespace, sampling: dict[str, Any]
) -> dict[str, Any]:
    load = Load(streams, seconds=args.seconds, ramp=args.ramp, texts=TEXTS)
    began = time.monotonic()
    counted: list[Events] = []
    prompts: list[int] = []
    tokens, running = 0, 0  # ids that came in the measured time; streams that count and are not over
    over = asyncio.Event()
    voice = checkpoint.voices[0] if checkpoint.voices else None

    async def client(number: int) -> None:
        nonlocal tokens, running
        draw = random.Random(f"closed {streams} {number}")
        await asyncio.sleep(load.ramp * number / streams)
        for turn in range(10**6):
            prompt = checkpoint.prompt(mixed(load.texts, draw), voice)
            asked = time.monotonic() - began
            counts = load.counts(asked)
            running += counts
            seed = number if number % 2 else None
            events = await stream(
                engine, prompt, Sampling(args.tokens, **sampling, seed=seed, pace=PACE), f"{streams}-{number}-{turn}"
            )
            for (when, now), (_, before) in zip(events, [(0.0, 0), *events], strict=False):
                tokens += (now - before) * load.measures(asked + when)
            if counts:
                counted.append(events)
                prompts.append(len(prompt))
                running -= 1
            if not running and time.monotonic() - began > load.end:
                over.set()

    clients = [asyncio.create_task(client(number)) for number in range(streams)]
    waiter = asyncio.create_task(over.wait())
    await asyncio.wait([waiter, *clients], return_when=asyncio.FIRST_COMPLETED)
    for task in [waiter, *clients]:
        task.cancel()
    for failed in [x for x in await asyncio.gather(*clients, return_exceptions=True) if isinstance(x, Exception)]:
        raise failed
    said = [events[-1][1] for events in counted]
    first = [1000 * percentile([at(events, FIRST_SOUND) for events in counted], share) for share in (0.5, 0.95, 0.99)]
    real_time = sum(map(in_time, counted)) / len(counted)
    return {
        "streams": streams,
        "requests": len(counted),
        "prompt_ids": sum(prompts) / len(prompts),
        "tokens_per_stream": [min(said), max(said)],
        "tokens_per_s": tokens / args.seconds,
        "audio_per_s": tokens / args.seconds / PACE,
        "first_frame_ms": [1000 * percentile([at(events, 7) for events in counted], share) for share in (0.5, 0.95, 0.99)],
        "first_sound_ms": first,
        "real_time_share": real_time,
        "holds": real_time >= LIMITS.real_time_share and first[1] <= 1000 * LIMITS.ttfb_p95,
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
                f"{args.engine} {name} {streams}: {row['requests']} requests, {row['tokens_per_s']:.0f} tokens/s = "
                f"{row['audio_per_s']:.0f} audio s/s, first sound {row['first_sound_ms'][0]:.0f}/"
                f"{row['first_sound_ms'][1]:.0f} ms, real time {row['real_time_share']:.3f}, holds {row['holds']}",
                flush=True,
            )
            settings = {
                "engine": args.engine,
                "ready_s": ready,
                "max_streams": args.max_streams or max(args.levels),
                "ramp_s": args.ramp,
                "seconds": args.seconds,
            }
            write_result(args.out, f"engine {args.engine}", levels, settings=settings, commit=args.commit)
            if args.until_one_fails and not row["holds"]:
                break
    await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--engine", choices=("cuda", "vllm", "stock"), default="cuda")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 128, 256, 384, 512])
    parser.add_argument("--until-one-fails", action="store_true", help="no level after the first that does not hold")
    parser.add_argument("--tokens", type=int, default=819, help="most of a stream; 819 are 10 s")
    parser.add_argument("--ramp", type=float, default=10.0, help="seconds over which a level is filled")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the measured time after that")
    parser.add_argument("--sampling", nargs="+", choices=tuple(SAMPLINGS), default=["authors"])
    parser.add_argument("--max-streams", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit")
    args = parser.parse_args()
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
