"""What all tests share: a checkpoint of noise with its codec, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from orpheus_serving.codec.noise_codec import build_noise_codec
from orpheus_serving.noise_checkpoint import build_noise_lm


@pytest.fixture(scope="session")
def noise_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build_noise_lm(tmp_path_factory.mktemp("noise") / "checkpoint", voices=("noise", "hiss"))
    build_noise_codec(folder / "codec")
    return folder
