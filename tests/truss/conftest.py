"""The repository's Truss on the genuine server: with a scripted engine injected, or with its own embedded one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from truss_control import Served, serve_injected

from orpheus_serving.codec.noise_codec import TINY, build_noise_codec
from orpheus_serving.noise_checkpoint import build_noise_lm


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`model_metadata.orpheus` for these tests: a checkpoint and a codec of noise."""
    folder = tmp_path_factory.mktemp("noise")
    return {
        "checkpoint": str(build_noise_lm(folder / "lm")),
        "codec": str(build_noise_codec(folder / "codec", TINY)),
        "voice": "noise",
    }


@pytest.fixture(scope="session")
def injected_server(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]) -> Iterator[Served]:
    with serve_injected(tmp_path_factory.mktemp("injected"), settings) as served:
        yield served


@pytest.fixture(scope="session")
def narrow_server(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]) -> Iterator[Served]:
    """One place only: whatever keeps it from the next request is seen."""
    with serve_injected(tmp_path_factory.mktemp("narrow"), settings, {"predict_concurrency": 1}) as served:
        yield served


@pytest.fixture
def injected(injected_server: Served) -> Served:
    injected_server.control.reset()
    return injected_server


@pytest.fixture
def narrow(narrow_server: Served) -> Served:
    narrow_server.control.reset()
    return narrow_server
