"""What a model said, as codes: spoken on one machine, judged on another.

A .npz file. Per utterance: voices [N] str, texts [N] str, seeds [N], ended [N] bool, frames [N]; all codes [sum(frames), 7].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True)
class Said:
    voice: str
    seed: int
    text: str
    codes: np.ndarray  # [F, 7]
    ended: bool  # the model said that it had finished


def write_speech(path: Path, said: Sequence[Said]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path, voices=[s.voice for s in said], texts=[s.text for s in said], seeds=[s.seed for s in said],
        ended=[s.ended for s in said], frames=[len(s.codes) for s in said],
        codes=np.concatenate([s.codes for s in said]).astype(np.uint16),
    )  # fmt: skip


def read_speech(path: Path) -> list[Said]:
    with np.load(path) as table:
        ends = np.cumsum(table["frames"])
        pieces = np.split(table["codes"], ends[:-1])
        columns = (table[name].tolist() for name in ("voices", "seeds", "texts", "ended"))
        return [Said(v, s, t, c, e) for v, s, t, e, c in zip(*columns, pieces, strict=True)]
