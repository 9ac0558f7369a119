"""A request body in, an HTTP answer out: refusals as JSON, speech as a stream.

    JSON body -> SpeechRequest -> Speech -> first samples awaited -> 200 and a stream, or an error status

- Nothing is answered before there is sound: until then every failure is a status with a reason.
- After that a failure breaks the connection, so that a client never takes half an utterance for a whole one.
- A client that leaves, before or after the first sound, ends the speech at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import HTTPException, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .audio.formats import content_type, pcm16, wav_header
from .errors import InvalidRequest, OrpheusServingError
from .request import SpeechRequest
from .synthesizer import Samples, Speech, Synthesizer

log = logging.getLogger(__name__)

CLIENT_LEFT = 499  # nobody reads it; logs and metrics do


async def speech_response(synthesizer: Synthesizer, body: Any, request: Request) -> StreamingResponse:
    """The answer to a decoded JSON body. Raises HTTPException 422 (bad request, "field: reason"), 502 (failed), 499 (left)."""
    try:
        wanted = SpeechRequest.parse(body)
        speech = synthesizer.speak(wanted)
    except InvalidRequest as error:
        raise HTTPException(422, str(error)) from error
    first = await _first_samples(speech, request)
    return SpeechStream(
        _body(speech, first, synthesizer.sample_rate),
        media_type=content_type(wanted.response_format, synthesizer.sample_rate),
        headers={"X-Request-Id": speech.id.encode("ascii", "replace").decode(), "X-Seed": str(speech.seed)},
    )


async def _first_samples(speech: Speech, request: Request) -> Samples:
    """Wait for sound or for the client to leave, whichever is first."""
    first = asyncio.ensure_future(anext(aiter(speech)))
    left = asyncio.ensure_future(request.receive())  # the body has been read: what comes now is the disconnect
    try:
        await asyncio.wait((first, left), return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            raise HTTPException(CLIENT_LEFT, "the client left before the first sound")
        return first.result()
    except StopAsyncIteration:
        raise HTTPException(502, "the model ended without a sound; try another seed or a longer text") from None
    except OrpheusServingError as error:
        log.exception("request %s failed before its first sound", speech.id)
        raise HTTPException(502, f"speech failed: {error}") from error
    finally:
        left.cancel()
        if not first.done():
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await first


async def _body(speech: Speech, first: Samples, sample_rate: int) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(speech):
        if speech.request.response_format == "wav":
            yield wav_header(sample_rate)
        yield pcm16(first)
        async for samples in speech:
            yield pcm16(samples)


class SpeechStream(StreamingResponse):
    """A streaming response that lets go of everything as soon as it is over, however it ends.

    The Truss server frees a request's place when its response object is collected. Two things would keep that object alive
    until the next cyclic collection: a traceback that passes through the frame that holds it, and the frame itself. So the
    work is done by an inner response, `self` is dropped first, and an error is logged here instead of raised further. The
    server then sees a body without an end and breaks the connection, which is what the client has to see.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body: Any = self.body_iterator
        inner = StreamingResponse(body, status_code=self.status_code)
        inner.raw_headers = self.raw_headers
        del self
        try:
            await inner(scope, receive, send)
        except Exception:
            log.exception("a stream broke off")
        finally:
            await body.aclose()
