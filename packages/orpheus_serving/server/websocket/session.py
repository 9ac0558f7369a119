"""One WebSocket: a reader that never waits, a writer with a bounded queue, and the speeches between the two.

    client -> reader task -> Dialogue.received(frame)          never waits, so a cancel is heard whatever is being sent
                                 |  Writing.write(delta)
                                 v
                             speech tasks (Connection.start)   service.speech(..., text=writing)
                                 |  await Connection.send(...)  waits while MOST_QUEUED messages are in line
                                 v
    client <- writer task <- queue

A protocol is a `Dialogue`: it turns frames into calls and speech into frames, and nothing else. Everything of a connection ends
with it: when the client leaves, no frame passes for `idle_timeout`, or the client takes nothing for `stall_timeout`, the speech
tasks are cancelled, which stops their engine requests and frees their codec slots.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from ...errors import InvalidRequest, OrpheusServingError, Overloaded
from ..service import ClientStalled, Service

log = logging.getLogger(__name__)

MOST_QUEUED = 8  # messages of speech in line, about 0.7 s of it; what more there is stays ungenerated
MOST_ANSWERS = 256  # other messages in line, for a client that writes and never reads
LONGEST_REASON = 123  # bytes that fit into a close frame

NORMAL, GOING_AWAY, POLICY, TOO_BIG, BROKEN, TRY_LATER = 1000, 1001, 1008, 1009, 1011, 1013

Frame = str | bytes


class Dialogue(Protocol):
    """What a protocol does with a connection."""

    def opened(self) -> None:
        """The upgrade is done."""

    def received(self, frame: Frame) -> None:
        """A frame has come, text or binary. InvalidRequest that leaves it closes the connection with its message."""


class Connection:
    """An accepted WebSocket. All methods belong to its event loop; only `send` waits."""

    def __init__(self, ws: WebSocket, service: Service) -> None:
        self.ws = ws
        self.service = service
        self._queue: deque[tuple[Frame, object]] = deque()
        self._owned = 0  # messages in the queue that have an owner
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._speeches: set[asyncio.Task[None]] = set()
        self._closing: tuple[int, str] | None = None
        self._stalled = False
        self._active_at = time.monotonic()

    async def send(self, message: Frame, owner: object) -> None:
        """Queue a message of a speech; waits while the client is slow, and raises ClientStalled where that takes too long."""
        while self._owned >= MOST_QUEUED and not self._stalled:
            self._room.clear()
            await self._room.wait()
        if self._stalled:
            raise ClientStalled
        self._owned += 1
        self._append(message, owner)

    def post(self, message: Frame) -> None:
        """Queue an answer. A client that makes many and reads none is disconnected."""
        if len(self._queue) - self._owned >= MOST_ANSWERS:
            self.close(POLICY, "too many answers wait for you to read them")
            return
        self._append(message, None)

    def drop(self, owner: object) -> None:
        """Forget what `owner` has queued: it must not be heard any more."""
        self._queue = deque(item for item in self._queue if item[1] is not owner)
        self._owned = sum(owner is not None for _, owner in self._queue)
        self._room.set()

    def start(self, speech: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a speech beside the reader. Cancel its task to stop it; its errors are its own to report."""
        task = asyncio.create_task(speech, name="websocket speech")
        self._speeches.add(task)
        task.add_done_callback(self._speech_ended)
        return task

    def close(self, code: int, reason: str = "") -> None:
        """Close once everything queued has been sent; no frame is handed to the dialogue from now on."""
        if self._closing is None:
            self._closing = (code, reason)
            self._news.set()

    async def run(self, dialogue: Dialogue) -> None:
        """Talk until one side ends it. When this returns nothing of the connection is left."""
        dialogue.opened()
        tasks = [asyncio.create_task(work, name="websocket") for work in (self._read(dialogue), self._write(), self._watch())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks += self._speeches
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._say_goodbye()

    def _append(self, message: Frame, owner: object) -> None:
        self._queue.append((message, owner))
        self._news.set()

    def _speech_ended(self, task: asyncio.Task[None]) -> None:
        self._speeches.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ClientStalled):
            log.error("a speech over a WebSocket broke", exc_info=error)
            self.close(BROKEN, "internal error")

    async def _read(self, dialogue: Dialogue) -> None:
        while (event := await self.ws.receive())["type"] == "websocket.receive":
            self._active_at = time.monotonic()
            if self._closing is not None:
                continue
            text = event.get("text")
            frame: Frame = event["bytes"] if text is None else text
            if len(frame) > self.service.options.max_body:
                self.close(TOO_BIG, f"a frame is longer than {self.service.options.max_body}, the limit of this server")
                continue
            try:
                dialogue.received(frame)
            except InvalidRequest as error:
                self.close(POLICY, str(error))
            except Exception:
                log.exception("a frame could not be handled")
                self.close(BROKEN, "internal error")

    async def _write(self) -> None:
        while True:
            if self._queue:
                message, owner = self._queue.popleft()
                self._owned -= owner is not None
                self._room.set()
                try:
                    async with asyncio.timeout(self.service.options.stall_timeout):
                        await (self.ws.send_text(message) if isinstance(message, str) else self.ws.send_bytes(message))
                except TimeoutError:
                    self._stalled = True
                    self._room.set()  # whose speech waits there ends it, before `run` does
                    return
                except (OSError, RuntimeError, WebSocketDisconnect):
                    return
                self._active_at = time.monotonic()
            elif self._closing is not None:
                return
            else:
                self._news.clear()
                await self._news.wait()

    async def _watch(self) -> None:
        limit = self.service.options.idle_timeout
        while (left := self._active_at + limit - time.monotonic()) > 0:  # noqa: ASYNC110 - the moment moves with every frame
            await asyncio.sleep(left)
        if self._closing is None:
            self._closing = (NORMAL, f"no frame passed for {limit:g} s")

    async def _say_goodbye(self) -> None:
        code, reason = self._closing or (GOING_AWAY, "")
        reason = reason.encode("utf-8", "replace")[:LONGEST_REASON].decode("utf-8", "ignore")
        try:
            async with asyncio.timeout(self.service.options.stall_timeout):
                await self.ws.close(code, reason)
        except (TimeoutError, OSError, RuntimeError, WebSocketDisconnect):
            pass  # the client has gone


async def converse(ws: WebSocket, service: Service, dialogue: Callable[[Connection], Dialogue]) -> None:
    """Serve one WebSocket from its upgrade to its end. Where there is no place the upgrade is answered with 503.

    A socket that somebody else has accepted already, as the Truss server does, is closed with 1013 instead.
    """
    accepted = ws.application_state is WebSocketState.CONNECTED
    if refused := await service.refusal():
        if accepted:
            await ws.close(TRY_LATER, str(refused))
            return
        body = {"error": {"message": str(refused), "type": "overloaded", "param": None, "code": "overloaded"}}
        await ws.send_denial_response(JSONResponse(body, 503, {"retry-after": str(refused.retry_after)}))
        return
    if not accepted:
        await ws.accept()
    connection = Connection(ws, service)
    await connection.run(dialogue(connection))


class Writing:
    """Text on its way from a client to a speech: written without waiting, bounded by the longest text of a request.

    `patience`: seconds after which text that is there is flushed, when no more of it comes.
    """

    def __init__(self, service: Service, patience: float | None = None) -> None:
        self._most = service.synthesizer.settings.max_text
        self._patience = patience
        self._deltas: asyncio.Queue[str | _End | None] = asyncio.Queue()
        self.length = 0
        self.blank = True
        "Whether nothing but white space has been written."
        self.ended = False
        self.flushes: deque[bool] = deque()
        "For each flush that the speech has taken and not yet answered with `Flushed`: was it asked for, or did patience end?"

    def write(self, delta: str) -> None:
        """Add text. Raises InvalidRequest past the longest text; what was written before stands."""
        if not delta:
            return
        self._count(len(delta))
        self.blank = self.blank and delta.isspace()
        self._deltas.put_nowait(delta)

    def flush(self) -> None:
        """Ask for what is there to be spoken now. Raises InvalidRequest, for it counts as one character."""
        self._count(1)
        self._deltas.put_nowait(None)

    def end(self) -> None:
        self.ended = True
        self._deltas.put_nowait(_End())

    def _count(self, length: int) -> None:
        self.length += length
        if self.length > self._most:
            raise InvalidRequest("text", f"more than {self._most} characters; send it in parts")

    async def deltas(self) -> AsyncIterator[str | None]:
        """For `Service.speech(text=...)`."""
        pending = False  # text since the last flush
        while True:
            asked = True
            try:
                async with asyncio.timeout(self._patience if pending else None):
                    delta = await self._deltas.get()
            except TimeoutError:
                delta, asked = None, False
            if isinstance(delta, _End):
                return
            pending = delta is not None
            if delta is None:
                self.flushes.append(asked)
            yield delta


class _End:
    pass


def decode(frame: Frame) -> dict[str, Any]:
    """The JSON object in a text frame. Raises InvalidRequest for anything else."""
    if isinstance(frame, bytes):
        raise InvalidRequest("frame", "binary; this protocol has text frames with JSON only")
    try:
        message = json.loads(frame)
    except (ValueError, RecursionError):
        raise InvalidRequest("frame", "not valid JSON") from None
    if not isinstance(message, dict):
        raise InvalidRequest("frame", f"must be a JSON object, not {type(message).__name__}")
    return message


def status_of(error: OrpheusServingError) -> int:
    """The HTTP status that says what `error` is, for protocols that carry one."""
    if isinstance(error, InvalidRequest):
        return 400
    return error.status if isinstance(error, Overloaded) else 500


def close_code_of(error: OrpheusServingError) -> int:
    """The code to close with, for protocols where a fault is the end of the socket."""
    return POLICY if isinstance(error, InvalidRequest) else TRY_LATER if isinstance(error, Overloaded) else BROKEN
