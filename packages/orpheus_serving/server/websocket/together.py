"""Together's shape: what Pipecat's TogetherTTSService speaks.

    /v1/audio/speech/websocket?voice=tara
    client                                             server
                                                       session.created
    tts_session.updated {session: {voice}}             session.updated
    input_text_buffer.append {text}                    conversation.item.input_text.received
    input_text_buffer.commit                           conversation.item.audio_output.delta {item_id, delta: base64} ...
                                                       conversation.item.audio_output.done {item_id}
    input_text_buffer.clear

What is appended up to a commit is one item. Items are spoken one after another, each from its first sentence on. A clear forgets
every item: nothing of them is sent after it, not even `done`. The audio is 16-bit mono PCM at 24 kHz.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections import deque
from typing import Any

from fastapi import APIRouter, WebSocket

from ...audio.formats import pcm16
from ...audio.rate import Resampler, Samples
from ...errors import InvalidRequest, OrpheusServingError
from ...request import SpeechRequest
from ..service import Service
from .session import Connection, Frame, Writing, converse, decode, status_of

SAMPLE_RATE = 24_000


class _Item:
    def __init__(self, service: Service, voice: str | None) -> None:
        self.id = f"item_{secrets.token_hex(8)}"
        self.voice = voice
        self.writing = Writing(service)


class Together:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._voice: str | None = connection.ws.query_params.get("voice") or None
        self._written: _Item | None = None  # what appends go to
        self._waiting: deque[_Item] = deque()  # items with something to say, the one that is written included
        self._speaker: asyncio.Task[None] | None = None

    def opened(self) -> None:
        session = {"id": f"session_{secrets.token_hex(8)}", "object": "realtime.tts.session", "voice": self._voice}
        self._post("session.created", session=session)

    def received(self, frame: Frame) -> None:
        try:
            self._take(decode(frame))
        except InvalidRequest as error:
            self._post("error", error={"message": str(error), "type": "invalid_request_error", "code": "invalid_event"})

    def _take(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "tts_session.updated":
                session = event.get("session")
                voice = session.get("voice") if isinstance(session, dict) else None
                if not isinstance(voice, str):
                    raise InvalidRequest("session.voice", "must be the name of a voice")
                self._voice = voice
                self._post("session.updated", session={"voice": voice})
            case "input_text_buffer.append":
                text = event.get("text")
                if not isinstance(text, str):
                    raise InvalidRequest("text", "must be a string")
                self._append(text)
            case "input_text_buffer.commit":
                if self._written is not None:
                    self._written.writing.end()
                    self._written = None
            case "input_text_buffer.clear":
                self._clear()
            case other:
                raise InvalidRequest("type", f"no event {str(other)[:60]!r}")

    def _append(self, text: str) -> None:
        if self._written is None:
            self._written = _Item(self._connection.service, self._voice)
        item = self._written
        was_blank = item.writing.blank
        most = self._connection.service.synthesizer.settings.max_text
        if sum(waiting.writing.length for waiting in self._waiting) + len(text) > most:
            raise InvalidRequest("text", f"more than {most} characters wait to be spoken; send them later")
        item.writing.write(text)
        self._post("conversation.item.input_text.received", item_id=item.id, text=text)
        if was_blank and not item.writing.blank:
            self._waiting.append(item)
            if self._speaker is None or self._speaker.done():
                self._speaker = self._connection.start(self._speak_all())

    def _clear(self) -> None:
        if self._speaker is not None:
            self._speaker.cancel()
            self._speaker = None
        self._waiting.clear()
        self._written = None
        self._connection.drop(self)

    async def _speak_all(self) -> None:
        while self._waiting:
            item = self._waiting[0]
            try:
                await self._speak(item)
            except OrpheusServingError as error:
                fault = {"message": str(error), "type": "tts_error", "code": status_of(error)}
                await self._send("conversation.item.tts.failed", item_id=item.id, error=fault)
            self._waiting.popleft()

    async def _speak(self, item: _Item) -> None:
        service = self._connection.service
        resampler = Resampler(service.sample_rate, SAMPLE_RATE)
        request = SpeechRequest.parse({"prompt": "", "voice": item.voice})
        async with service.speech(request, protocol="websocket_together", text=item.writing.deltas()) as speech:
            async for samples in speech:
                await self._send_audio(item, resampler.push(samples))
        await self._send_audio(item, resampler.finish())
        await self._send("conversation.item.audio_output.done", item_id=item.id)

    async def _send_audio(self, item: _Item, samples: Samples) -> None:
        if len(samples):
            delta = base64.b64encode(pcm16(samples)).decode("ascii")
            await self._send("conversation.item.audio_output.delta", item_id=item.id, delta=delta)

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._connection.send(json.dumps({"type": kind, **fields}), self)

    def _post(self, kind: str, **fields: Any) -> None:
        self._connection.post(json.dumps({"type": kind, **fields}))


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.websocket("/v1/audio/speech/websocket")
    async def websocket(ws: WebSocket) -> None:
        await converse(ws, service, Together)

    return routes
