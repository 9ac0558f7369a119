"""Our server with the vLLM engine and the GPU codec, loaded over HTTP by client processes on the same machine.

    python benchmarks/gpu/serving.py --checkpoint DIR --out benchmarks/results/x.json [--levels 1 64 128 256 320] [--search 256]

Starts `orpheus-serving serve` on a free port with what is set in the environment (ORPHEUS_*), waits until it is ready, runs the
levels and the search, and stops it. DIR is what `orpheus-serving synth-checkpoint DIR` writes. The results are written after
every level.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from orpheus_serving.bench.cli import Bench
from orpheus_serving.bench.plan import Load, Target
from orpheus_serving.bench.tables import terminal


@contextlib.contextmanager
def serving(command: Sequence[str], log: Path, patience: float) -> Iterator[str]:
    """Start a server by `command`, which takes --port, and stop it afterwards: its base URL, once it is ready.

    Raises TimeoutError or RuntimeError with the end of its log.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as out:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=out, stderr=subprocess.STDOUT, env=os.environ)
    url = f"http://127.0.0.1:{port}"
    began = time.monotonic()
    try:
        while True:
            if server.poll() is not None:
                raise RuntimeError(f"the server ended: {log.read_text()[-3000:]}")
            if time.monotonic() - began > patience:
                raise TimeoutError(f"the server was not ready after {patience} s: {log.read_text()[-3000:]}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health/ready", timeout=2) as answer:
                if answer.status == 200:
                    break
            time.sleep(0.5)
        print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
        yield url
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--levels", type=int, nargs="*", default=[1, 64, 128, 256, 320, 384])
    parser.add_argument("--poisson", type=int, nargs="*", default=[], help="levels with Poisson arrivals, after the others")
    parser.add_argument("--search", type=int, metavar="FROM", help="then look for the highest level that holds, from this one on")
    parser.add_argument("--then-poisson", type=float, default=80.0, help="after --search: Poisson at so many per cent of it")
    parser.add_argument("--websocket", action="store_true", help="over the native WebSocket protocol instead of HTTP")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--ramp", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=819, help="10 s: of an end that comes late")
    parser.add_argument("--gpu-price", type=float, help="money an hour; gives the cost of an hour of speech")
    parser.add_argument("--patience", type=float, default=300.0)
    parser.add_argument("--name", default="serving")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit")
    args = parser.parse_args()
    settings = {name: value for name, value in os.environ.items() if name.startswith("ORPHEUS_") and "KEY" not in name}
    bench = Bench(gpu_price=args.gpu_price, out=args.out, name=args.name, commit=args.commit, settings=settings)
    command = [sys.executable, "-m", "orpheus_serving.cli", "serve", "--checkpoint", args.checkpoint]
    with serving(command, args.out.with_suffix(".server.log"), args.patience) as url:
        body = {"max_tokens": args.max_tokens}
        if args.websocket:
            target = Target(url.replace("http", "ws", 1) + "/tts/websocket", "orpheus-serving", body)
        else:
            target = Target(f"{url}/v1/audio/speech", "orpheus-serving", {"response_format": "pcm"} | body)
        load = Load(1, "closed", args.seconds, args.ramp, 10.0, args.processes, texts=("medium", "long"))
        for level in args.levels:
            bench.measure(target, replace(load, level=level, seed=level))
        for level in args.poisson:
            bench.poisson(target, load, level)
        if args.search:
            highest = bench.search(target, replace(load, level=args.search), most=1024)
            if level := int(highest * args.then_poisson / 100):
                bench.poisson(target, load, level)
    print(terminal(bench.rows), flush=True)


if __name__ == "__main__":
    main()
