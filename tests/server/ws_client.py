"""What the WebSocket tests share: a server that writes down its prompts, and a client for each way of talking to it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from live import LiveServer, noise_script, serving
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from orpheus_serving.checkpoint import Checkpoint

PATIENCE = 30.0  # seconds until a test gives up; nothing is slower on purpose


class Prompts:
    """A script for the engine that also writes down what it was asked to say."""

    def __init__(self, folder: Path, frames: int = 3) -> None:
        self._checkpoint = Checkpoint(folder)
        self._script = noise_script(self._checkpoint, frames)
        self.said: list[str] = []

    def __call__(self, prompt: Sequence[int], sampling: Any, request_id: str) -> list[int]:
        layout = self._checkpoint.layout
        reserved = {*layout.prompt_before, *layout.prompt_after}
        self.said.append(self._checkpoint.prompt_text([token for token in prompt if token not in reserved]))
        return self._script(prompt, sampling, request_id)

    def take(self) -> list[str]:
        """What was said since somebody asked, without the voices' names."""
        said, self.said = self.said, []
        return [text.partition(": ")[2] for text in said]


@contextlib.contextmanager
def recording(folder: Path, frames: int = 3, **options: Any) -> Iterator[tuple[LiveServer, Prompts]]:
    prompts = Prompts(folder, frames)
    with serving(folder, engine={"script": prompts}, **options) as live:
        yield live, prompts


class Client:
    """A WebSocket whose messages are JSON (or raw, with `send_raw`)."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def send_raw(self, *frames: str | bytes) -> None:
        for frame in frames:
            self.socket.send(frame)

    def receive(self) -> dict[str, Any]:
        return json.loads(self.socket.recv(PATIENCE))

    def until(self, kind: str) -> list[dict[str, Any]]:
        """Messages up to the first of the given type, which is the last of the list."""
        messages = [self.receive()]
        while messages[-1]["type"] != kind:
            messages.append(self.receive())
        return messages

    def rest(self) -> list[str | bytes]:
        """Everything until the server closes."""
        frames = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                frames.append(self.socket.recv(PATIENCE))
        return frames

    @property
    def closed(self) -> tuple[int | None, str | None]:
        return self.socket.close_code, self.socket.close_reason


@contextlib.contextmanager
def client(live: LiveServer, path: str, **options: Any) -> Iterator[Client]:
    with connect(live.ws_url + path, open_timeout=PATIENCE, close_timeout=1, max_size=None, **options) as socket:
        yield Client(socket)


def spoken(texts: Sequence[str]) -> str:
    """Texts for comparing: what is between chunks does not matter."""
    return "".join("".join(texts).split())
