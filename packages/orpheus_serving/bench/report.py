"""Outcomes of a level -> one row of numbers; rows -> a table; and what the machine did meanwhile."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .load import Load, Outcome

JITTER_BUFFER = 0.1  # seconds


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p95, p99 (nearest rank) in milliseconds."""
    ordered = sorted(values)
    row: dict[str, float | None] = {}
    for share in (50, 95, 99):
        rank = -(-share * len(ordered) // 100)
        row[f"p{share}"] = round(1000 * ordered[max(rank, 1) - 1], 1) if ordered else None
    return row


def summarise(
    outcomes: Sequence[Outcome], load: Load, machine: Mapping[str, Any] | None = None, gpu_price: float | None = None
) -> dict[str, Any]:
    """The counted requests as numbers. A request that failed is not real time, and has no other numbers.

    gpu_price: of an hour of the GPU; gives the cost of an hour of speech in the same money.
    """
    counted = [o for o in outcomes if o.counted]
    good = [o for o in counted if o.error is None]
    whole = max((o.start + o.took for o in outcomes), default=0.0)
    audio_rate = sum(o.audio for o in outcomes) / whole if whole else 0.0
    row: dict[str, Any] = {
        "level": load.level,
        "arrivals": load.arrivals,
        "requests": len(counted),
        "errors": dict(Counter(o.error for o in counted if o.error is not None)),
        "ttfb_ms": percentiles([o.ttfb for o in good if o.ttfb is not None]),
        "first_speech_ms": percentiles([o.first_speech for o in good if o.first_speech is not None]),
        "lateness_ms": percentiles([o.lateness for o in good]),
        "real_time_share": sum(o.lateness <= JITTER_BUFFER for o in good) / len(counted) if counted else 0.0,
        "audio_s": round(statistics.mean([o.audio for o in good]), 2) if good else 0.0,
        "audio_s_per_s": round(audio_rate, 1),
        "machine": dict(machine or {}),
    }
    if gpu_price is not None and audio_rate:
        row["cost_per_hour_of_speech"] = round(gpu_price / audio_rate, 5)
    return row


COLUMNS = (
    ("streams", lambda row: str(row["level"]) + ("" if row["arrivals"] == "closed" else " P")),
    ("requests", lambda row: str(row["requests"])),
    ("TTFB p50/p95/p99 ms", lambda row: "/".join(f"{v:.0f}" if v is not None else "-" for v in row["ttfb_ms"].values())),
    ("late p50/p95/p99 ms", lambda row: "/".join(f"{v:.0f}" if v is not None else "-" for v in row["lateness_ms"].values())),
    ("real time", lambda row: f"{100 * row['real_time_share']:.1f} %"),
    ("audio s/s", lambda row: f"{row['audio_s_per_s']:.0f}"),
    ("errors", lambda row: str(sum(row["errors"].values()))),
    ("CPU", lambda row: f"{row['machine'].get('cpu_cores', 0):.1f}"),
    ("GPU", lambda row: f"{row['machine']['gpu_busy']:.0f} %" if row["machine"].get("gpu_busy") is not None else "-"),
)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """For people, a line a level; P marks Poisson arrivals."""
    cells = [[name for name, _ in COLUMNS], *([cell(row) for _, cell in COLUMNS] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


@contextlib.contextmanager
def watch_machine() -> Iterator[dict[str, Any]]:
    """Busy cores and the GPU's busy share while the block runs, for a server on this machine; filled in at its end."""
    seen: dict[str, Any] = {}
    before = _cpu_seconds()
    shares: list[float] = []
    gpu = _gpu_reader(shares)
    started = os.times().elapsed
    try:
        yield seen
    finally:
        took = os.times().elapsed - started
        after = _cpu_seconds()
        if before is not None and after is not None and took > 0:
            seen["cpu_cores"] = round((after - before) / took, 2)
        if gpu is not None:
            gpu.terminate()
            gpu.wait()
        if shares:
            seen["gpu_busy"] = round(statistics.mean(shares), 1)


def _cpu_seconds() -> float | None:
    """Seconds that all cores together have worked since boot, waiting for disks not counted. None where there is no /proc."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, *rest = map(int, fields)
    return (user + nice + system + sum(rest[:2])) / os.sysconf("SC_CLK_TCK")


def _gpu_reader(shares: list[float]) -> subprocess.Popen[str] | None:
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500"]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None

    def read() -> None:
        for line in process.stdout or ():
            with contextlib.suppress(ValueError):
                shares.append(float(line))

    threading.Thread(target=read, daemon=True).start()
    return process
