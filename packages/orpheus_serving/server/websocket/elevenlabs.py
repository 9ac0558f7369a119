"""ElevenLabs' shape, as far as Pipecat's ElevenLabsTTSService uses it.

    /v1/text-to-speech/{voice}/multi-stream-input?output_format=pcm_24000&auto_mode=true
    client                                      server
    {text: "Hel", context_id: "a"}
    {text: "lo there.", context_id: "a"}        {contextId: "a", audio: base64} ...
    {context_id: "a", flush: true}
    {context_id: "a", close_context: true}      {contextId: "a", isFinal: true}
    {close_socket: true}                        close 1000, when every context has been spoken
    {text: ""}                                  keeps the socket alive

Contexts run beside one another. Closing one ends its text: what has been written is spoken. Clients do the same at an
interruption, which this shape cannot tell from a regular end; the native protocol can. Faults have no message of a context's own
either: the socket is closed, as theirs is. Alignments are not known and not sent.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from fastapi import APIRouter, WebSocket

from ...audio.formats import pcm16
from ...audio.rate import Resampler, Samples
from ...errors import InvalidRequest, OrpheusServingError
from ...request import SpeechRequest
from ..service import Service
from .session import NORMAL, POLICY, Connection, Frame, Writing, close_code_of, converse, decode

MOST_CONTEXTS = 32  # of one socket at a time
PCM = re.compile(r"pcm_(8000|16000|22050|24000|32000|44100|48000)")
DEFAULT_CONTEXT = "default"


class _Context:
    def __init__(self, ident: str, service: Service) -> None:
        self.id = ident
        self.writing = Writing(service)
        self.speaks = False


class ElevenLabs:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._service = connection.service
        self._contexts: dict[str, _Context] = {}
        self._last = False
        query = connection.ws.query_params
        self._format = query.get("output_format", "pcm_24000")
        self._eager = query.get("auto_mode") == "true"
        self._rate = 0

    def opened(self) -> None:
        try:
            found = PCM.fullmatch(self._format)
            if not found:
                raise InvalidRequest("output_format", f"{self._format[:40]!r}; it must be pcm_RATE, such as pcm_24000")
            self._rate = int(found[1])
            voice = self._connection.ws.path_params["voice"]
            self._request = SpeechRequest.parse({"prompt": "", "voice": voice})
            self._service.synthesizer.checkpoint.check_voice(self._service.voice(voice) or "")
        except InvalidRequest as error:
            self._fail(error)

    def received(self, frame: Frame) -> None:
        try:
            self._take(decode(frame))
        except InvalidRequest as error:
            self._fail(error)

    def _take(self, message: dict[str, Any]) -> None:
        ident, text = message.get("context_id") or DEFAULT_CONTEXT, message.get("text") or ""
        if not isinstance(ident, str) or len(ident) > 200:
            raise InvalidRequest("context_id", "must be a string of at most 200 characters")
        if not isinstance(text, str):
            raise InvalidRequest("text", "must be a string")
        if message.get("close_socket") is True:
            self._last = True
            for still_open in list(self._contexts.values()):
                self._end(still_open)
            self._leave()
            return
        if ident not in self._contexts:
            if not text or self._last:
                return
            if len(self._contexts) >= MOST_CONTEXTS:
                raise InvalidRequest("context_id", f"{MOST_CONTEXTS} of them are open, the most of one socket")
            self._contexts[ident] = _Context(ident, self._service)
        context = self._contexts[ident]
        if context.writing.ended:
            return  # closed, and still being spoken
        context.writing.write(text)
        if not context.speaks and not context.writing.blank:
            context.speaks = True
            self._connection.start(self._speak(context))
        if message.get("flush") is True or (self._eager and text.strip()):
            context.writing.flush()
        if message.get("close_context") is True:
            self._end(context)

    def _end(self, context: _Context) -> None:
        context.writing.end()
        if not context.speaks:
            del self._contexts[context.id]
            self._connection.post(_final(context))

    def _leave(self) -> None:
        if self._last and not self._contexts:
            self._connection.close(NORMAL)

    async def _speak(self, context: _Context) -> None:
        resampler = Resampler(self._service.sample_rate, self._rate)
        text = context.writing.deltas()
        try:
            async with self._service.speech(self._request, protocol="websocket_elevenlabs", text=text) as speech:
                async for samples in speech:
                    await self._send_audio(context, resampler.push(samples))
            await self._send_audio(context, resampler.finish())
        except OrpheusServingError as error:
            self._fail(error)
            return
        await self._connection.send(_final(context), context)
        del self._contexts[context.id]
        self._leave()

    async def _send_audio(self, context: _Context, samples: Samples) -> None:
        if len(samples):
            audio = base64.b64encode(pcm16(samples)).decode("ascii")
            await self._connection.send(json.dumps({"contextId": context.id, "audio": audio}), context)

    def _fail(self, error: OrpheusServingError) -> None:
        code = close_code_of(error)
        kind = "input_error" if code == POLICY else "error"
        self._connection.post(json.dumps({"message": str(error), "error": kind, "code": code}))
        self._connection.close(code, str(error))


def _final(context: _Context) -> str:
    return json.dumps({"contextId": context.id, "isFinal": True})


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.websocket("/v1/text-to-speech/{voice}/multi-stream-input")
    async def websocket(ws: WebSocket) -> None:
        await converse(ws, service, ElevenLabs)

    return routes
