"""examples/websocket: what the truss library says about it, and the genuine server running it with the embedded engine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from truss_control import PATIENCE, ROOT
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from orpheus_serving.truss_local import LocalTrussServer, build_app, offline_environment

EXAMPLE = ROOT / "examples" / "websocket"


LIBRARY = """
import pathlib, sys, truss
from truss.base.truss_config import TrussConfig
folder = pathlib.Path(sys.argv[1])
config = TrussConfig.from_yaml(folder / "config.yaml")
config.validate_forbid_extra()
truss.load(folder).validate()
print(config.runtime.transport.kind)
"""


def test_the_truss_library_accepts_it() -> None:
    command = [sys.executable, "-c", LIBRARY, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, env=offline_environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "websocket"


def test_its_machine_and_engine_are_the_roots() -> None:
    mine, root = (yaml.safe_load((folder / "config.yaml").read_text()) for folder in (EXAMPLE, ROOT))
    for key in ("resources", "trt_llm", "python_version", "secrets"):
        assert mine[key] == root[key]
    assert set(root["requirements"]) <= set(mine["requirements"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]) -> Iterator[LocalTrussServer]:
    app = build_app(EXAMPLE, tmp_path_factory.mktemp("websocket"), settings=settings)
    with LocalTrussServer(app) as server:
        yield server


@contextlib.contextmanager
def upgraded(server: LocalTrussServer) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{server.port}/v1/websocket", open_timeout=PATIENCE, max_size=None) as socket:
        yield socket


def rest(socket: ClientConnection) -> list[str | bytes]:
    frames = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            frames.append(socket.recv(PATIENCE))
    return frames


def test_deltas_become_speech(server: LocalTrussServer) -> None:
    with upgraded(server) as socket:
        for frame in (json.dumps({"voice": "noise", "max_tokens": 2000, "buffer_size": 10}), "Hel", "lo there.", "__END__"):
            socket.send(frame)
        frames = rest(socket)
        assert socket.close_code == 1000
    assert frames
    assert all(isinstance(frame, bytes) and len(frame) % 2 == 0 for frame in frames)


def test_a_fault_is_told(server: LocalTrussServer) -> None:
    with upgraded(server) as socket:
        socket.send('{"voice": "nobody"}')
        assert "the voices of" in json.loads(rest(socket)[-1])["error"]
        assert socket.close_code == 1008


def test_who_leaves_leaves_no_trouble(server: LocalTrussServer) -> None:
    with upgraded(server) as socket:
        socket.send("{}")
        socket.send("A long story, told to nobody. " * 20)
        assert socket.recv(PATIENCE)
    test_deltas_become_speech(server)
    assert "Traceback" not in Path(server.log).read_text(encoding="utf-8", errors="replace")
