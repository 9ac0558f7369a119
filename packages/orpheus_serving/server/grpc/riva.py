"""`nvidia.riva.tts.RivaSpeechSynthesis`: its requests to the server's service, its answers, and errors as gRPC's statuses.

    SynthesizeSpeechRequest(s) -> SpeechRequest, text -> service.speech -> AudioWriter -> SynthesizeSpeechResponse(s)

    what is wrong                              status                details
    the request                                INVALID_ARGUMENT      "field: reason", google.rpc.BadRequest
    every place is taken                       RESOURCE_EXHAUSTED    google.rpc.RetryInfo, grpc-retry-pushback-ms
    the server is starting or stopping         UNAVAILABLE           the same
    the model or the codec, before or midway   INTERNAL
    the client takes nothing, or sends nothing DEADLINE_EXCEEDED

A stream is over with OK only when all of its audio has been sent. When the client cancels, leaves or its deadline passes, gRPC
cancels the task that serves it, wherever that waits, and the speech ends with the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from ...errors import InvalidRequest, OrpheusServingError, Overloaded
from ...request import SpeechRequest
from ..logs import ident_for, request_id
from ..service import ClientStalled, Service
from ..tracing import traceparent
from .audio import AudioWriter
from .riva_common_pb2 import RequestId
from .riva_tts_pb2 import (
    RivaSynthesisConfigRequest,
    RivaSynthesisConfigResponse,
    SynthesizeSpeechRequest,
    SynthesizeSpeechResponse,
    SynthesizeSpeechResponseMetadata,
)
from .riva_tts_pb2_grpc import RivaSpeechSynthesisServicer

log = logging.getLogger(__name__)

PROTOCOL = "grpc"  # in metrics and logs
MAX_ANSWER = 32 * 2**20  # bytes of audio in one message: 11 minutes of PCM at 24,000 Hz
PIECE = 32 * 2**10  # bytes of audio in one message of a stream, at most

# What custom_configuration may hold, and how it is read.
KNOBS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "repetition_penalty": float,
    "seed": int,
    "max_tokens": int,
    "max_chunk_size": int,
}
# What Pipecat's service asks for when nobody has named a voice: the server's default then.
CLIENT_DEFAULT_VOICES = frozenset({"magpie-multilingual.en-us.aria"})
# Riva's clients ask by region; checkpoints name languages alone.
REGIONS = {"en": "en-US", "fr": "fr-FR", "de": "de-DE", "es": "es-ES", "it": "it-IT", "ko": "ko-KR", "zh": "zh-CN", "hi": "hi-IN"}

Context = Any  # grpc.aio.ServicerContext; grpc has no types


class RivaService(RivaSpeechSynthesisServicer):
    """The three methods. Those that speak take a place among the server's streams, like every other protocol."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._name = re.sub(r"\s+", "-", service.synthesizer.checkpoint.name)

    async def Synthesize(self, request: SynthesizeSpeechRequest, context: Context) -> SynthesizeSpeechResponse:
        audio = bytearray()
        async with _statuses(context):
            _remember(request, context)
            wanted, writer = self._read(request)
            async with self._service.speech(wanted, protocol=PROTOCOL) as speech:
                processed = " ".join(speech.speech.chunks)
                async for samples in speech:
                    audio += await writer.write(samples)
                    if len(audio) > MAX_ANSWER:
                        raise InvalidRequest("text", f"more than {MAX_ANSWER} bytes of audio; use SynthesizeOnline for it")
                audio += await writer.finish()
            meta = SynthesizeSpeechResponseMetadata(text=request.text, processed_text=processed)
            return SynthesizeSpeechResponse(audio=bytes(audio), meta=meta, id=_ident(request))
        raise AssertionError  # _statuses raises what it catches; this tells mypy

    async def SynthesizeOnline(self, requests: Any, context: Context) -> None:
        """A coroutine, not a generator: gRPC leaves a generator that is cancelled at a `yield` to the garbage collector."""
        async with _statuses(context):
            first = await self._next(context)
            if first is None:
                raise InvalidRequest("text", "the stream was closed without a request")
            _remember(first, context)
            wanted, writer = self._read(first)
            answer = _Answer(context, _ident(first), self._service.options.stall_timeout)
            async with self._service.speech(wanted, protocol=PROTOCOL, text=self._texts(first, context, answer)) as speech:
                async for samples in speech:
                    await answer.send(await writer.write(samples))
                if not speech.stats.samples:
                    raise InvalidRequest("text", "nothing in it can be spoken; it needs letters or digits")
                await answer.send(await writer.finish())

    async def GetRivaSynthesisConfig(self, request: RivaSynthesisConfigRequest, context: Context) -> RivaSynthesisConfigResponse:
        checkpoint = self._service.synthesizer.checkpoint
        parameters = {
            "voice_name": self._name,
            "subvoices": ",".join(f"{voice}:{number}" for number, voice in enumerate(checkpoint.voices)),
            "sample_rate": str(self._service.sample_rate),
            "type": "Orpheus",
        }
        response = RivaSynthesisConfigResponse()
        if request.model_name in ("", self._name):
            for language in checkpoint.languages:
                code = REGIONS.get(language, language)
                response.model_config.add(model_name=self._name, parameters={**parameters, "language_code": code})
        return response

    async def _next(self, context: Context) -> SynthesizeSpeechRequest | None:
        """The client's first request, or None where it closes its side without one."""
        limit = self._service.options.stall_timeout
        try:
            async with asyncio.timeout(limit):
                message = await context.read()
        except TimeoutError:
            raise ClientStalled(f"no request came within {limit:g} s") from None
        return None if message is grpc.aio.EOF else message

    async def _texts(self, first: SynthesizeSpeechRequest, context: Context, answer: _Answer) -> AsyncIterator[str | None]:
        """The texts of a stream's messages, each with a flush behind it: it is whole and is spoken at once.

        Raises InvalidRequest for a message that wants something else than the first one, and ClientStalled where no message
        comes and no audio leaves for `idle_timeout`.
        """
        message = first
        while message is not grpc.aio.EOF:
            for field in ("language_code", "encoding", "sample_rate_hz", "voice_name"):
                value = getattr(message, field)
                if value and value != getattr(first, field):
                    raise InvalidRequest(field, "must stay as it was in the stream's first message")
            if message is not first:
                _refuse_unsupported(message)
            if message.text:
                yield message.text
                yield None
            message = await self._next_text(context, answer)

    async def _next_text(self, context: Context, answer: _Answer) -> Any:
        limit = self._service.options.idle_timeout
        asked = time.monotonic()
        read = asyncio.ensure_future(context.read())
        try:
            while not read.done():
                left = max(asked, answer.sent_at) + limit - time.monotonic()
                if left <= 0:
                    raise ClientStalled(f"no request came for {limit:g} s; close your side when there are no more")
                await asyncio.wait((read,), timeout=left)
            return read.result()
        finally:
            read.cancel()

    def _read(self, request: SynthesizeSpeechRequest) -> tuple[SpeechRequest, AudioWriter]:
        """What is asked for. Raises InvalidRequest with the field as the client knows it."""
        _refuse_unsupported(request)
        self._check_language(request.language_code)
        writer = AudioWriter(request.encoding, self._service.sample_rate, request.sample_rate_hz)
        body: dict[str, Any] = {"prompt": request.text, "voice": self._voice(request.voice_name)}
        for name, read in KNOBS.items():
            if name in request.custom_configuration:
                try:
                    body[name] = read(request.custom_configuration[name])
                except ValueError:
                    raise InvalidRequest(name, f"{request.custom_configuration[name]!r} is not a number") from None
        return SpeechRequest.parse(body), writer

    def _voice(self, name: str) -> str | None:
        """The checkpoint's name of a voice: "tara" or, as GetRivaSynthesisConfig has it, "Orpheus-3B.tara". None: the default."""
        if name.lower() in CLIENT_DEFAULT_VOICES:
            return None
        model, _, voice = name.rpartition(".")
        return (voice if model == self._name else name) or None

    def _check_language(self, code: str) -> None:
        languages = self._service.synthesizer.checkpoint.languages
        if code and re.split("[-_]", code)[0].lower() not in {re.split("[-_]", known)[0].lower() for known in languages}:
            raise InvalidRequest("language_code", f"{code!r} is not spoken; this model speaks {', '.join(languages)}")


def _refuse_unsupported(request: SynthesizeSpeechRequest) -> None:
    """Refuse what would change the sound and cannot be done, rather than speak as if it had not been asked for."""
    if request.zero_shot_data.audio_prompt:
        raise InvalidRequest("zero_shot_data", "recordings cannot be imitated here; name a voice in voice_name")
    if request.custom_dictionary:
        raise InvalidRequest("custom_dictionary", "the model reads letters and knows no phonemes; spell the words as they sound")


def _remember(request: SynthesizeSpeechRequest, context: Context) -> None:
    """Set what logs and traces say about this call, which is a task of its own: the client's id, and the trace it belongs to."""
    metadata = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
    request_id.set(ident_for(request.id.value or metadata.get("x-request-id", "")))
    traceparent.set(metadata.get("traceparent"))


def _ident(request: SynthesizeSpeechRequest) -> RequestId:
    """What answers are marked with: the client's id as it is, or the one that stands in the logs."""
    return request.id if request.id.value else RequestId(value=request_id.get() or "")


class _Answer:
    """Sends the audio of a stream in messages of bounded size, and waits for a slow reader, though not for ever."""

    def __init__(self, context: Context, ident: RequestId, stall_timeout: float) -> None:
        self._context = context
        self._ident = ident
        self._stall_timeout = stall_timeout
        self.sent_at = 0.0  # time.monotonic

    async def send(self, audio: bytes) -> None:
        for start in range(0, len(audio), PIECE):
            message = SynthesizeSpeechResponse(audio=audio[start : start + PIECE], id=self._ident)
            try:
                async with asyncio.timeout(self._stall_timeout):
                    await self._context.write(message)
            except TimeoutError:
                raise ClientStalled(f"the client took no audio for {self._stall_timeout:g} s") from None
            self.sent_at = time.monotonic()


# ------------------------------------------------------------------------------------------------------------- statuses


@contextlib.asynccontextmanager
async def _statuses(context: Context) -> AsyncIterator[None]:
    """Answers the package's errors with a status. Cancellation, and what gRPC raises itself, pass."""
    try:
        yield
    except InvalidRequest as error:
        field = {"prompt": "text", "voice": "voice_name"}.get(error.field, error.field)
        field = f"custom_configuration.{field}" if field in KNOBS else field
        reason = BadRequest(field_violations=[BadRequest.FieldViolation(field=field, description=error.reason)])
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {error.reason}", reason)
    except Overloaded as error:
        code = grpc.StatusCode.UNAVAILABLE if error.status == 503 else grpc.StatusCode.RESOURCE_EXHAUSTED
        pushback = ("grpc-retry-pushback-ms", str(1000 * error.retry_after))  # obeyed by clients with a retry policy
        await _abort(context, code, str(error), RetryInfo(retry_delay=Duration(seconds=error.retry_after)), pushback)
    except ClientStalled as error:  # here, not where it was raised: the answer waits until the client reads again
        await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
    except OrpheusServingError as error:  # logged by the service
        await _abort(context, grpc.StatusCode.INTERNAL, f"speech failed: {error}")
    except (grpc.aio.AbortError, grpc.aio.BaseError):
        raise
    except Exception:
        log.exception("a gRPC request failed")
        await _abort(context, grpc.StatusCode.INTERNAL, "internal error")


async def _abort(
    context: Context, code: Any, message: str, detail: Message | None = None, *trailers: tuple[str, str]
) -> NoReturn:
    """End the call, with `detail` where google.rpc's rich errors are looked for."""
    metadata: list[tuple[str, str | bytes]] = list(trailers)
    if detail is not None:
        status = Status(code=code.value[0], message=message)
        status.details.add().Pack(detail)
        metadata.append(("grpc-status-details-bin", status.SerializeToString()))
    await context.abort(code, message, tuple(metadata))
    raise AssertionError("abort returns never")
