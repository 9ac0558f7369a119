"""The test's end of the strings of `fixtures/scripted_extension.py`, and the server between the two."""

from __future__ import annotations

import json
import queue
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from orpheus_serving.noise_checkpoint import NOISE_LAYOUT
from orpheus_serving.truss_local import LocalTrussServer, build_app

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXTENSION = HERE / "fixtures" / "scripted_extension.py"

PATIENCE = 30.0  # seconds until a test gives up; nothing is slower on purpose


class Call:
    """One call of the engine's `predict`, as it goes on inside the server."""

    def __init__(self, connection: socket.socket, lines: Any, hello: dict[str, Any]) -> None:
        self.input: dict[str, Any] = hello["input"]
        self.started_at: float = hello["at"]
        self.closed_at: float | None = None
        self._connection = connection
        self._lines = lines
        self._closed = threading.Event()
        self._answered = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def answer(self, orders: dict[str, Any]) -> None:
        """Tell the call how to behave: the first line that it reads. A call that is closed by then hears nothing."""
        with suppress(OSError):
            self._connection.sendall(json.dumps(orders).encode() + b"\n")
        self._answered.set()

    def frames(self, count: int) -> None:
        """Let a gated call say `count` more frames."""
        self._send(b"frame\n" * count)

    def fail(self) -> None:
        self._send(b"fail\n")

    def end(self) -> None:
        self._send(b"end\n")

    def _send(self, order: bytes) -> None:
        assert self._answered.wait(PATIENCE), "the call was never told how to behave"
        self._connection.sendall(order)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def wait_closed(self) -> float:
        """When the server closed the call's stream (CLOCK_MONOTONIC)."""
        assert self._closed.wait(PATIENCE), "the engine call was never closed"
        assert self.closed_at is not None
        return self.closed_at

    def _listen(self) -> None:
        line = self._lines.readline()
        if line:
            self.closed_at = json.loads(line)["closed"]
            self._closed.set()
        self._connection.close()


class Control:
    """Accepts the engine's calls. `gated` and `frames` (None: as the prompt has it) hold for calls that come later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gated = False
        self.frames: int | None = None
        self._calls: queue.Queue[Call] = queue.Queue()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        self.gated, self.frames = False, None
        self.calls()

    def next_call(self) -> Call:
        return self._calls.get(timeout=PATIENCE)

    def calls(self) -> list[Call]:
        """The calls that came since somebody asked, oldest first."""
        calls = []
        while not self._calls.empty():
            calls.append(self._calls.get_nowait())
        return calls

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            lines = connection.makefile("rb")
            hello = json.loads(lines.readline())
            # Listed before it is answered: whoever sees a call's audio finds the call.
            call = Call(connection, lines, hello)
            self._calls.put(call)
            call.answer({"gated": self.gated, "frames": self.frames})


class Served:
    """A running server and, where its engine is the scripted one, the strings."""

    def __init__(self, server: LocalTrussServer, control: Control) -> None:
        self.server = server
        self.url = server.url
        self.control = control


@contextmanager
def serve_injected(folder: Path, settings: dict[str, Any], runtime: dict[str, Any] | None = None) -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as short:  # a Unix socket's path has to be short
        control = Control(Path(short) / "engine")
        app = build_app(ROOT, folder, local=False, extension=EXTENSION, settings=settings, runtime=runtime)
        environment = {
            "SCRIPTED_ENGINE_SOCKET": str(control.path),
            "SCRIPTED_ENGINE_CODES": str(NOISE_LAYOUT.codes_per_slot),
        }
        try:
            with LocalTrussServer(app, environment=environment) as server:
                yield Served(server, control)
        finally:
            control.close()
