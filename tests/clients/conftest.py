"""Real clients against the real server. They run in an environment of their own (requirements/clients.txt, `make test-clients`),
the server in the project's: ORPHEUS_SERVER_PYTHON names its interpreter. Elsewhere these tests are not collected.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PATIENCE = 30.0  # seconds until a test gives up; nothing is slower on purpose
collect_ignore_glob = [] if find_spec("pipecat") and find_spec("livekit") else ["test_*.py"]


class Served:
    """The server and what goes on inside it."""

    def __init__(self, folder: Path, *options: str) -> None:
        python = os.environ.get("ORPHEUS_SERVER_PYTHON", sys.executable)
        self._process = subprocess.Popen(
            [python, str(HERE / "served.py"), str(folder), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        addresses = self._answer()
        self.url: str = addresses["url"]
        self.grpc: str = addresses["grpc"]
        self.ws_url = self.url.replace("http", "ws", 1)

    def ask(self, **order: Any) -> dict[str, Any]:
        """Give an order (see served.py) and get what goes on."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def said(self) -> list[str]:
        """What the model was asked to say since somebody asked."""
        return self.ask()["said"]

    def until_idle(self) -> float:
        """Wait until nothing is generated and every place and slot is free; returns when."""
        return self.until(lambda now: not now["active"] and not now["places"] and now["free_slots"] == 16)

    def until(self, condition: Any) -> float:
        end = time.monotonic() + PATIENCE
        while not condition(now := self.ask()):
            assert time.monotonic() < end, f"never came true: {now}"
            time.sleep(0.002)
        return time.monotonic()

    def stop(self) -> None:
        self._process.communicate(timeout=PATIENCE)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the server ended; its log is above"
        return json.loads(line)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """6 frames a chunk, as fast as they come; voices noise, hiss and tara; no keys."""
    server = Served(tmp_path_factory.mktemp("served"))
    yield server
    server.stop()


@pytest.fixture
def paced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """100 frames a chunk, none before the test says so."""
    server = Served(tmp_path_factory.mktemp("paced"), "--paced", "--frames", "100")
    yield server
    server.stop()
