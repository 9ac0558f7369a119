"""What is read of the machine: its cores, and GPUs as nvidia-smi prints them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orpheus_serving.bench.machine import Watch

SMI = """#!/bin/sh
echo "0, 90, 1000, 300.5"
echo "1, 10, 10, [N/A]"
echo "0, 70, 3000, 299.5"
echo "a line of another kind"
exec cat  # goes on until it is stopped
"""


def test_each_gpu_has_its_own_means_and_the_busiest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(SMI)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    began = time.monotonic()
    with Watch() as watch:
        while len(watch._gpu) < 3:
            assert time.monotonic() - began < 30
    use = watch.use(began, time.monotonic())
    assert use["gpus"] == {
        "0": {"busy": 80.0, "memory_mib": 2000.0, "power_w": 300.0},
        "1": {"busy": 10.0, "memory_mib": 10.0, "power_w": None},
    }
    assert use["gpu_busy"] == 80.0
    assert "gpus" not in watch.use(began - 2, began - 1)


def test_busy_cores_are_those_of_the_stretch() -> None:
    watch = Watch()
    watch._cpu = [(10.0, 100.0), (12.0, 104.0), (14.0, 105.0)]
    assert watch.use(9.0, 13.0) == {"cpu_cores": 2.0}
    assert watch.use(11.0, 15.0) == {"cpu_cores": 0.5}
    assert watch.use(13.0, 15.0) == {}


def test_without_nvidia_smi_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with Watch() as watch:
        pass
    assert "gpus" not in watch.use(0.0, time.monotonic())
