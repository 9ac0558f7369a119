"""What a training run leaves behind: a progress bar, a CSV line a report, a plot, and checkpoints to resume from."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm


class TimeBox:
    """A run that ends after `seconds` or `steps`, whichever comes first; `fraction` drives the schedules.

    Time spent before a resume counts: `spent` is saved with the checkpoint.
    """

    def __init__(self, seconds: float, steps: int, spent: float = 0.0, step: int = 0) -> None:
        self.seconds, self.steps, self.step = seconds, steps, step
        self.began = time.monotonic() - spent

    @property
    def spent(self) -> float:
        return time.monotonic() - self.began

    @property
    def fraction(self) -> float:
        return min(1.0, max(self.spent / self.seconds, self.step / self.steps))

    def rate(self, warmup: int, hold: float, floor: float) -> float:
        """Learning-rate factor: linear warm-up over `warmup` steps, 1 until `hold` of the run, linear to `floor`."""
        f = self.fraction
        decay = 1.0 if f < hold else max(floor, (1 - f) / (1 - hold))
        return min(1.0, (self.step + 1) / warmup) * decay


class RunLog:
    """`log(step, loss=...)` appends to NAME.csv in `folder` and shows the numbers on the bar; `plot()` draws them.

    None is what was not measured at that step. A loss that is no number raises FloatingPointError: nothing good follows.
    """

    def __init__(self, folder: Path, name: str, total: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.csv"
        self.name = name
        self.bar = tqdm(total=total, desc=name, mininterval=5, dynamic_ncols=True)
        self.fields: list[str] = []

    def log(self, step: int, **measured: float | None) -> None:
        lost = [k for k, v in measured.items() if v is not None and not math.isfinite(v)]
        if lost:
            raise FloatingPointError(f"{self.name}, step {step}: {lost[0]} is {measured[lost[0]]}; give a lower --rate")
        values: dict[str, float | None] = {"step": step, "time": round(time.time(), 2)}
        values |= {k: None if v is None else round(float(v), 5) for k, v in measured.items()}
        fresh = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(values))
            if fresh:
                writer.writeheader()
            writer.writerow(values)
        self.bar.n = step
        self.bar.set_postfix({k: v for k, v in values.items() if k not in ("step", "time") and v is not None})

    def plot(self) -> None:
        """NAME.png beside the CSV, one panel a column. Skipped where matplotlib is missing."""
        self.bar.close()
        try:
            import matplotlib

            matplotlib.use("Agg")
            import matplotlib.pyplot as plt
        except ImportError:
            return
        with self.path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        columns = [c for c in rows[0] if c not in ("step", "time")] if rows else []
        if not columns:
            return
        figure, panels = plt.subplots(len(columns), 1, figsize=(7, 2 * len(columns)), squeeze=False, sharex=True)
        for panel, column in zip(panels[:, 0], columns, strict=True):
            panel.plot([int(r["step"]) for r in rows], [float(r[column] or "nan") for r in rows])
            panel.set_ylabel(column)
        panels[-1, 0].set_xlabel("step")
        figure.tight_layout()
        figure.savefig(self.path.with_suffix(".png"), dpi=80)
        plt.close(figure)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that an interruption leaves the old one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


def load(path: Path, device: str) -> dict[str, Any] | None:
    return torch.load(path, map_location=device, weights_only=True) if path.exists() else None
