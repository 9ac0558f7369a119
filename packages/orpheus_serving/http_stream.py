"""A request body in, an HTTP answer out, for the Truss: refusals as JSON, speech as a stream.

    JSON body -> SpeechRequest -> Speech -> first samples awaited -> 200 and a stream, or an error status

- Nothing is answered before there is sound: until then every failure is a status with a reason.
- After that a failure breaks the connection, so that a client never takes half an utterance for a whole one.
- A client that leaves, before or after the first sound, ends the speech at once.

The server of `orpheus_serving.server` keeps the same rules around its own admission (server/answer.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi import HTTPException, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .audio.encoders import Encoder, open_encoder
from .errors import InvalidRequest, OrpheusServingError
from .request import SpeechRequest
from .synthesizer import Samples, Speech, Synthesizer

log = logging.getLogger(__name__)

CLIENT_LEFT = 499  # nobody reads it; logs and metrics do


class ClientLeft(Exception):
    """The client closed the connection."""


@contextlib.asynccontextmanager
async def until_left(receive: Receive) -> AsyncIterator[None]:
    """Interrupt the block where it waits when the client closes the connection, and raise ClientLeft from it.

    The request's body has to have been read: what comes next from `receive` is then the disconnect.
    """
    task = asyncio.current_task()
    assert task is not None
    block: asyncio.Task[Any] = task
    gone = False

    def leave(watch: asyncio.Future[Any]) -> None:
        nonlocal gone
        if not watch.cancelled():
            gone = True
            block.cancel()

    watch = asyncio.ensure_future(_disconnect(receive))
    watch.add_done_callback(leave)
    try:
        yield
    except asyncio.CancelledError:
        if gone and block.uncancel() <= 0:
            raise ClientLeft from None
        raise
    finally:
        watch.remove_done_callback(leave)
        watch.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def header_value(text: str) -> str:
    """A client's text as it may stand in a header: printable ASCII, and above all no line breaks."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)


async def speech_response(synthesizer: Synthesizer, body: Any, request: Request) -> StreamingResponse:
    """The answer to a decoded JSON body. Raises HTTPException 422 (bad request, "field: reason"), 502 (failed), 499 (left)."""
    try:
        wanted = SpeechRequest.parse(body)
        speech = synthesizer.speak(wanted)
    except InvalidRequest as error:
        raise HTTPException(422, str(error)) from error
    first = await _first_samples(speech, request)
    encoder = open_encoder(wanted.response_format, synthesizer.sample_rate)
    return SpeechStream(
        _body(speech, first, encoder),
        media_type=encoder.content_type,
        headers={"X-Request-Id": header_value(speech.id), "X-Seed": str(speech.seed)},
    )


async def _first_samples(speech: Speech, request: Request) -> Samples:
    """Wait for sound or for the client to leave, whichever is first."""
    try:
        async with until_left(request.receive):
            return await anext(aiter(speech))
    except ClientLeft:
        raise HTTPException(CLIENT_LEFT, "the client left before the first sound") from None
    except StopAsyncIteration:
        raise HTTPException(502, "the model ended without a sound; try another seed or a longer text") from None
    except OrpheusServingError as error:
        log.exception("request %s failed before its first sound", speech.id)
        raise HTTPException(502, f"speech failed: {error}") from error


async def _body(speech: Speech, first: Samples, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(speech):
        yield encoder.encode(first)
        async for samples in speech:
            yield encoder.encode(samples)


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
