"""A measurement as a file: `{name, date, commit, command, hardware, versions, settings, levels: [{...}, ...]}`.

Every table in the documentation is made of such files, from `benchmarks/results/`.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("orpheus-serving", "torch", "transformers", "vllm", "tensorrt-llm", "numpy", "uvicorn")


def write_result(
    path: str | Path,
    name: str,
    levels: Sequence[Mapping[str, Any]],
    *,
    settings: Mapping[str, Any] | None = None,
    commit: str | None = None,
    hardware: Mapping[str, Any] | None = None,
) -> Path:
    """Write the file, with this process' command line and machine; returns its path.

    commit: of the code measured, where this is no git checkout. hardware: of the server, where it is another machine.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "name": name,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit or _commit(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "hardware": dict(hardware or _hardware()),
        "versions": _versions(),
        "settings": dict(settings or {}),
        "levels": [dict(level) for level in levels],
    }
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
        )
    except OSError:
        return None
    return done.stdout.strip() or None


def _hardware() -> dict[str, Any]:
    hardware: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count(), "gpu": None}
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return hardware
    if done.returncode == 0 and done.stdout.strip():
        hardware["gpu"] = done.stdout.strip().splitlines()
    return hardware


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
