"""Prepared data: one parquet row an utterance.

voice: string   text: string   seconds: float   codes: list<uint16>, 7 a frame in slot order
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SLOTS = 7


@dataclass(frozen=True, slots=True)
class Prepared:
    voice: str
    text: str
    seconds: float
    codes: np.ndarray  # [F, 7] uint16


def write_prepared(path: Path, rows: Sequence[Prepared]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lengths = np.cumsum([0, *(r.codes.size for r in rows)])
    flat = np.concatenate([r.codes.reshape(-1) for r in rows]) if rows else np.zeros(0, np.uint16)
    table = pa.table({
        "voice": [r.voice for r in rows], "text": [r.text for r in rows],
        "seconds": pa.array([r.seconds for r in rows], pa.float32()),
        "codes": pa.LargeListArray.from_arrays(pa.array(lengths, pa.int64()), pa.array(flat.astype(np.uint16))),
    })  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")


def read_prepared(paths: Iterable[Path]) -> list[Prepared]:
    import pyarrow.parquet as pq

    rows: list[Prepared] = []
    for path in paths:
        table = pq.read_table(path)
        column = table["codes"].combine_chunks()
        flat, offsets = column.values.to_numpy(), column.offsets.to_numpy()
        voices, texts, seconds = (table[n].to_pylist() for n in ("voice", "text", "seconds"))
        rows += [
            Prepared(v, t, s, flat[a:b].reshape(-1, SLOTS))
            for v, t, s, a, b in zip(voices, texts, seconds, offsets[:-1], offsets[1:], strict=True)
        ]
    return rows
