"""Speech as an HTTP answer, made while it is sent.

    place -> first samples -> 200 -> [samples -> tempo -> encoder] -> body, or server-sent events of it

- Until there is sound, every failure is a status with a reason.
- After that a failure breaks the connection: a body without an end is what a client cannot take for a whole utterance.
- A client that leaves, or takes nothing for `stall_timeout`, ends the speech at once.
- Samples are asked for when the client has taken those before: a slow reader holds two chunks of audio and 64 KiB, not more.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..audio.encoders import Format, open_encoder
from ..audio.rate import Tempo
from ..errors import EngineError, OrpheusServingError
from ..http_stream import ClientLeft, header_value, until_left
from ..request import SpeechRequest
from ..synthesizer import Samples
from .refusals import openai_refusal
from .service import ClientStalled, ServedSpeech, Service

log = logging.getLogger(__name__)

AUDIO = {"schema": {"type": "string", "format": "binary"}}
"What an OpenAPI document says about an answer of bytes."

# Encoders let go of the interpreter while they work; more threads than this would take turns.
ENCODERS = ThreadPoolExecutor(4, thread_name_prefix="encoder")


class SpeechAnswer(Response):
    """A response that admits, speaks and encodes when it is sent."""

    def __init__(
        self,
        service: Service,
        request: SpeechRequest,
        *,
        protocol: str,
        response_format: Format,
        speed: float = 1.0,
        events: bool = False,
        refusal: Callable[[Exception], Response] = openai_refusal,
    ) -> None:
        self.background = None
        self._service = service
        self._request = request
        self._protocol = protocol
        self._speed = speed
        self._encoding = Encoding(response_format, speed, service.sample_rate)
        self._events = events
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async with until_left(receive), self._speech() as speech:
                first = await self._first(speech)
                headers = self._head(speech)
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                async for piece in self._body(speech, first):
                    await self._send({"type": "http.response.body", "body": piece, "more_body": True}, send)
                await self._send({"type": "http.response.body", "body": b""}, send)
        except (ClientLeft, ClientStalled):
            return
        except Exception as error:
            if not isinstance(error, OrpheusServingError):
                log.exception("internal error")
            if not started:
                await self._refusal(error)(scope, receive, send)
        # A started body that returns without its end is cut off by the server.

    def _speech(self) -> AbstractAsyncContextManager[ServedSpeech]:
        return self._service.speech(self._request, protocol=self._protocol, speed=self._speed)

    async def _send(self, message: dict[str, Any], send: Send) -> None:
        """Raises ClientStalled where the client takes nothing for too long."""
        try:
            async with asyncio.timeout(self._service.options.stall_timeout):
                await send(message)
        except TimeoutError:
            raise ClientStalled from None

    async def _first(self, speech: ServedSpeech) -> Samples:
        try:
            return await anext(speech)
        except StopAsyncIteration:
            raise EngineError("the model ended without a sound; try another seed or a longer text") from None

    def _head(self, speech: ServedSpeech) -> list[tuple[bytes, bytes]]:
        content = "text/event-stream" if self._events else self._encoding.content_type
        headers = {"content-type": content, "cache-control": "no-store", "x-seed": str(speech.seed)}
        if self._request.request_id:
            headers["x-request-id"] = header_value(self._request.request_id)
        return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]

    async def _body(self, speech: ServedSpeech, first: Samples) -> AsyncIterator[bytes]:
        async for piece in self._encoding.encode(first, speech):
            if piece:
                yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()}) if self._events else piece
        if self._events:
            yield _event({"type": "speech.audio.done", "usage": self._usage(speech)})

    def _usage(self, speech: ServedSpeech) -> dict[str, int]:
        """Tokens of the prompts as the model was given them, and those that it answered."""
        checkpoint = self._service.synthesizer.checkpoint
        given = sum(len(checkpoint.prompt(chunk, speech.voice)) for chunk in speech.speech.chunks)
        made = speech.stats.tokens
        return {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}


class Encoding:
    """Samples to the bytes of one answer: tempo, then format, off the event loop where that takes time."""

    def __init__(self, response_format: Format, speed: float, sample_rate: int) -> None:
        self._encoder = open_encoder(response_format, sample_rate)
        self._tempo = Tempo(speed, sample_rate)
        self._slow = self._encoder.slow or speed != 1

    @property
    def content_type(self) -> str:
        return self._encoder.content_type

    async def encode(self, first: Samples, rest: AsyncIterator[Samples]) -> AsyncIterator[bytes]:
        yield await self._run(self._encode, first)
        async for samples in rest:
            yield await self._run(self._encode, samples)
        yield await self._run(self._finish)

    async def _run(self, work: Callable[..., bytes], *arguments: Any) -> bytes:
        if not self._slow:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(ENCODERS, work, *arguments)

    def _encode(self, samples: Samples) -> bytes:
        return self._encoder.encode(self._tempo.push(samples))

    def _finish(self) -> bytes:
        return self._encoder.encode(np.asarray(self._tempo.finish())) + self._encoder.finish()


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"
