"""The test's end of the strings of `fixtures/scripted_extension.py`."""

from __future__ import annotations

import json
import queue
import socket
import threading
from pathlib import Path
from typing import Any

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
        threading.Thread(target=self._listen, daemon=True).start()

    def frames(self, count: int) -> None:
        """Let a gated call say `count` more frames."""
        self._connection.sendall(b"frame\n" * count)

    def fail(self) -> None:
        self._connection.sendall(b"fail\n")

    def end(self) -> None:
        self._connection.sendall(b"end\n")

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
            self._calls.put(Call(connection, lines, hello))
            connection.sendall(json.dumps({"gated": self.gated, "frames": self.frames}).encode() + b"\n")
