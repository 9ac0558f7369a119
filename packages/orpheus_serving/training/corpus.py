"""Speech on disk, ready for a GPU: one file of samples and one line a recording.

corpus/audio.i16      mono PCM, 24 kHz, little-endian int16, recordings one after another
corpus/index.jsonl    {"start": sample, "samples": n, "voice": "ava", "text": "..."} in the same order
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

SAMPLE_RATE = 24000


@dataclass(frozen=True, slots=True)
class Recording:
    start: int
    samples: int
    voice: str
    text: str


class CorpusWriter:
    """Appends recordings; what was written survives an interruption up to the last whole line."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        done = read_index(folder) if (folder / "index.jsonl").exists() else []
        self.position = done[-1].start + done[-1].samples if done else 0
        self.audio = (folder / "audio.i16").open("r+b" if done else "wb")
        self.audio.seek(self.position * 2)
        self.index = (folder / "index.jsonl").open("a" if done else "w", encoding="utf-8")

    def add(self, pcm: np.ndarray, voice: str, text: str) -> None:
        """`pcm` [samples] int16 at 24 kHz."""
        self.audio.write(np.ascontiguousarray(pcm, dtype="<i2").data)
        record = Recording(self.position, len(pcm), voice, text)
        self.index.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")
        self.position += len(pcm)

    def close(self) -> None:
        self.audio.close()
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_index(folder: Path) -> list[Recording]:
    with (folder / "index.jsonl").open(encoding="utf-8") as lines:
        return [Recording(**json.loads(line)) for line in lines if line.endswith("\n")]


def read_audio(folder: Path) -> np.ndarray:
    """All samples [N] int16, mapped rather than loaded."""
    return np.memmap(folder / "audio.i16", dtype="<i2", mode="r")


def hours(recordings: Iterable[Recording]) -> float:
    return sum(r.samples for r in recordings) / SAMPLE_RATE / 3600
