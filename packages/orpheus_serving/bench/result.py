"""A measurement as a file: `{name, date, commit, command, hardware, versions, settings, levels: [{...}, ...]}`.

Every table in the documentation is made of such files, from `benchmarks/results/`, by `orpheus-serving bench table`.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from .plan import BenchError

PACKAGES = (
    "orpheus-serving", "torch", "transformers", "vllm", "tensorrt-llm", "numpy", "uvicorn", "uvloop", "httpx", "websockets",
)  # fmt: skip


def write_result(
    path: str | Path,
    name: str,
    levels: Sequence[Mapping[str, Any]],
    *,
    settings: Mapping[str, Any] | None = None,
    commit: str | None = None,
    hardware: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write the file, with this process' command line and machine; returns its path.

    commit: of the code measured, where this is no git checkout. hardware: of the server, where it is another machine.
    more: other keys of the file. Keys in the command line are left out.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "name": name,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit or _commit(),
        "command": command_line(sys.argv),
        "hardware": dict(hardware or _hardware()),
        "versions": _versions(),
        "settings": dict(settings or {}),
        "levels": [dict(level) for level in levels],
        **(more or {}),
    }
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    return path


def read_result(path: str | Path) -> dict[str, Any]:
    """What `write_result` wrote. Raises BenchError where it is something else."""
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"{path}: {error}") from error
    levels = result.get("levels") if isinstance(result, dict) else None
    if not isinstance(levels, list) or not levels or not all(isinstance(level, dict) for level in levels):
        raise BenchError(f"{path}: not a result of the bench: there are no levels in it")
    return {"name": Path(path).stem} | result


def command_line(arguments: Sequence[str]) -> str:
    """How this process was started, without the secrets in it."""
    shown = [Path(arguments[0]).name]
    for before, argument in itertools.pairwise(arguments):
        if before == "--api-key":
            argument = "KEY"
        argument = re.sub(r"^(--api-key=).*", r"\1KEY", argument)
        argument = re.sub(r"([?&]api_key=)[^&]*", r"\1KEY", argument)
        shown.append(re.sub(r"^(\w+://)[^/@]*@", r"\1KEY@", argument))
    return shlex.join(shown)


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
        )
    except OSError:
        return None
    return done.stdout.strip() or None


def _hardware() -> dict[str, Any]:
    hardware: dict[str, Any] = {"machine": platform.machine(), "cpu": _cpu(), "cores": os.cpu_count(), "gpu": None}
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return hardware
    if done.returncode == 0 and done.stdout.strip():
        hardware["gpu"] = done.stdout.strip().splitlines()
    return hardware


def _cpu() -> str | None:
    """The processor's name, where Linux says it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        return None
    return found[1] if found else None


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
