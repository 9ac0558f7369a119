"""What this machine does while a load runs: busy cores, and of each GPU its busy share, memory and power.

    with Watch() as watch: ...
    watch.use(begin, end)        means over a stretch of the monotonic clock

Busy of a GPU, as nvidia-smi says it, is the share of time in which anything ran on it, not how full it was.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

EVERY = 0.5  # seconds
QUERY = ("index", "utilization.gpu", "memory.used", "power.draw")


class Watch:
    """Samples in threads of its own from entering to leaving. Without /proc or nvidia-smi what they would say is missing."""

    def __init__(self) -> None:
        self._cpu: list[tuple[float, float]] = []  # moment, busy seconds since boot
        self._gpu: list[tuple[float, int, list[float | None]]] = []  # moment, index, the rest of QUERY
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._smi: subprocess.Popen[str] | None = None

    def __enter__(self) -> Watch:
        command = [
            "nvidia-smi",
            f"--query-gpu={','.join(QUERY)}",
            "--format=csv,noheader,nounits",
            "-lms",
            str(int(1000 * EVERY)),
        ]
        with contextlib.suppress(OSError):
            self._smi = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self._threads.append(threading.Thread(target=self._read_gpu, daemon=True))
        self._threads.append(threading.Thread(target=self._read_cpu, daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._smi is not None:
            self._smi.terminate()
            self._smi.wait()
        for thread in self._threads:
            thread.join()

    def use(self, begin: float, end: float) -> dict[str, Any]:
        """Means of the samples within; a key is missing where there are none.

        cpu_cores: busy cores, waiting for disks not counted. gpu_busy: per cent, of the busiest GPU. gpus: of each.
        """
        use: dict[str, Any] = {}
        cpu = [sample for sample in self._cpu if begin <= sample[0] <= end]
        if len(cpu) >= 2:
            use["cpu_cores"] = round((cpu[-1][1] - cpu[0][1]) / (cpu[-1][0] - cpu[0][0]), 2)
        gpus: dict[int, list[list[float | None]]] = {}
        for moment, index, values in self._gpu:
            if begin <= moment <= end:
                gpus.setdefault(index, []).append(values)
        if gpus:
            use["gpus"] = {str(index): _means(samples) for index, samples in sorted(gpus.items())}
            busy = [gpu["busy"] for gpu in use["gpus"].values() if gpu["busy"] is not None]
            use |= {"gpu_busy": max(busy)} if busy else {}
        return use

    def _read_cpu(self) -> None:
        while True:
            busy = _cpu_seconds()
            if busy is None:
                return
            self._cpu.append((time.monotonic(), busy))
            if self._stop.wait(EVERY):
                return

    def _read_gpu(self) -> None:
        assert self._smi is not None
        for line in self._smi.stdout or ():
            cells = [_number(cell) for cell in line.split(",")]
            if len(cells) == len(QUERY) and cells[0] is not None:
                self._gpu.append((time.monotonic(), int(cells[0]), cells[1:]))


def _means(samples: list[list[float | None]]) -> dict[str, float | None]:
    names = ("busy", "memory_mib", "power_w")
    columns = [[value for value in column if value is not None] for column in zip(*samples, strict=True)]
    return {name: round(statistics.mean(column), 1) if column else None for name, column in zip(names, columns, strict=True)}


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:  # [N/A]
        return None


def _cpu_seconds() -> float | None:
    """Seconds that all cores together have worked since boot. None where there is no /proc."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, *rest = map(int, fields)
    return (user + nice + system + sum(rest[:2])) / os.sysconf("SC_CLK_TCK")
