"""A server in a process of its own, as a user starts it, and its log."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

PATIENCE = 30.0  # seconds until a test gives up; nothing is slower on purpose


class Process:
    """`orpheus-serving serve` over a checkpoint, or another command that logs as it does. `lines` is the log so far."""

    def __init__(self, command: list[str], cwd: Path | None = None, **environment: str) -> None:
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=cwd, env=os.environ | environment)
        self.lines: list[str] = []
        self._unread: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def serve(cls, folder: Path, *arguments: str, **environment: str) -> Self:
        """The command line on a free port."""
        command = [sys.executable, "-m", "orpheus_serving.cli", "serve", "--checkpoint", str(folder), "--port", "0", *arguments]
        return cls(command, None, **environment)

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:  # all the time: a full pipe would stop the server
            self.lines.append(line)
            self._unread.put(line)
        self._unread.put(None)

    def url(self) -> str:
        return f"http://127.0.0.1:{self.until('listening')['port']}"

    def until(self, message: str) -> dict[str, Any]:
        """The next line of the log with this message."""
        while (line := self._unread.get(timeout=PATIENCE)) is not None:
            with contextlib.suppress(ValueError):
                if (fields := json.loads(line))["message"] == message:
                    return fields
        raise AssertionError(f"it ended without {message!r}: {''.join(self.lines)}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Wait for its end; its exit status."""
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self._reader.join(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()
        self.end()
