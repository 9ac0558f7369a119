"""The codec on an NVIDIA GPU: time and error of a step, beside the `snac` package's window of four frames.

    python benchmarks/codec_gpu.py --out benchmarks/results/x.json [--batches 1 64 256] [--compile streaming window]

Streaming decoder: CUDA graphs in fp32, with TF32 products and in fp16, then compiled (once, for all sizes) in graphs as well.
`error` is the largest difference between its samples and those of the CPU in float32, `noise_db` the power of the difference
against that of the signal; `share` is the part of a frame's 85.3 ms that a step of `batch` frames takes, its copies included.
Window of four: `snac` decodes the last four frames for each new one, in fp32 with TF32 products, under a CUDA graph;
compiled (for that size) if asked.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from orpheus_serving.bench.result import write_result
from orpheus_serving.codec.decoder import OPEN_END, StreamingDecoder
from orpheus_serving.codec.graphs import Runner
from orpheus_serving.codec.noise_codec import SNAC_24KHZ, noise_snac
from orpheus_serving.codec.weights import fold

FRAME_MS = 2048 / 24
CHECKED = 8  # frames of one stream that are compared with the CPU's


def streaming(weights: Any, batches: list[int], compiled: bool, dtype: torch.dtype = torch.float16) -> list[dict[str, Any]]:
    most = max(batches)
    decoder = StreamingDecoder(weights, most, "cuda", dtype)
    runner = Runner(decoder, most, compile=compiled)
    runner.buckets = sorted({max(batch, 2) for batch in batches} if compiled else batches)
    began = time.perf_counter()
    runner.warm_up()
    warm = time.perf_counter() - began
    tf32 = torch.get_float32_matmul_precision() == "high"
    row = {"compiled": compiled, "warm_up_s": warm, "precision": "fp16" if dtype == torch.float16 else "tf32" if tf32 else "fp32"}
    return [measured(runner, weights, batch, row) for batch in batches]


def measured(runner: Runner, weights: Any, batch: int, row: dict[str, Any]) -> dict[str, Any]:
    reference = StreamingDecoder(weights, 1)
    codes = torch.randint(0, 4096, (CHECKED, batch, 7), generator=torch.Generator().manual_seed(1)).tolist()
    worst, noise, signal, steps = 0.0, 0.0, 0.0, []

    def compare(ours: Any, theirs: torch.Tensor) -> None:
        nonlocal worst, noise, signal
        difference = theirs - torch.from_numpy(ours)
        worst = max(worst, float(difference.abs().max()))
        noise += float((difference.double() ** 2).sum())
        signal += float((theirs.double() ** 2).sum())

    for n in range(48):
        rows = [[slot, 4 * n, OPEN_END, slot, *codes[n % CHECKED][slot]] for slot in range(batch)]
        began = time.perf_counter()
        samples = runner.step(rows)
        steps.append(time.perf_counter() - began)
        if n < CHECKED:
            compare(samples[-1:], reference.step(torch.tensor([[0, *rows[-1][1:]]])))
        if n == CHECKED - 1:
            rows = [[slot, 4 * CHECKED, OPEN_END, slot, *[0] * 7] for slot in range(batch)]
            compare(runner.tail(rows)[-1:], reference.tail(torch.tensor([[0, *rows[-1][1:]]])))
    step = statistics.median(steps[CHECKED:]) * 1e3
    return row | {
        "decoder": "streaming",
        "batch": batch,
        "step_ms": step,
        "share": step / FRAME_MS,
        "error": worst,
        "noise_db": 10 * math.log10(noise / signal),
    }


def window_of_four(model: Any, batch: int, compiled: bool) -> dict[str, Any]:
    model = model.cuda().eval()
    codes = [torch.randint(0, 4096, (batch, 4 * n), device="cuda") for n in (1, 2, 4)]

    def plain(*codes: torch.Tensor) -> torch.Tensor:
        samples: torch.Tensor = model.decode(list(codes))
        return samples[..., 2048:4096]

    decode: Callable[..., torch.Tensor] = torch.compile(plain) if compiled else plain
    stream = torch.cuda.Stream()
    began = time.perf_counter()
    with torch.cuda.stream(stream):
        for _ in range(3):
            decode(*codes)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        samples = decode(*codes)
    warm = time.perf_counter() - began
    steps = []
    for _ in range(24):
        began = time.perf_counter()
        graph.replay()
        samples.cpu()
        steps.append(time.perf_counter() - began)
    step = statistics.median(steps[4:]) * 1e3
    tf32 = torch.get_float32_matmul_precision() == "high"  # of products; convolutions are TF32 unless PyTorch is told otherwise
    return {
        "decoder": "snac, window of 4",
        "precision": "tf32" if tf32 else "fp32",
        "compiled": compiled,
        "batch": batch,
        "step_ms": step,
        "share": step / FRAME_MS,
        "warm_up_s": warm,
    }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--compile", nargs="*", choices=("streaming", "window"), default=["streaming"], help="a minute each")
    parser.add_argument("--commit")
    args = parser.parse_args()
    model = noise_snac(SNAC_24KHZ)
    weights = fold(model)
    levels: list[dict[str, Any]] = []

    def add(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            print(row, flush=True)
        levels.extend(rows)
        write_result(args.out, "codec on a GPU", levels, settings={"chosen_precision": "fp16"}, commit=args.commit)

    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        add(streaming(weights, args.batches, False, torch.float32))
    add(streaming(weights, args.batches, False))
    add([window_of_four(model, max(args.batches), compiled=False)])
    if "streaming" in args.compile:
        add(streaming(weights, args.batches, True))
    if "window" in args.compile:
        add([window_of_four(model, max(args.batches), compiled=True)])


if __name__ == "__main__":
    main()
