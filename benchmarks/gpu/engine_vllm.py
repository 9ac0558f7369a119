"""The vLLM engine without codec or HTTP: ours and stock settings, on one checkpoint.

    python benchmarks/gpu/engine_vllm.py run --checkpoint DIR --engine ours --out benchmarks/results/x.json
    python benchmarks/gpu/engine_vllm.py run --checkpoint DIR --engine stock --out ...
    python benchmarks/gpu/engine_vllm.py greedy --out ...      the same greedy tokens as `transformers`?

DIR is what `orpheus-serving synth-checkpoint DIR` writes. At each level all streams start within a second; each says 60 prompt
ids and reads to its end. A stream is real time if each frame is there when it is due: playback starts 100 ms after the third
frame, which is the first that yields sound. In ours a frame is what an output holds; stock is told `stream_interval=7`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from orpheus_serving.bench.result import write_result
from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.vllm import VllmEngine

FRAME_SECONDS = 2048 / 24000
JITTER_BUFFER = 0.1
PROMPT = 60
SAMPLINGS: dict[str, dict[str, float]] = {
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


def engine_of(kind: str, checkpoint: Checkpoint, **arguments: Any) -> VllmEngine:
    if kind == "stock":
        return StockEngine(checkpoint.source, checkpoint.layout, constrained=False, **arguments)
    return VllmEngine(checkpoint.source, checkpoint.layout, **arguments)


def percentile(values: list[float], share: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


async def stream(engine: VllmEngine, prompt: list[int], sampling: Sampling, name: str, delay: float) -> list[tuple[float, int]]:
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


async def level(engine: VllmEngine, checkpoint: Checkpoint, streams: int, sampling: dict[str, float]) -> dict[str, Any]:
    text = "A sentence of some length, as people say it. " * 3
    prompt = checkpoint.prompt(text, None)
    prompt = [*prompt[: PROMPT - 4], *prompt[-4:]]
    began = time.monotonic()
    runs = await asyncio.gather(
        *(
            stream(engine, prompt, Sampling(1200, **sampling, seed=n if n % 2 else None), f"{streams}-{n}", random.random())
            for n in range(streams)
        )
    )
    events = [run[1:] for run in runs]
    took = max(run[0][0] + run[-1][0] for run in runs) - began
    tokens = [run[-1][1] for run in events]
    speeds = [(run[-1][1] - run[0][1]) / (run[-1][0] - run[0][0]) for run in events if len(run) > 1]
    return {
        "streams": streams,
        "tokens": sum(tokens),
        "tokens_per_stream": [min(tokens), max(tokens)],
        "tokens_per_s": sum(tokens) / took,
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
            row = {"sampling": name} | await level(engine, checkpoint, streams, SAMPLINGS[name])
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
                "prompt": PROMPT,
            }
            write_result(args.out, f"engine vllm {args.engine}", levels, settings=settings, commit=args.commit)
    await engine.stop()


async def greedy(args: argparse.Namespace) -> None:
    """Greedy tokens of ours and of stock vLLM against transformers, which is asked after each of their tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    from orpheus_serving.synth_checkpoint import build_synth_lm

    folder = args.checkpoint or tempfile.mkdtemp()
    if args.checkpoint is None:
        build_synth_lm(folder, "tiny", seconds=3, codec=False)
    checkpoint = Checkpoint(folder)
    prompts = [checkpoint.prompt(f"Sentence number {n}. " * (1 + n % 5), "tara") for n in range(24)]
    said: dict[str, list[list[int]]] = {}
    for kind in ("ours", "stock"):
        engine = engine_of(kind, checkpoint, max_streams=32, weights="bf16", kv_cache="bf16", memory=12 << 30, eager=True)
        await engine.start()

        async def speak(number: int, engine: VllmEngine = engine) -> list[int]:
            sampling = Sampling(400, temperature=0, repetition_penalty=1.0 if number % 2 else 1.1)
            return [token async for ids in engine.generate(prompts[number], sampling, str(number)) for token in ids]

        said[kind] = await asyncio.gather(*map(speak, range(len(prompts))))
        alone = await speak(1)
        print(kind, "alone as in company:", alone == said[kind][1], flush=True)
        await engine.stop()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda()
    rows = []
    for kind, speeches in said.items():
        equal = differing = 0
        worst = 0.0
        for number in range(1, len(prompts), 2):  # those without a penalty, which transformers' logits do not have either
            ids = [*prompts[number], *speeches[number]]
            with torch.inference_mode():
                logits = model(torch.tensor([ids], device="cuda")).logits[0, len(prompts[number]) - 1 : -1].float()
            best = logits.max(-1).values
            chosen = logits.gather(1, torch.tensor(speeches[number], device="cuda")[:, None])[:, 0]
            equal += int((chosen == best).sum())
            differing += int((chosen < best).sum())
            worst = max(worst, float((best - chosen).max()))
        ends = [speech[-1] == checkpoint.layout.end_of_speech for speech in speeches]
        slots = all(checkpoint.layout.slot(t) == i % 7 for speech in speeches for i, t in enumerate(speech[:-1]))
        rows.append(
            {
                "engine": kind,
                "tokens_equal": equal,
                "tokens_differing": differing,
                "largest_difference_of_logits": worst,
                "ended": sum(ends),
                "valid_slots": slots,
            }
        )
    pairs = list(zip(said["ours"], said["stock"], strict=True))
    rows.append({"engine": "ours against stock", "speeches_equal": sum(a == b for a, b in pairs), "of": len(pairs)})
    for row in rows:
        print(row, flush=True)
    write_result(args.out, "engine vllm greedy", rows, commit=args.commit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "greedy"))
    parser.add_argument("--checkpoint")
    parser.add_argument("--engine", choices=("ours", "stock"), default="ours")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 128, 256, 384, 512])
    parser.add_argument("--sampling", nargs="+", choices=tuple(SAMPLINGS), default=["authors"])
    parser.add_argument("--max-streams", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit")
    args = parser.parse_args()
    asyncio.run(run(args) if args.what == "run" else greedy(args))


if __name__ == "__main__":
    main()
