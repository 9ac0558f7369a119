"""The protocol of the public Orpheus WebSocket Truss: what LiveKit's Baseten plugin speaks.

    client                                            server
    {"voice": "tara", "max_tokens": 2000, ...}
    Hel
    lo there.
    __END__                                           PCM PCM PCM ... close 1000

Text frames after the first are text as it is, cut anywhere; one utterance a socket. The audio is 16-bit mono PCM at the codec's
rate, without a header. A fault is told in a text frame {"error": ...} and in the close frame.

`max_tokens` and `buffer_size` limit and pace a server that generates every few words by themselves. Here text is spoken in
sentences, each limited in proportion to its length, so both are accepted and change nothing.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, WebSocket

from ...audio.formats import pcm16
from ...errors import InvalidRequest, OrpheusServingError
from ...request import SpeechRequest
from ..service import Service
from .session import NORMAL, Connection, Frame, Writing, close_code_of, converse, decode

END = "__END__"
UTTERANCE_ONLY = ("prompt", "max_tokens", "request_id", "response_format")  # keys of a request that mean nothing here


class OrpheusTruss:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._writing = Writing(connection.service)
        self._request: SpeechRequest | None = None
        self._between = ""
        self._speaking = False

    def opened(self) -> None:
        pass

    def received(self, frame: Frame) -> None:
        try:
            self._take(frame)
        except InvalidRequest as error:
            self._fail(error)

    def _take(self, frame: Frame) -> None:
        if self._request is None:
            self._configure(decode(frame))
        elif isinstance(frame, bytes):
            raise InvalidRequest("frame", f"binary; text comes in text frames, {END} ends it")
        elif frame == END:
            self._writing.end()
            if not self._speaking:  # there was nothing to say
                self._connection.close(NORMAL)
        elif not self._writing.ended:
            self._writing.write(frame + self._between)
            if not self._speaking and not self._writing.blank:
                self._speaking = True
                self._connection.start(self._speak(self._request))

    def _configure(self, config: dict[str, Any]) -> None:
        words = config.get("words", False)
        if not isinstance(words, bool):
            raise InvalidRequest("words", "must be true (every frame is a word) or false (frames are joined as they are)")
        self._between = " " if words else ""
        service = self._connection.service
        wanted = {key: value for key, value in config.items() if key not in UTTERANCE_ONLY}
        request = SpeechRequest.parse(wanted | {"prompt": ""})
        if request.voice is not None:
            service.synthesizer.checkpoint.check_voice(service.voice(request.voice) or "")
        self._request = request

    async def _speak(self, request: SpeechRequest) -> None:
        service, text = self._connection.service, self._writing.deltas()
        try:
            async with service.speech(request, protocol="websocket_truss", text=text) as speech:
                async for samples in speech:
                    await self._connection.send(pcm16(samples), self)
        except OrpheusServingError as error:
            self._fail(error)
        else:
            self._connection.close(NORMAL)

    def _fail(self, error: OrpheusServingError) -> None:
        self._connection.post(json.dumps({"error": str(error)}))
        self._connection.close(close_code_of(error), str(error))


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.websocket("/v1/websocket")
    @routes.websocket("/v1/models/model:predict")  # what the platform's proxy makes of the former before a docker_server
    async def websocket(ws: WebSocket) -> None:
        await converse(ws, service, OrpheusTruss)

    return routes
