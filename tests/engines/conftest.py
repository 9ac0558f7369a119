from __future__ import annotations

from pathlib import Path

import pytest
import torch

from orpheus_serving.noise_checkpoint import build_noise_lm


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny matrices gain nothing from threads, and a busy machine loses much by them."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_noise_lm(tmp_path_factory.mktemp("noise"))
