"""One frame of one stream on this machine's CPU: the streaming decoder against the `snac` module's window of 4 frames.

    python benchmarks/codec.py [--threads 2] [--frames 40]

Both have the full-size SNAC shape with random weights and run in turn, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from orpheus_serving.codec.decoder import OPEN_END, StreamingDecoder
from orpheus_serving.codec.noise_codec import SNAC_24KHZ, noise_snac
from orpheus_serving.codec.weights import fold


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--frames", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = noise_snac(SNAC_24KHZ)
    decoder = StreamingDecoder(fold(model), 1)
    codes = torch.randint(0, 4096, (args.frames, 7))
    window = [torch.randint(0, 4096, (1, 4 * n)) for n in (1, 2, 4)]
    step, whole = [], []
    for n in range(args.frames):
        row = torch.cat([torch.tensor([0, 4 * n, OPEN_END, 1]), codes[n]])[None]
        step.append(timed(lambda row=row: decoder.step(row)))
        whole.append(timed(lambda: model.decode(window)))
    ours, theirs = (statistics.median(x[5:]) for x in (step, whole))
    print(f"{args.threads} threads, {args.frames} frames of 85.3 ms, median of one frame, one stream")
    print(f"streaming decoder       {ours * 1000:7.1f} ms (best {min(step) * 1000:.1f})")
    print(f"snac, window of 4       {theirs * 1000:7.1f} ms (best {min(whole) * 1000:.1f})")
    print(f"ratio                   {theirs / ours:7.2f}")


def timed(function) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
