"""Our own protocol, in Cartesia's shape, so that Cartesia's clients work by base URL (Pipecat `url=`, LiveKit `base_url=`).

    /tts/websocket
    client                                                              server, each with the context_id
    {context_id: "a", transcript: "Hel", continue: true, voice, ...}
    {context_id: "a", transcript: "lo. And", continue: true, ...}       {type: "chunk", data: base64} ...
    {context_id: "a", transcript: "", continue: true, flush: true}      {type: "flush_done", flush_id: 1}
    {context_id: "a", transcript: " more.", continue: false}            {type: "chunk"} ... {type: "done"}
    {context_id: "b", cancel: true}                                     {type: "done"}

A context is one utterance: its transcripts are joined as they are. Contexts of a socket run beside one another, as Cartesia's
do; within one everything comes in order. The first message of a context sets its voice, audio format and sampling.

A context whose speech ends before its text, by an error or at `max_tokens`, is over: what is still written to it is dropped up to
its last transcript (`continue: false`) or a cancel, so that nothing is spoken from the middle of a sentence on.

Times of single words are not known to the model, so `timestamps` are never sent, even where `add_timestamps` asks for them. What
is known is when each chunk of text begins and ends: `add_phrase_timestamps` (not Cartesia's) asks for that.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...audio.formats import pcm16
from ...audio.rate import Resampler, Samples
from ...errors import InvalidRequest, OrpheusServingError
from ...request import SpeechRequest
from ...synthesizer import Flushed, Spoken
from ..service import Service
from .session import Connection, Frame, Writing, converse, decode, status_of

MOST_CONTEXTS = 32  # of one socket at a time
MOST_OVER = 256  # contexts of a socket that are over while their client still writes; beyond, the oldest is forgotten
LONGEST_ID = 200  # characters
SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens", "max_chunk_size", "seed")


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _Voice(_Part):
    mode: Literal["id"] = "id"
    id: str


class _Format(_Part):
    container: Literal["raw"] = "raw"
    encoding: Literal["pcm_s16le", "pcm_f32le"] = "pcm_s16le"
    sample_rate: Annotated[int, Field(ge=8_000, le=48_000)] | None = None


class _Message(_Part):
    context_id: Annotated[str, Field(min_length=1, max_length=LONGEST_ID)] | None = None
    transcript: str = ""
    more: Annotated[bool, Field(alias="continue")] = False
    flush: bool = False
    cancel: bool = False
    voice: _Voice | str | None = None
    output_format: _Format = _Format()
    max_buffer_delay_ms: Annotated[int, Field(ge=0, le=5_000)] | None = None
    add_phrase_timestamps: bool = False

    @classmethod
    def parse(cls, message: dict[str, Any]) -> _Message:
        try:
            return cls.model_validate({key: value for key, value in message.items() if value is not None})
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise InvalidRequest(".".join(map(str, first["loc"])), first["msg"]) from error


class _Context:
    """One utterance of a socket."""

    def __init__(self, ident: str, message: _Message, request: SpeechRequest, service: Service) -> None:
        self.id = ident
        self.request = request
        self.format = message.output_format
        self.phrases = message.add_phrase_timestamps
        # Cartesia's default is 3 s. 0 means that every transcript is spoken as it is.
        delay = 3_000 if message.max_buffer_delay_ms is None else message.max_buffer_delay_ms
        self.eager = delay == 0
        self.writing = Writing(service, delay / 1000 or None)
        self.flushes = 0  # that have been asked for
        self.flush_ids: list[int] = []
        self.task: asyncio.Task[None] | None = None


class Cartesia:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._service = connection.service
        self._contexts: dict[str, _Context] = {}
        self._over: dict[str, None] = {}  # ids of contexts that are over and have not had their last transcript, oldest first

    def opened(self) -> None:
        pass

    def received(self, frame: Frame) -> None:
        ident: str | None = None
        decoded: dict[str, Any] = {}
        try:
            decoded = decode(frame)
            named = decoded.get("context_id")
            ident = named if isinstance(named, str) else None
            self._take(_Message.parse(decoded), decoded)
        except InvalidRequest as error:
            if context := self._contexts.get(ident or ""):
                self._stop(context)
            if decoded.get("continue"):
                self._drop_rest(ident or "")
            self._connection.post(_error(ident, error))

    def _take(self, message: _Message, decoded: dict[str, Any]) -> None:
        context = self._contexts.get(message.context_id or "")
        if message.cancel:
            if message.context_id is None:
                raise InvalidRequest("context_id", "names the context to cancel")
            self._over.pop(message.context_id, None)
            if context is not None:
                self._stop(context)
                self._connection.post(_done(context.id))
            return
        if message.context_id in self._over:
            if not message.more:
                del self._over[message.context_id]
                self._connection.post(_done(message.context_id))
            return
        if context is None:
            if not message.more and not message.transcript.strip():  # the end of a context that is over, or never began
                self._connection.post(_done(message.context_id))
                return
            context = self._open(message, decoded)
        if context.writing.ended:
            if not message.transcript.strip():  # its end once more
                return
            raise InvalidRequest("context_id", f"{context.id} has had its last transcript; use another id for more")
        self._write(context, message)

    def _open(self, message: _Message, decoded: dict[str, Any]) -> _Context:
        if len(self._contexts) >= MOST_CONTEXTS:
            raise InvalidRequest(
                "context_id", f"{MOST_CONTEXTS} of them are open, the most of one socket; wait for one to be done"
            )
        voice = message.voice.id if isinstance(message.voice, _Voice) else message.voice
        if voice is not None:
            self._service.synthesizer.checkpoint.check_voice(self._service.voice(voice) or "")
        sampling = {key: decoded[key] for key in SAMPLING if key in decoded}
        request = SpeechRequest.parse({"prompt": "", "voice": voice, **sampling})
        context = _Context(message.context_id or secrets.token_hex(8), message, request, self._service)
        self._contexts[context.id] = context
        return context

    def _write(self, context: _Context, message: _Message) -> None:
        writing = context.writing
        writing.write(message.transcript)
        if context.task is None and not writing.blank:
            context.task = self._connection.start(self._speak(context))
        if message.flush:
            context.flushes += 1
            if context.task is None:  # there is nothing before it
                self._connection.post(_event("flush_done", context.id, 206, flush_id=context.flushes, flush_done=True))
            else:
                context.flush_ids.append(context.flushes)
                writing.flush()
        elif context.eager and message.more and message.transcript and not writing.blank:
            context.flush_ids.append(0)
            writing.flush()
        if not message.more:
            writing.end()
            if context.task is None:
                del self._contexts[context.id]
                self._connection.post(_done(context.id))

    def _stop(self, context: _Context) -> None:
        """End a context now: nothing of it is sent any more."""
        del self._contexts[context.id]
        if context.task is not None:
            context.task.cancel()
        self._connection.drop(context)

    def _drop_rest(self, ident: str) -> None:
        """Take no more text of a context that is over, until the client ends it too."""
        if not 1 <= len(ident) <= LONGEST_ID:  # of no context
            return
        self._over[ident] = None
        if len(self._over) > MOST_OVER:
            del self._over[next(iter(self._over))]

    async def _speak(self, context: _Context) -> None:
        resampler = Resampler(self._service.sample_rate, context.format.sample_rate or self._service.sample_rate)
        text = context.writing.deltas()
        try:
            async with self._service.speech(context.request, protocol="websocket", text=text) as speech:
                async for event in speech.events():
                    if isinstance(event, Spoken):
                        if context.phrases:
                            times = {"phrases": [event.text], "start": [event.start], "end": [event.end]}
                            await self._send(context, _event("phrase_timestamps", context.id, 206, phrase_timestamps=times))
                    elif isinstance(event, Flushed):
                        await self._flushed(context)
                    else:
                        await self._send_audio(context, resampler.push(event))
            await self._send_audio(context, resampler.finish())
            last = _done(context.id)
        except OrpheusServingError as error:
            last = _error(context.id, error)
        await self._send(context, last)
        if self._contexts.get(context.id) is context:
            del self._contexts[context.id]
            if not context.writing.ended:
                self._drop_rest(context.id)

    async def _flushed(self, context: _Context) -> None:
        asked = context.writing.flushes.popleft()
        ident = context.flush_ids.pop(0) if asked else 0
        if ident:
            await self._send(context, _event("flush_done", context.id, 206, flush_id=ident, flush_done=True))

    async def _send_audio(self, context: _Context, samples: Samples) -> None:
        if len(samples):
            pcm = pcm16(samples) if context.format.encoding == "pcm_s16le" else samples.astype("<f4").tobytes()
            await self._send(context, _event("chunk", context.id, 206, data=base64.b64encode(pcm).decode("ascii")))

    async def _send(self, context: _Context, message: str) -> None:
        await self._connection.send(message, context)


def _event(kind: str, context_id: str | None, status: int, done: bool = False, **fields: Any) -> str:
    return json.dumps({"type": kind, "context_id": context_id, "status_code": status, "done": done, **fields})


def _done(context_id: str | None) -> str:
    return _event("done", context_id, 200, done=True)


def _error(context_id: str | None, error: OrpheusServingError) -> str:
    # Not `done`, although the context is over: LiveKit's plugin would take that for its regular end, with the words unspoken.
    return _event("error", context_id, status_of(error), title=type(error).__name__, message=str(error), error=str(error))


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.websocket("/tts/websocket")
    async def websocket(ws: WebSocket) -> None:
        await converse(ws, service, Cartesia)

    return routes
