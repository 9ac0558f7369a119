"""The comparison of greedy ids that a GPU host runs, with the embedded engine in vLLM's place."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.engines.base import Engine, Sampling
from orpheus_serving.engines.transformers import TransformersEngine
from orpheus_serving.synth_checkpoint import TINY_SHAPE

LAYOUT = TINY_SHAPE.layout
FILE = Path(__file__).parents[2] / "benchmarks" / "gpu" / "greedy_vllm.py"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("greedy_vllm", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "greedy_vllm", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PROMPTS", 3)
    monkeypatch.setattr(module, "SECONDS", 1.0)
    monkeypatch.setattr(module, "MOST", 120)
    return module


def embedded(checkpoint: Checkpoint, kind: str) -> Engine:
    constrained = kind == "constrained"
    return TransformersEngine(
        checkpoint.source, checkpoint.layout, device="cpu", dtype="float32", max_length=400, constrained=constrained
    )


class Altered:
    """An engine whose ids pass through `alter(index in the utterance, id)`; None ends the utterance there."""

    def __init__(self, engine: Engine, alter: Any) -> None:
        self._engine = engine
        self._alter = alter

    async def start(self) -> None:
        await self._engine.start()

    async def stop(self) -> None:
        await self._engine.stop()

    async def generate(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> AsyncGenerator[list[int], None]:
        index = 0
        async for ids in self._engine.generate(prompt, sampling, request_id):
            for token in ids:
                changed = self._alter(index, token)
                if changed is None:
                    return
                yield [changed]
                index += 1


def run(bench: ModuleType, folder: Path, make: Any = embedded, limit: float = 1000) -> tuple[bool, list[dict[str, Any]]]:
    good = asyncio.run(bench.run(folder / "checkpoint", folder / "x.json", limit=limit, commit="c", make=make, shape=TINY_SHAPE))
    result = json.loads((folder / "x.json").read_text())
    assert result["commit"] == "c"
    return good, result["levels"]


def test_the_plain_model_is_its_own_reference(bench: ModuleType, tmp_path: Path) -> None:
    good, rows = run(bench, tmp_path)
    assert good
    assert [row["engine"] for row in rows] == ["constrained", "stock"]
    for row in rows:
        assert row["equal"] == row["tokens"] > 200
        assert row["tokens"] / 4 < row["decided"] == row["decided_equal"]
        assert row["ended"] == 3
        assert row["first_difference"] is None
        assert row["differences"] == []
        assert 0 < row["noise"] < 1
    assert rows[1]["utterances_as_constrained"] == 3


def test_ids_that_are_not_the_best_are_found(bench: ModuleType, tmp_path: Path) -> None:
    def alter(index: int, token: int) -> int:
        return LAYOUT.token(LAYOUT.slot(token), (LAYOUT.code(token) + 1) % 1024) if 20 < index < 30 else token

    good, rows = run(bench, tmp_path, lambda *which: Altered(embedded(*which), alter))
    assert not good
    for row in rows:
        assert row["equal"] <= row["tokens"] - 27
        assert row["decided_equal"] < row["decided"]
        assert row["first_difference"]["at"] == 21
        assert row["differences"][0]["lost_by"] > row["noise"]


@pytest.mark.parametrize(
    "alter",
    [
        lambda index, token: None if token == LAYOUT.end_of_speech else token,
        lambda index, token: 5 if index == 9 else token,
    ],
    ids=["no end", "no audio"],
)
def test_utterances_must_be_frames_and_end(bench: ModuleType, tmp_path: Path, alter: Any) -> None:
    good, rows = run(bench, tmp_path, lambda *which: Altered(embedded(*which), alter))
    assert not good
    assert not rows[0]["valid_frames"] or rows[0]["ended"] == 0


def test_with_little_time_stock_is_left_out(bench: ModuleType, tmp_path: Path) -> None:
    good, rows = run(bench, tmp_path, limit=30)
    assert good
    assert [row["engine"] for row in rows] == ["constrained"]
