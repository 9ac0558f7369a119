"""What a Truss's config.yaml becomes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from orpheus_serving.build import build_truss
from orpheus_serving.engines.base import Sampling
from orpheus_serving.settings import SettingsError


class Runtime:
    """The injected engine, which says nothing."""

    def __init__(self) -> None:
        self.inputs: list[dict[str, Any]] = []

    async def predict(self, model_input: dict[str, Any], request: Any) -> AsyncIterator[str]:
        self.inputs.append(model_input)

        async def nothing() -> AsyncIterator[str]:
            for text in ():
                yield text

        return nothing()


def config(noise_folder: Path, **more: Any) -> dict[str, Any]:
    return {"model_metadata": {"orpheus": {"checkpoint": str(noise_folder), "device": "cpu"} | more}}


@pytest.mark.parametrize(("built", "most"), [({"max_seq_len": 500}, 489), ({"max_seq_len": None}, 9000), ({}, 9000)])
async def test_an_injected_engine_is_asked_for_no_more_than_it_was_built_for(
    noise_folder: Path, built: dict[str, Any], most: int
) -> None:
    runtime = Runtime()
    truss = config(noise_folder) | {"trt_llm": {"build": built}}
    engine = build_truss(truss, noise_folder, trt_llm={"engine": runtime}).engine
    await engine.start()
    async for _ in engine.generate([1] * 10, Sampling(9000), "r"):
        pass
    assert runtime.inputs[0]["max_tokens"] == most


def test_an_engine_that_would_lose_its_event_loop_is_refused(noise_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"engine: vllm .* Truss.* use auto"):
        build_truss(config(noise_folder, engine="vllm"), noise_folder)
    monkeypatch.setenv("ORPHEUS_ENGINE", "vllm")
    with pytest.raises(SettingsError, match="engine"):
        build_truss(config(noise_folder), noise_folder)
    build_truss(config(noise_folder) | {"trt_llm": {}}, noise_folder, trt_llm={"engine": Runtime()})  # has no use for it
