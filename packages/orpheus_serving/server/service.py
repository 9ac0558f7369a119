"""What every protocol uses: a place among the running streams, then speech, with its outcome counted and logged.

    request -> checked -> [queue] -> place -> Speech, timed against playback -> outcome

    async with service.speech(request, protocol="openai") as speech:
        async for samples in speech:
            ...

Leaving the block, however it happens, ends the speech and gives the place to the next one. Read the speech in the task that
opened it: the time limit interrupts that task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

import numpy as np

from ..errors import EngineError, InvalidRequest, OrpheusServingError, Overloaded
from ..request import SpeechRequest
from ..synthesizer import Event, Samples, Speech, SpeechStats, Synthesizer
from .auth import Keys
from .logs import request_id
from .metrics import Metrics, Playback
from .options import ServerOptions
from .tracing import end_span, start_span
from .voices import voice_aliases

log = logging.getLogger(__name__)

State = Literal["starting", "ready", "draining", "stopped", "failed"]

LONGEST_RETRY = 60  # seconds; openai-python ignores a longer Retry-After
FIRST_GUESS = 5.0  # seconds of a stream, before one has ended
REFUSAL_PAUSE = 0.004  # seconds; a refusal costs about 0.8 ms, so that most of a core is left whatever comes


class ClientStalled(Exception):
    """The client has taken nothing for `stall_timeout`; a protocol raises it inside `Service.speech` to end the stream."""


class ServedSpeech:
    """A running `Speech`: iterate it for float32 samples, or `events()` for more. Its fields are those of the speech."""

    def __init__(self, speech: Speech, playback: Playback) -> None:
        self.speech = speech
        self._playback = playback

    def __aiter__(self) -> ServedSpeech:
        return self

    async def __anext__(self) -> Samples:
        while True:
            event = await self._next()
            if isinstance(event, np.ndarray):
                return event

    async def events(self) -> AsyncGenerator[Event, None]:
        """The samples, and between them what has been spoken (see `Speech.events`)."""
        while True:
            try:
                event = await self._next()
            except StopAsyncIteration:
                return
            yield event

    async def _next(self) -> Event:
        self._playback.asked()
        event = await anext(self.speech.events())
        if isinstance(event, np.ndarray):
            self._playback.arrived(event, self.speech.wait)
        return event

    async def aclose(self) -> None:
        """Stop at once; leaving the `async with` does the same."""
        await self.speech.aclose()

    @property
    def request(self) -> SpeechRequest:
        return self.speech.request

    @property
    def id(self) -> str:
        return self.speech.id

    @property
    def seed(self) -> int:
        return self.speech.seed

    @property
    def voice(self) -> str | None:
        return self.speech.voice

    @property
    def stats(self) -> SpeechStats:
        return self.speech.stats

    @property
    def outcome(self) -> str | None:
        return self.speech.outcome


class Service:
    """One synthesizer and what stands around it. Protocols use `speech`, `refusal`, `keys` and the read-only fields."""

    def __init__(self, synthesizer: Synthesizer, options: ServerOptions, tracer: Any = None) -> None:
        self.synthesizer = synthesizer
        self.options = options
        self.keys = Keys(options.api_keys)
        self.metrics = Metrics()
        self.metrics.watch(synthesizer)
        self._state: State = "starting"
        self.aliases = voice_aliases(synthesizer.checkpoint.voices)
        "Names beside the checkpoint's own, {alias: voice}."
        self.max_active = options.max_active or synthesizer.settings.max_streams
        self.max_queued = self.max_active if options.max_queued is None else options.max_queued
        self.active = 0
        self.queued = 0
        self._places = asyncio.Semaphore(self.max_active)
        self._door = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._usual_seconds = FIRST_GUESS
        self._tracer = tracer
        self.loaded = asyncio.Event()
        "Loading is over: the state says how it went."

    @property
    def state(self) -> State:
        """`failed`: it could not be loaded, or the engine or the codec has died since; only a restart helps."""
        return "failed" if self._state == "ready" and self.synthesizer.failure else self._state

    @property
    def ready(self) -> bool:
        """Loaded, alive, and not on its way out."""
        return self.state == "ready"

    @property
    def sample_rate(self) -> int:
        return self.synthesizer.sample_rate

    async def start(self) -> None:
        """Load and warm up; requests are refused until it is done. Raises EngineError, CheckpointError or CodecError."""
        try:
            await self.synthesizer.start()
        except Exception:
            self._state = "failed"
            self.loaded.set()
            raise
        self.loaded.set()
        if self._state == "starting":
            self._state = "ready"

    async def drain(self) -> bool:
        """Refuse what comes from now on and wait for what is running; False if something still is after `drain_timeout`."""
        self._state = "draining"
        try:
            async with asyncio.timeout(self.options.drain_timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End every stream and free the model."""
        self._state = "stopped"
        await self.synthesizer.stop()

    async def refusal(self) -> Overloaded | None:
        """Why a stream that asks now is refused, at once, if it is.

        Refusals leave one by one, REFUSAL_PAUSE apart. They are work too: a flood of them, each answered as soon as it can be,
        would take the event loop and the interpreter from the streams that run.
        """
        refused = self._full()
        if refused:
            async with self._door:
                await asyncio.sleep(REFUSAL_PAUSE)
        return refused

    def _full(self) -> Overloaded | None:
        if not self.ready:
            return Overloaded(f"the server is {self.state}", 5, status=503)
        if self.active + self.queued >= self.max_active + self.max_queued:
            return Overloaded(f"all {self.max_active} places are taken and {self.queued} requests wait", self._retry_after())
        return None

    def voice(self, name: str | None) -> str | None:
        """The checkpoint's voice behind an alias; every other name as it is."""
        return self.aliases.get(name.lower(), name) if name else name

    @contextlib.asynccontextmanager
    async def speech(
        self,
        request: SpeechRequest,
        *,
        protocol: str,
        text: AsyncIterator[str | None] | None = None,
        speed: float = 1.0,
    ) -> AsyncIterator[ServedSpeech]:
        """Admit, then hand out the speech; leaving the block ends it and counts its outcome.

        `text`: where it is given, the words come from it as they are written and `request.prompt` is ignored; None in it asks for
        what is there to be spoken now. `speed`: how many times as fast the protocol lets it be heard.

        Raises InvalidRequest (the caller's fault) and Overloaded, both before anything runs. EngineError, CodecError and what
        `text` raises come out of the iteration, and EngineError out of the block after `request_timeout` seconds.
        A ClientStalled that the caller raises in the block counts as the outcome `stalled`.
        """
        began = time.monotonic()
        span = start_span(self._tracer, f"speech {protocol}")
        outcome = "error"
        speech: Speech | None = None
        playback = Playback(self.metrics, protocol, self.sample_rate * speed, began)
        failure: BaseException | None = None
        try:
            if refused := await self.refusal():
                raise refused
            request = request.model_copy(update={"voice": self.voice(request.voice)})
            speech = self.synthesizer.speak(request, text, speed)
            async with self._place(protocol):
                admitted = time.monotonic()
                try:
                    async with asyncio.timeout(self.options.request_timeout) as limit, contextlib.aclosing(speech):
                        try:
                            yield ServedSpeech(speech, playback)
                        except ClientStalled:
                            outcome = "stalled"
                            raise
                except TimeoutError as error:
                    if not limit.expired():
                        raise
                    outcome = "timeout"
                    raise EngineError(f"stopped after {self.options.request_timeout:g} s, the limit of one stream") from error
                finally:
                    if outcome == "error":
                        outcome = speech.outcome or "error"
                    self._learn(time.monotonic() - admitted)
                    self.metrics.duration.labels(protocol).observe(time.monotonic() - admitted)
        except InvalidRequest as error:  # also midway, where a stream of messages turns out to be wrong
            outcome = "invalid"
            failure = error
            raise
        except Overloaded as error:
            outcome = "overloaded"
            failure = error
            raise
        except (asyncio.CancelledError, GeneratorExit):
            if outcome == "error":  # while it waited for a place
                outcome = "cancelled"
            raise
        except BaseException as error:
            if isinstance(error, OrpheusServingError) and outcome in ("complete", "length"):  # what came is of no use
                outcome = "error"
            failure = error
            raise
        finally:
            self.metrics.requests.labels(protocol, outcome).inc()
            if speech is not None:
                self.metrics.count_work(protocol, speech.stats, self.sample_rate)
            fields = self._fields(protocol, outcome, request, speech, playback, time.monotonic() - began, failure)
            bad = outcome in ("error", "timeout")
            shown = {name: value for name, value in fields.items() if name != "text"}
            end_span(span, shown | {"request_id": request_id.get()}, bad)
            log.log(logging.ERROR if bad else logging.INFO, "speech %s", outcome, extra={"fields": fields})

    @contextlib.asynccontextmanager
    async def _place(self, protocol: str) -> AsyncIterator[None]:
        """One of the places, at once or after a wait in line. Raises Overloaded."""
        asked = time.monotonic()
        self.queued += 1
        self._show()
        try:
            async with asyncio.timeout(self.options.queue_timeout):
                await self._places.acquire()
        except TimeoutError:
            raise Overloaded(f"no place came free within {self.options.queue_timeout:g} s", self._retry_after()) from None
        else:
            self.active += 1
        finally:
            self.queued -= 1
            self._show()
        self.metrics.queue_wait.labels(protocol).observe(time.monotonic() - asked)
        try:
            yield
        finally:
            self.active -= 1
            self._places.release()
            self._show()

    def _show(self) -> None:
        self.metrics.active.set(self.active)
        self.metrics.queued.set(self.queued)
        if self.active + self.queued:
            self._idle.clear()
        else:
            self._idle.set()

    def _learn(self, seconds: float) -> None:
        self._usual_seconds += 0.1 * (seconds - self._usual_seconds)

    def _retry_after(self) -> int:
        """Seconds until a place should be free: how long streams have taken lately, for everybody who is in line."""
        return min(LONGEST_RETRY, max(1, math.ceil(self._usual_seconds * (self.queued + 1) / self.max_active)))

    def _fields(
        self,
        protocol: str,
        outcome: str,
        request: SpeechRequest,
        speech: Speech | None,
        playback: Playback,
        seconds: float,
        failure: BaseException | None,
    ) -> dict[str, Any]:
        """What the log says about a speech that has ended."""
        text = request.prompt or " ".join(speech.chunks if speech else ())  # the latter where it was written bit by bit
        fields: dict[str, Any] = {
            "protocol": protocol,
            "outcome": outcome,
            "characters": len(text),
            "seconds": round(seconds, 4),
        }
        if speech is not None:
            fields |= {
                "speech": speech.id,
                "voice": speech.voice,
                "seed": speech.seed,
                "tokens": speech.stats.tokens,
                "dropped_tokens": speech.stats.dropped_tokens,
                "audio_seconds": round(speech.stats.samples / self.sample_rate, 3),
            }
        if playback.first is not None:
            fields["first_byte_seconds"] = round(playback.first, 4)
        if failure is not None:
            fields["error"] = f"{type(failure).__name__}: {failure}"
        if self.options.log_text:
            fields["text"] = text
        return fields
