"""What a stream costs the host: the real server under load, with a GPU that is simulated.

    python benchmarks/host.py --out benchmarks/results/host.json [--levels 256 384 448 512]

    client processes <- HTTP -> simulated_gpu.py: loop, engine's and codec's thread -> a row a level

Hundreds of streams on one GPU ask more of Python than of most servers: its threads share one interpreter, and while they wait
for it the GPU has nothing to do. This shows it on any machine, since all that runs beside a GPU runs here as well: the engine
cuda with its pacing, the codec's thread, text, encoders, HTTP. What holds here need not hold on a GPU; what does not hold here is
the host's fault.

A row: the level's time to first byte and share of streams in real time, as `orpheus-serving bench` has them; and over the
seconds in which most was spoken the processor time of each thread for a frame (85.3 ms of audio), in microseconds, frames a
second, rows of a step, frames of a codec step, and frames of a piece of audio as it leaves the codec.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu.serving import serving

from orpheus_serving.bench.cli import Bench
from orpheus_serving.bench.plan import Load, Target
from orpheus_serving.bench.result import read_result, write_result
from orpheus_serving.bench.tables import result_table

THREADS = ("loop", "engine", "codec")
PATIENCE = 60.0  # seconds until the server has to be ready


def busiest(path: Path) -> dict[str, Any]:
    """Means over the seconds with at least nine tenths of the most frames a second."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    seconds = [{name: b[name] - a[name] for name in b} for a, b in itertools.pairwise(lines) if b.keys() == a.keys()]
    most = max(second["frames"] / second["at"] for second in seconds)
    seconds = [second for second in seconds if second["frames"] / second["at"] >= 0.9 * most]
    total = {name: sum(second[name] for second in seconds) for name in seconds[0]}
    per_frame = {name: round(1e6 * total[name] / total["frames"], 1) for name in THREADS}
    return {
        "frames_per_s": round(total["frames"] / total["at"]),
        "us_a_frame": per_frame,
        "rows_a_step": round(total["rows"] / total["steps"]),
        "frames_a_codec_step": round(total["frames"] / total["codec_steps"], 1),
        "frames_a_piece": round(total["frames"] / max(1, total["pieces"]), 2),
    }


def measure(level: int, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        counts, script = Path(folder) / "counts.jsonl", Path(__file__).with_name("simulated_gpu.py")
        command = [sys.executable, str(script), "--streams", str(options.streams), "--counts", str(counts)]
        with serving(command, Path(folder) / "server.log", PATIENCE) as url:
            target = Target(f"{url}/v1/audio/speech", "simulated GPU", {"response_format": "pcm", "max_tokens": 819})
            load = Load(level, "closed", options.seconds, 10.0, 10.0, options.processes, texts=("medium", "long"), seed=level)
            row = Bench().measure(target, load)
        ttfb = {name: round(row["ttfb_ms"][name]) for name in ("p50", "p95")}
        heard = {"ttfb_ms": ttfb, "real_time_share": row["real_time_share"], "audio_s_per_s": row["audio_s_per_s"]}
        return {"streams": level, "requests": row["requests"], **heard, "holds": row["holds"], **busiest(counts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, nargs="+", default=[256, 384, 448, 512])
    parser.add_argument("--streams", type=int, default=640, help="that the engine holds at once")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=2, help="clients")
    parser.add_argument("--name", default="host beside a simulated GPU")
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for level in options.levels:
        rows.append(measure(level, options))
        write_result(options.out, options.name, rows, settings={"streams": options.streams}, commit=options.commit)
    print(result_table(read_result(options.out)))


if __name__ == "__main__":
    main()
