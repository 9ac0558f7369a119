"""The embedded engine's tokens a second for 1, 2, 4 and 8 streams, beside `LlamaForCausalLM.generate` in the same run.

    python benchmarks/engine.py [--checkpoint FOLDER] [--threads N]

Without a checkpoint it builds a random one of the demo voice's shape (20.5 M parameters). Both sides sample with the
same settings; `generate` runs one stream over the whole vocabulary, which is what it offers without code of one's own.
Rounds alternate between all of them, and the table gives the median and the best round: a machine that others use shows
in the distance between the two.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.transformers import TransformersEngine
from orpheus_serving.noise_checkpoint import NOISE_LAYOUT, build_noise_lm
from orpheus_serving.tokens import TokenLayout

STREAMS = (1, 2, 4, 8)
REAL_TIME = 24000 / 2048 * 7  # tokens a second of one stream: seven a frame of 2,048 samples at 24 kHz


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a folder with the noise checkpoint's token layout")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=int, default=280, help="ids a stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = options.checkpoint or build_noise_lm(folder, hidden=384, layers=10, heads=6, kv_heads=6, mlp=1024)
        asyncio.run(compare(checkpoint, options.tokens, options.rounds, options.device, options.threads))


async def compare(checkpoint: Path, tokens: int, rounds: int, device: str, threads: int) -> None:
    began = time.perf_counter()
    engine = TransformersEngine(checkpoint, NOISE_LAYOUT, device=device, max_streams=max(STREAMS), max_length=2048)
    await engine.start()
    print(f"engine loaded and warm in {time.perf_counter() - began:.1f} s, {threads} threads, {device}")
    generate = plain_generate(checkpoint, device)
    generate(20)

    rates: dict[str, list[float]] = {name: [] for name in ("generate", *map(str, STREAMS))}
    firsts: dict[str, list[float]] = {str(n): [] for n in STREAMS}
    for _ in range(rounds):
        began = time.perf_counter()
        rates["generate"].append(await asyncio.to_thread(generate, tokens) / (time.perf_counter() - began))
        for streams in STREAMS:
            began = time.perf_counter()
            results = await asyncio.gather(*(stream(engine, tokens, seed) for seed in range(streams)))
            rates[str(streams)].append(sum(count for count, _ in results) / (time.perf_counter() - began))
            firsts[str(streams)].append(1000 * max(first - began for _, first in results))
    await engine.stop()

    plain = statistics.median(rates["generate"])
    print(f"generate, 1 stream: {plain:.0f} tokens/s (best {max(rates['generate']):.0f})")
    print("streams  tokens/s  best  to generate  of real time, each  last first frame, ms")
    for streams in STREAMS:
        rate = statistics.median(rates[str(streams)])
        first = statistics.median(firsts[str(streams)])
        print(
            f"{streams:7}  {rate:8.0f}  {max(rates[str(streams)]):4.0f}  {rate / plain:10.2f}x"
            f"  {rate / streams / REAL_TIME:17.2f}x  {first:20.0f}"
        )


async def stream(engine: TransformersEngine, tokens: int, seed: int) -> tuple[int, float]:
    """Ids of one request, and when its first frame came. A request that ends early is followed by another."""
    count, first = 0, 0.0
    while count < tokens:
        seed += 100
        async for ids in engine.generate(prompt(NOISE_LAYOUT), Sampling(tokens - count, seed=seed), str(seed)):
            first = first or time.perf_counter()
            count += len(ids)
    return count, first


def plain_generate(checkpoint: Path, device: str) -> Callable[[int], int]:
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = LlamaForCausalLM.from_pretrained(checkpoint).to(device).eval()
    ids = torch.tensor([prompt(NOISE_LAYOUT)], device=device)

    def generate(tokens: int) -> int:
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                do_sample=True,
                temperature=0.6,
                top_p=0.8,
                repetition_penalty=1.1,
                pad_token_id=0,
            )
        return out.shape[1] - ids.shape[1]

    return generate


def prompt(layout: TokenLayout) -> list[int]:
    return layout.prompt_ids([20 + n % 60 for n in range(60)])


if __name__ == "__main__":
    main()
