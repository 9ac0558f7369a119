"""The codec on an NVIDIA GPU: CUDA graphs and torch.compile against the CPU's samples, and the time of a step by batch size.

    python benchmarks/codec_gpu.py [--out result.json] [--batches 1 8 64 256]

Prints the largest difference between GPU and CPU samples of the same frames, then the milliseconds of a step with its copies.
The results of an H200 are in benchmarks/results/codec_h200.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from orpheus_serving.codec.decoder import OPEN_END, StreamingDecoder
from orpheus_serving.codec.graphs import Runner
from orpheus_serving.codec.noise_codec import SNAC_24KHZ, noise_snac
from orpheus_serving.codec.weights import fold


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    args = parser.parse_args()
    weights = fold(noise_snac(SNAC_24KHZ))
    result: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%F")}
    for compiled in (False, True):
        times = {}
        for batch in args.batches:
            decoder, reference = StreamingDecoder(weights, batch, "cuda"), StreamingDecoder(weights, 1)
            runner = Runner(decoder, batch, compile=compiled)
            runner.buckets = [batch]
            began = time.perf_counter()
            runner.warm_up()
            warm = time.perf_counter() - began
            codes = torch.randint(0, 4096, (8, batch, 7)).tolist()
            worst, steps = 0.0, []
            for n in range(48):
                rows = [[slot, 4 * n, OPEN_END, slot, *codes[n % 8][slot]] for slot in range(batch)]
                began = time.perf_counter()
                samples = runner.step(rows)
                steps.append(time.perf_counter() - began)
                if n < 8:
                    one = reference.step(torch.tensor([[0, *rows[-1][1:]]]))
                    worst = max(worst, float((one - torch.from_numpy(samples[-1:])).abs().max()))
                if n == 7:
                    tail = runner.tail([[s, 4 * 8, OPEN_END, s, *[0] * 7] for s in range(batch)])
                    one = reference.tail(torch.tensor([[0, 4 * 8, OPEN_END, batch - 1, *[0] * 7]]))
                    worst = max(worst, float((one - torch.from_numpy(tail[-1:])).abs().max()))
            times[batch] = {"step_ms": statistics.median(steps[8:]) * 1e3, "error": worst, "warm_up_s": warm}
            print("compiled" if compiled else "eager", batch, times[batch], flush=True)
        result["compiled" if compiled else "graphs only"] = times
        if args.out:
            args.out.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
