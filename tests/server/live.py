"""The real application under the real uvicorn, in a thread of its own, on a free port of the loopback.

    with serving(noise_folder, frames=6, max_active=2) as live:        any options of ServerOptions
        httpx.post(f"{live.url}/v1/audio/speech", ...)
        live.engine.active            what the scripted engine does now
        live.call(function, ...)      run it on the server's event loop
        live.settle()                 wait until nothing is running; it fails if something was left behind

The fixture `live_server` of conftest.py is one for all tests that change nothing about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.codec import load_codec
from orpheus_serving.engines.scripted import ScriptedEngine
from orpheus_serving.server.options import ServerOptions
from orpheus_serving.server.serve import http_server, listen
from orpheus_serving.server.service import Service
from orpheus_serving.settings import Settings
from orpheus_serving.synthesizer import Synthesizer

PATIENCE = 30.0  # seconds until a test gives up; nothing is slower on purpose
SLOTS = 16  # of the codec
FRAME = 2048  # samples


class LiveServer:
    """A running server and the ways into it. `url` is http://..., `ws_url` ws://..., `port` the number."""

    def __init__(self, service: Service, engine: ScriptedEngine) -> None:
        self.service = service
        self.engine = engine
        self.codec = service.synthesizer.codec
        self.loop: asyncio.AbstractEventLoop
        self._socket = listen(service.options)
        self._listener = self._socket.__enter__()
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.ws_url = f"ws://127.0.0.1:{self.port}"
        self._server = http_server(service)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="live server", daemon=True)

    @property
    def connections(self) -> int:
        """Open connections, as uvicorn counts them."""
        return len(self._server.server_state.connections)

    def socket_option(self, level: int, option: int) -> int:
        """Of the connections that are open, which have the same."""
        (value,) = {c.transport.get_extra_info("socket").getsockopt(level, option) for c in self._server.server_state.connections}
        return value

    @property
    def ping_timeout(self) -> float | None:
        return self._server.config.ws_ping_timeout

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the server did not start"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not stop"
        self._socket.__exit__(None, None, None)

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not (self.service.ready and self._server.started):  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.01)
        self._ready.set()
        await serving

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Run a coroutine on the server's loop and wait for its result."""

        async def wrapped() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wrapped(), self.loop).result(PATIENCE)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the server's loop and wait for its result: an engine's `advance`, a field of the service."""

        async def called() -> Any:
            return function(*arguments)

        return self.run(called())

    def until(self, condition: Callable[[], Any], what: str = "") -> None:
        """Wait until something is true on the server's loop."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE):
                while not condition():  # noqa: ASYNC110 - any condition
                    await asyncio.sleep(0.002)

        try:
            self.run(wait())
        except TimeoutError:
            pytest.fail(f"never came true: {what or condition}")

    def speech_tasks(self) -> list[str]:
        """Names of tasks that speak."""
        return self.call(lambda: [t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("speech ")])

    def settle(self) -> None:
        """Wait until no stream runs; then nothing may be left of any: no place, engine request, codec slot or task."""
        self.until(lambda: not self.service.active and not self.service.queued, "the service is idle")
        assert not self.call(lambda: list(self.service.synthesizer.active))
        assert not self.call(lambda: set(self.engine.active))
        assert self.call(lambda: self.codec.free_slots) == SLOTS
        assert not self.speech_tasks()


def noise_script(checkpoint: Checkpoint, frames: int) -> Callable[..., list[int]]:
    """`frames` frames of random codes a chunk, the same for the same seed, then the end."""
    layout = checkpoint.layout

    def script(prompt: Any, sampling: Any, request_id: str) -> list[int]:
        draw = random.Random(sampling.seed)
        ids = [layout.token(slot, draw.randrange(1024)) for _ in range(frames) for slot in range(7)]
        return [*ids, layout.end_of_speech]

    return script


@contextlib.contextmanager
def serving(
    folder: Path, *, frames: int = 6, engine: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, **options: Any
) -> Iterator[LiveServer]:
    """A server of its own over a noise checkpoint: `engine` goes to ScriptedEngine (paced, fail_after, script), the rest to
    ServerOptions."""
    checkpoint = Checkpoint(folder)
    arguments = {"script": noise_script(checkpoint, frames)} | (engine or {})
    scripted = ScriptedEngine(arguments.pop("script"), layout=checkpoint.layout, list_size=7, **arguments)
    codec = load_codec(folder / "codec", max_streams=SLOTS)
    synthesizer = Synthesizer(checkpoint, scripted, codec, Settings(**(settings or {})))
    live = LiveServer(Service(synthesizer, ServerOptions(port=0, **options)), scripted)
    live.start()
    try:
        yield live
    finally:
        live.stop()
