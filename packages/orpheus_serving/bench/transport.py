"""One request over a session that many share: HTTP with kept-alive connections, or WebSockets that are used again.

    Session.warm(count)                   opens connections ahead, so that no request that counts has to
    Session.speak(text, voice, heard) -> whether one was opened for it all the same; heard(data, now) is called as bytes arrive

A WebSocket carries one utterance at a time, as a listener's own would, and is kept for the next one.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from .plan import BenchError, Target

Heard = Callable[[bytes, float], None]

KEEP_ALIVE = 60.0  # seconds; a connection that the server has closed meanwhile is noticed and not used
COMPRESSED = ("audio/mpeg", "audio/mp3", "audio/ogg", "audio/opus", "audio/aac", "audio/flac", "audio/webm", "audio/mp4")


class Failed(Exception):
    """A request without a whole answer. The message is short, requests are counted by it."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class Session(Protocol):
    async def warm(self, count: int) -> None: ...
    async def speak(self, text: str, voice: str | None, heard: Heard) -> bool: ...
    async def close(self) -> None: ...


def open_session(target: Target) -> Session:
    """Raises BenchError where the library for it is not installed."""
    return _WebSocketSession(target) if target.websocket else _HttpSession(target)


class _HttpSession:
    def __init__(self, target: Target) -> None:
        try:
            import httpx
        except ImportError as error:
            raise BenchError("bench over HTTP needs httpx: pip install -r requirements/bench.txt") from error
        self._target = target
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE)
        headers = {"Accept-Encoding": "identity"} | target.headers
        self._client = httpx.AsyncClient(timeout=None, limits=limits, headers=headers)
        self._known: set[Any] = set()  # our ends of the connections that have been used
        self._failed = httpx.HTTPError

    async def warm(self, count: int) -> None:
        async def look() -> None:  # what is answered to a GET, 405 as a rule, is of no interest
            async with self._client.stream("GET", self._target.url) as response:
                await response.aread()
                self._known.add(_own_end(response))

        await asyncio.gather(*(look() for _ in range(count)), return_exceptions=True)

    async def speak(self, text: str, voice: str | None, heard: Heard) -> bool:
        body = {**self._target.body, self._target.text_field: text} | ({"voice": voice} if voice else {})
        try:
            async with self._client.stream("POST", self._target.url, json=body) as response:
                fresh = _own_end(response) not in self._known
                self._known.add(_own_end(response))
                kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
                if response.status_code != 200:
                    raise Failed(f"status {response.status_code}", (await response.aread())[:300].decode("utf-8", "replace"))
                if kind in COMPRESSED or kind == "application/json" or kind.startswith("text/"):
                    raise Failed(f"answered with {kind}", "PCM or WAV is needed: see --body")
                async for data in response.aiter_raw():
                    heard(data, time.monotonic())
        except self._failed as error:
            raise Failed(type(error).__name__, str(error)) from error
        return fresh

    async def close(self) -> None:
        await self._client.aclose()


def _own_end(response: Any) -> Any:
    """Our address of the connection that an answer came on: each has another port."""
    stream = response.extensions.get("network_stream")
    return stream.get_extra_info("client_addr") if stream else None


class _WebSocketSession:
    def __init__(self, target: Target) -> None:
        try:
            from websockets.asyncio.client import connect
        except ImportError as error:
            raise BenchError("bench over WebSocket needs websockets: pip install -r requirements/bench.txt") from error
        self._target = target
        self._connect = connect
        self._idle: list[Any] = []
        self._names = itertools.count()

    async def warm(self, count: int) -> None:
        opened = await asyncio.gather(*(self._open() for _ in range(count)), return_exceptions=True)
        self._idle += [socket for socket in opened if not isinstance(socket, BaseException)]

    async def speak(self, text: str, voice: str | None, heard: Heard) -> bool:
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.protocol import State

        while self._idle and self._idle[-1].state is not State.OPEN:
            self._idle.pop()
        fresh = not self._idle
        socket = None
        try:
            socket = self._idle.pop() if self._idle else await self._open()
            await self._utter(socket, text, voice, heard)
        except InvalidStatus as error:
            raise Failed(f"status {error.response.status_code}", str(error)) from error
        except (OSError, WebSocketException) as error:
            raise Failed(type(error).__name__, str(error)) from error
        except BaseException:  # the utterance is not over, so its socket is of no use to the next
            if socket is not None:
                socket.transport.abort()
            raise
        self._idle.append(socket)
        return fresh

    async def _open(self) -> Any:
        return await self._connect(
            self._target.url, additional_headers=self._target.headers, compression=None, max_size=None, open_timeout=None
        )

    async def _utter(self, socket: Any, text: str, voice: str | None, heard: Heard) -> None:
        context = f"bench-{next(self._names)}"
        message: dict[str, Any] = {
            "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": self._target.rate},
            **self._target.body,
            "context_id": context,
            "transcript": text,
            "continue": False,
        }
        voice = voice or message.get("voice")
        if isinstance(voice, str):
            message["voice"] = {"mode": "id", "id": voice}
        await socket.send(json.dumps(message))
        async for frame in socket:
            now = time.monotonic()
            answer = json.loads(frame)
            if answer.get("type") == "error":
                raise Failed(f"status {answer.get('status_code')}", str(answer.get("message") or answer.get("error") or ""))
            if answer.get("context_id") != context:
                continue
            if answer.get("type") == "chunk":
                heard(base64.b64decode(answer["data"]), now)
            elif answer.get("type") == "done":
                return
        raise Failed("closed before the end")

    async def close(self) -> None:
        for socket in self._idle:
            await socket.close()
