"""The pipeline: a request in, an asynchronous stream of samples out. Read this file first.

    SpeechRequest.prompt                              or: text that is still being written, delta after delta
      -> normalise -> plan_chunks                         -> follower task -> StreamedText
      -> producer task, chunk after chunk:
           prompt ids -> engine.generate -> ids -> FrameAssembler -> frames -> codec stream
      -> reader (the caller's iteration), chunk after chunk:
           codec stream -> EdgeShaper -> float32 samples

While a chunk is being listened to, the next one is generated, and no more than that: a slow listener holds two chunks of audio,
whatever the length of the text. Text that is still being written is always read at once; what is there when the producer wants
its next chunk becomes one (text/streamed.py says how far such text is spoken like whole text).

A `Speech` owns everything that was started for it. Closing it, or cancelling whoever reads it, stops the engine's
request and frees the codec's slots before `aclose` returns. It ends in one `outcome`:

    complete    every chunk was spoken to its end
    length      something was cut: by the request's `max_tokens`, or a chunk that ran on past any likely length of its text
    cancelled   the reader left
    error       the engine or the codec failed; the iterator raised
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .audio.shaping import EdgeShaper
from .checkpoint import Checkpoint
from .codec import Codec, CodecStream
from .engines.base import Engine, Sampling
from .errors import EngineError, InvalidRequest
from .request import MAX_SEED, SpeechRequest
from .settings import Settings
from .text.chunks import plan_chunks
from .text.normalise import normalise, speakable, spoken_length
from .text.streamed import FLUSHED, StreamedText
from .tokens import FrameAssembler

Samples = NDArray[np.float32]
Outcome = Literal["complete", "length", "cancelled", "error"]

CHUNKS_ALIVE = 2  # one that is listened to, one ahead
# A chunk that outlasts both is a runaway. English speech has 12 to 17 characters a second; 6 is a very slow reader.
SLOWEST_SPEECH = 6.0  # characters a second, of what is said and not of what is written: "78,901" is short to write
ALLOWANCE = 1.5  # seconds: pauses at both ends, one-word texts
TAG_SECONDS = 2.0  # a laugh takes longer than its letters


@dataclass(slots=True)
class SpeechStats:
    """What a stream has done so far."""

    chunks: int = 0
    tokens: int = 0
    dropped_tokens: int = 0
    frames: int = 0
    samples: int = 0
    first_audio: float | None = None
    "Seconds from the first asking for samples to getting them."


@dataclass(frozen=True, slots=True)
class Spoken:
    """All samples of a chunk have been handed out: what was said, and where in the speech's audio, in seconds."""

    text: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Wait:
    """For how long a chunk's text was waited for while it was written, and until when (time.monotonic)."""

    seconds: float = 0.0
    until: float = -math.inf


class Flushed:
    """All samples of the text before a flush have been handed out."""


Event = Samples | Spoken | Flushed


class Synthesizer:
    """An engine, a codec and the checkpoint that both belong to. Start it once, then `speak` as often as needed."""

    def __init__(self, checkpoint: Checkpoint, engine: Engine, codec: Codec, settings: Settings) -> None:
        self.checkpoint = checkpoint
        self.engine = engine
        self.codec = codec
        self.settings = settings
        self.default_voice = checkpoint.check_voice(settings.voice) if settings.voice else None
        if self.default_voice is None and checkpoint.voices:
            self.default_voice = checkpoint.voices[0]
        if codec.decoder.weights.slots != checkpoint.layout.slots:
            raise InvalidRequest(
                "codec",
                f"its frames have {codec.decoder.weights.slots} codes, the checkpoint's {checkpoint.layout.slots}; they do not"
                " belong together",
            )
        self.active: set[Speech] = set()

    @property
    def sample_rate(self) -> int:
        return self.codec.sample_rate

    @property
    def failure(self) -> str:
        """Why nothing can be spoken until it is started again; empty while it can."""
        return self.engine.failure or self.codec.failure

    async def start(self) -> None:
        """Load and warm up. Raises EngineError, CheckpointError or CodecError."""
        await self.codec.start()
        await self.engine.start()

    async def stop(self) -> None:
        """End every stream (its iterator raises) and free the memory."""
        await self.engine.stop()
        await self.codec.stop()

    def speak(self, request: SpeechRequest, text: AsyncIterator[str | None] | None = None, speed: float = 1.0) -> Speech:
        """Check a request and make its stream; nothing runs before it is iterated. Raises InvalidRequest.

        text: deltas of text that is still being written, instead of `request.prompt`. They may split words, tags and
        characters anywhere; what is spoken is exactly their concatenation. None among them is a flush: what is there is
        spoken now, even if a sentence or a word is not over. The end of the iterator ends the text; one without anything to
        say makes a speech without a sample. Past `settings.max_text` characters the speech raises InvalidRequest.
        speed: how many times as fast the caller lets it be heard; the samples are the same, the engine may have to hurry.
        """
        checkpoint = self.checkpoint
        voice = self.default_voice if request.voice is None else checkpoint.check_voice(request.voice)
        most = request.max_chunk_size or self.settings.max_chunk_size
        if text is not None:
            streamed = StreamedText(checkpoint.text_level, checkpoint.tags, most)
            return Speech(self, request, voice, _WrittenText(text, streamed, self.settings.max_text), speed)
        if len(request.prompt) > self.settings.max_text:
            raise _too_long(len(request.prompt), self.settings.max_text)
        whole = normalise(request.prompt, checkpoint.text_level, checkpoint.tags)
        if not whole or not speakable(whole, checkpoint.tags):
            raise InvalidRequest("prompt", "nothing in it can be spoken; it needs letters or digits")
        return Speech(self, request, voice, _WholeText(plan_chunks(whole, most=most, tags=checkpoint.tags)), speed)


def _too_long(length: int, most: int) -> InvalidRequest:
    return InvalidRequest("prompt", f"{length} characters; at most {most}. Send it in parts.")


class _WholeText:
    """Chunks that are all known."""

    def __init__(self, chunks: list[str]) -> None:
        self.chunks = chunks
        self.wait = Wait()
        self._left = iter(chunks)

    async def take(self) -> str | Flushed | None:
        return next(self._left, None)

    async def close(self) -> None:
        pass


class _WrittenText:
    """Chunks of text that is still being written; a task of its own reads it as fast as it comes."""

    def __init__(self, deltas: AsyncIterator[str | None], streamed: StreamedText, most: int) -> None:
        self.chunks: list[str] = []
        self.wait = Wait()
        "For the chunk that was taken last, flushes before it included."
        self._deltas = deltas
        self._streamed = streamed
        self._most = most
        self._news = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._flushed = False

    async def take(self) -> str | Flushed | None:
        """The next chunk, as soon as one is certain; None at the end. Raises what reading the text raised."""
        if self._follower is None:
            self._follower = asyncio.create_task(self._follow(), name="written text")
        if not self._flushed:
            self.wait = Wait()
        self._flushed = False
        while True:
            if self._follower.done():
                self._follower.result()
            chunk = self._streamed.take()
            if chunk is FLUSHED:
                self._flushed = True
                return Flushed()
            if chunk is not None:
                self.chunks.append(chunk)
                return chunk
            if self._follower.done():
                return None
            self._news.clear()
            began = time.monotonic()
            await self._news.wait()
            now = time.monotonic()
            self.wait = Wait(self.wait.seconds + now - began, now)

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait((self._follower,))

    async def _follow(self) -> None:
        length = 0
        try:
            async for delta in self._deltas:
                if delta is None:
                    self._streamed.flush(mark=True)
                else:
                    length += len(delta)
                    if length > self._most:
                        raise _too_long(length, self._most)
                    self._streamed.push(delta)
                self._news.set()
            self._streamed.flush()
        finally:
            self._news.set()


class Speech:
    """One utterance: an asynchronous iterator of float32 samples in -1 .. 1 at the codec's rate.

    `events()` instead of iterating it gives the same samples, and between them what has been spoken (see `Spoken`, `Flushed`).
    """

    def __init__(
        self, synthesizer: Synthesizer, request: SpeechRequest, voice: str | None, text: _WholeText | _WrittenText, speed: float
    ) -> None:
        self.request = request
        self.id = request.request_id or secrets.token_hex(8)
        self.seed = secrets.randbelow(MAX_SEED) if request.seed is None else request.seed
        self.voice = voice
        self.chunks = text.chunks
        "What is spoken, in turn: all of whole text, what has been taken so far of text that is still being written."
        self.outcome: Outcome | None = None
        self.stats = SpeechStats()
        self.wait = Wait()
        "For the text of the chunk whose samples are handed out."
        self._owner = synthesizer
        self._text = text
        self._speed = speed
        frames = synthesizer.sample_rate / synthesizer.codec.frame_samples
        self._pace = speed * frames * synthesizer.checkpoint.layout.slots  # ids a second
        self._asked = 0.0
        self._cut = False
        self._streams: asyncio.Queue[tuple[CodecStream, str, Wait] | Flushed | None] = asyncio.Queue()
        self._open: list[CodecStream] = []
        self._ahead = asyncio.Semaphore(CHUNKS_ALIVE)
        self._events = self._read()

    def __aiter__(self) -> AsyncIterator[Samples]:
        return self

    async def __anext__(self) -> Samples:
        while True:
            event = await anext(self._events)
            if isinstance(event, np.ndarray):
                return event

    def events(self) -> AsyncGenerator[Event, None]:
        return self._events

    async def aclose(self) -> None:
        """Stop at once. When this returns the engine's request is closed and the codec's slots are free."""
        await self._events.aclose()
        if self.outcome is None:  # it was never iterated
            self.outcome = "cancelled"

    async def _read(self) -> AsyncGenerator[Event, None]:
        producer = asyncio.create_task(self._produce(), name=f"speech {self.id}")
        self._owner.active.add(self)
        self._asked = time.monotonic()
        rate = self._owner.sample_rate
        try:
            while (item := await self._streams.get()) is not None:
                if isinstance(item, Flushed):
                    yield item
                    continue
                stream, text, self.wait = item
                start = self.stats.samples
                shaper = EdgeShaper(rate)
                async for samples in stream:
                    shaped = shaper.push(samples)
                    if len(shaped):
                        yield self._count(shaped)
                rest = shaper.finish()
                if len(rest):
                    yield self._count(rest)
                self._open.remove(stream)
                self._ahead.release()
                yield Spoken(text, start / rate, self.stats.samples / rate)
            await producer
            self.outcome = "length" if self._cut else "complete"
        except (GeneratorExit, asyncio.CancelledError):
            self.outcome = "cancelled"
            raise
        except BaseException:
            self.outcome = "error"
            raise
        finally:
            for stream in self._open:
                stream.close()
            self._owner.active.discard(self)
            producer.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # an error has reached the reader already
                await producer

    def _count(self, samples: Samples) -> Samples:
        if self.stats.first_audio is None:
            self.stats.first_audio = time.monotonic() - self._asked
        self.stats.samples += len(samples)
        return samples

    async def _produce(self) -> None:
        """Generate the chunks in order. A failure goes to the reader through the stream that it reads, or will read."""
        layout = self._owner.checkpoint.layout
        left = self.request.max_tokens
        number = 0
        try:
            while True:
                await self._ahead.acquire()
                while isinstance(text := await self._text.take(), Flushed):
                    self._streams.put_nowait(text)
                if text is None:
                    return
                if left is not None and left < layout.slots:
                    self._cut = True
                    return
                seed = (self.seed + number) % (MAX_SEED + 1)
                stream = self._owner.codec.open(seed, self._owner.settings.early_audio, self._speed)
                self._open.append(stream)
                self._streams.put_nowait((stream, text, self._text.wait))
                try:
                    used = await self._generate(number, text, left, stream)
                    stream.end()
                except Exception as error:
                    stream.fail(error)
                    raise
                self.stats.chunks += 1
                number += 1
                if left is not None:
                    left -= used
        finally:
            self._streams.put_nowait(None)
            await self._text.close()

    async def _generate(self, number: int, text: str, left: int | None, stream: CodecStream) -> int:
        """Speak one chunk into a codec stream; returns the tokens that it took."""
        checkpoint = self._owner.checkpoint
        layout = checkpoint.layout
        cap = self._cap(text)
        sampling = self._sampling(number, cap if left is None else min(cap, left))
        assembler = FrameAssembler(layout)
        tokens = self._owner.engine.generate(checkpoint.prompt(text, self.voice), sampling, f"{self.id}-{number}")
        count, last = 0, None
        async with contextlib.aclosing(tokens):
            async for ids in tokens:
                count += len(ids)
                self.stats.tokens += len(ids)
                last = ids[-1]
                frames = assembler.push(ids)
                self.stats.frames += len(frames)
                stream.push(frames)
        assembler.finish()
        self.stats.dropped_tokens += assembler.dropped
        if last != layout.end_of_speech:
            self._cut = True
        elif not count - 1 - assembler.dropped:
            raise EngineError(f"request {self.id}: the model ended without a sound for chunk {number}, {len(text)} characters")
        return count

    def _cap(self, text: str) -> int:
        """Most tokens that this text can reasonably take."""
        tags = sum(text.count(f"<{tag}>") for tag in self._owner.checkpoint.tags)
        seconds = ALLOWANCE + spoken_length(text) / SLOWEST_SPEECH + TAG_SECONDS * tags
        frame_seconds = self._owner.codec.frame_samples / self._owner.sample_rate
        return self._owner.checkpoint.layout.slots * math.ceil(seconds / frame_seconds) + 1  # the end's own id

    def _sampling(self, number: int, max_tokens: int) -> Sampling:
        values: dict[str, Any] = self._owner.checkpoint.sampling(self.voice)
        for name in ("temperature", "top_p", "top_k", "repetition_penalty"):
            asked = getattr(self.request, name)
            if asked is not None:
                values[name] = asked
        return Sampling(max_tokens=max_tokens, seed=(self.seed + number) % (MAX_SEED + 1), pace=self._pace, **values)
