"""What a step of our own GPU engine costs, and where: by size, and kernel by kernel.

    python benchmarks/gpu/step.py --checkpoint DIR --out benchmarks/results/x.json [--rows 1 128 256] [--context 500]

DIR is what `orpheus-serving synth-checkpoint DIR` writes. Every row is a stream that goes on, with `context` ids behind it.
`steps_ms` is the time of a step when steps are sent back to back. Products are also timed alone, in the ways that PyTorch offers:
scales by row and channel, one scale for each side, and bf16.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from orpheus_serving.bench.result import write_result
from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.config import read_config
from orpheus_serving.engines.cuda_kernels import FP8, PAGE
from orpheus_serving.engines.cuda_model import NEWEST, RowModel
from orpheus_serving.engines.llama import Weights

REPEAT = 40


def timed(work: Callable[[], Any]) -> float:
    """Milliseconds of one call, of many back to back."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    work()
    torch.cuda.synchronize()
    begin.record()
    for _ in range(REPEAT):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / REPEAT


def step_times(model: RowModel, rows: int, context: int, profile: bool) -> dict[str, Any]:
    pages = -(-(context + 1) // PAGE)
    for place in range(rows):
        model.admit(place, [0] * context, Sampling(1 << 20), place, range(1 + place * pages, 1 + (place + 1) * pages))
    places, positions, tokens = list(range(rows)), [context] * rows, [NEWEST] * rows
    model.step(places, positions, tokens).ids()
    assert model._stream is not None
    with torch.cuda.stream(model._stream):
        took = timed(lambda: model.step(places, positions, tokens))
    row = {"rows": rows, "context": context, "step_ms": took, "tokens_per_s_per_stream": 1000 / took}
    if profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(5):
                model.step(places, positions, tokens)
            torch.cuda.synchronize()
        kernels = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
        row["kernels_ms"] = {k.key[:70]: k.self_device_time_total / 5000 for k in kernels if k.self_device_time_total > 50}
    return row


def product_times(model: RowModel, rows: int) -> dict[str, Any]:
    """Milliseconds of all layers' products of one kind, in one graph: every weight is read from memory, as in a step."""
    row: dict[str, Any] = {"products_of_rows": rows}
    one = torch.ones((), device=model.device)
    for name in ("qkv", "output", "gate_up", "down"):
        products = [getattr(layer, name) for layer in model._layers]
        x = torch.randn(rows, products[0].weight.shape[1], device=model.device).to(FP8)
        scales = torch.ones(rows, 1, device=model.device)
        row[f"{name}.one_scale"] = graph_time([partial(fp8_product, x, one, p.weight, one) for p in products])
        row[f"{name}.by_row"] = graph_time([partial(fp8_product, x, scales, p.weight, p.channels[None]) for p in products])
        row[f"{name}.bf16"] = graph_time([partial(linear, x.bfloat16(), p.weight.bfloat16()) for p in products])
    return row


def fp8_product(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    return torch._scaled_mm(x, weight.T, scale_a=x_scale, scale_b=weight_scale, out_dtype=torch.bfloat16, use_fast_accum=True)


def graph_time(calls: Sequence[Callable[[], Any]]) -> float:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return timed(graph.replay)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 128, 256, 384, 512])
    parser.add_argument("--products", type=int, nargs="*", default=[8, 64, 128, 256, 512])
    parser.add_argument("--context", type=int, default=500)
    parser.add_argument("--profile", type=int, nargs="*", default=[1, 256], help="rows whose kernels are told apart")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit")
    args = parser.parse_args()
    checkpoint, device = Checkpoint(args.checkpoint), torch.device("cuda")
    with Weights(Path(args.checkpoint)) as weights:
        config, most = read_config(Path(args.checkpoint)), max(args.rows)
        model = RowModel(config, weights, checkpoint.layout, places=most, rows=most, length=4096, device=device)
    model.open_pages(max(args.rows) * -(-(args.context + 1) // PAGE) + 1)
    levels = []
    for rows in args.rows:
        levels.append(step_times(model, rows, args.context, rows in args.profile))
        print(levels[-1], flush=True)
    for rows in args.products:
        levels.append(product_times(model, rows))
        print(levels[-1], flush=True)
    write_result(args.out, "steps of engine cuda", levels, settings={"context": args.context}, commit=args.commit)


if __name__ == "__main__":
    main()
