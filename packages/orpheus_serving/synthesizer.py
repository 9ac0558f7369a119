"""The pipeline: a request in, an asynchronous stream of samples out. Read this file first.

    SpeechRequest
      -> normalise -> plan_chunks                     text, split at sentences
      -> producer task, chunk after chunk:
           prompt ids -> engine.generate -> ids -> FrameAssembler -> frames -> codec stream
      -> reader (the caller's iteration), chunk after chunk:
           codec stream -> EdgeShaper -> float32 samples

While a chunk is being listened to, the next one is generated, and no more than that: a slow listener holds two chunks of audio,
whatever the length of the text.

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
from collections.abc import AsyncGenerator
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
from .text.normalise import normalise, speakable
from .tokens import FrameAssembler

Samples = NDArray[np.float32]
Outcome = Literal["complete", "length", "cancelled", "error"]

CHUNKS_ALIVE = 2  # one that is listened to, one ahead
# A chunk that outlasts both is a runaway. English speech has 12 to 17 characters a second; 6 is a very slow reader.
SLOWEST_SPEECH = 6.0  # characters a second
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

    async def start(self) -> None:
        """Load and warm up. Raises EngineError, CheckpointError or CodecError."""
        await self.codec.start()
        await self.engine.start()

    async def stop(self) -> None:
        """End every stream (its iterator raises) and free the memory."""
        await self.engine.stop()
        await self.codec.stop()

    def speak(self, request: SpeechRequest) -> Speech:
        """Check a request and make its stream; nothing runs before it is iterated. Raises InvalidRequest."""
        checkpoint = self.checkpoint
        if len(request.prompt) > self.settings.max_text:
            limit = self.settings.max_text
            raise InvalidRequest("prompt", f"{len(request.prompt)} characters; at most {limit}. Send it in parts.")
        voice = self.default_voice if request.voice is None else checkpoint.check_voice(request.voice)
        text = normalise(request.prompt, checkpoint.text_level, checkpoint.tags)
        if not text or not speakable(text, checkpoint.tags):
            raise InvalidRequest("prompt", "nothing in it can be spoken; it needs letters or digits")
        most = request.max_chunk_size or self.settings.max_chunk_size
        return Speech(self, request, voice, plan_chunks(text, first=most, most=most, tags=checkpoint.tags))


class Speech:
    """One utterance: an asynchronous iterator of float32 samples in -1 .. 1 at the codec's rate."""

    def __init__(self, synthesizer: Synthesizer, request: SpeechRequest, voice: str | None, chunks: list[str]) -> None:
        self.request = request
        self.id = request.request_id or secrets.token_hex(8)
        self.seed = secrets.randbelow(MAX_SEED) if request.seed is None else request.seed
        self.voice = voice
        self.chunks = chunks
        self.outcome: Outcome | None = None
        self.stats = SpeechStats()
        self._owner = synthesizer
        self._asked = 0.0
        self._cut = False
        self._streams: asyncio.Queue[CodecStream | None] = asyncio.Queue()
        self._open: list[CodecStream] = []
        self._ahead = asyncio.Semaphore(CHUNKS_ALIVE)
        self._samples = self._read()

    def __aiter__(self) -> AsyncGenerator[Samples, None]:
        return self._samples

    async def aclose(self) -> None:
        """Stop at once. When this returns the engine's request is closed and the codec's slots are free."""
        await self._samples.aclose()
        if self.outcome is None:  # it was never iterated
            self.outcome = "cancelled"

    async def _read(self) -> AsyncGenerator[Samples, None]:
        producer = asyncio.create_task(self._produce(), name=f"speech {self.id}")
        self._owner.active.add(self)
        self._asked = time.monotonic()
        try:
            while (stream := await self._streams.get()) is not None:
                shaper = EdgeShaper(self._owner.sample_rate)
                async for samples in stream:
                    shaped = shaper.push(samples)
                    if len(shaped):
                        yield self._count(shaped)
                rest = shaper.finish()
                if len(rest):
                    yield self._count(rest)
                self._open.remove(stream)
                self._ahead.release()
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
        left = self.request.max_tokens
        try:
            for number, text in enumerate(self.chunks):
                await self._ahead.acquire()
                stream = self._owner.codec.open((self.seed + number) % (MAX_SEED + 1), self._owner.settings.early_audio)
                self._open.append(stream)
                self._streams.put_nowait(stream)
                try:
                    used = await self._generate(number, text, left, stream)
                except Exception as error:
                    stream.fail(error)
                    raise
                stream.end()
                self.stats.chunks += 1
                if left is not None:
                    left -= used
                    if left < self._owner.checkpoint.layout.slots and number + 1 < len(self.chunks):
                        self._cut = True
                        return
        finally:
            self._streams.put_nowait(None)

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
            raise EngineError(f"request {self.id}: the model ended without a sound for {text[:60]!r}")
        return count

    def _cap(self, text: str) -> int:
        """Most tokens that this text can reasonably take."""
        tags = sum(text.count(f"<{tag}>") for tag in self._owner.checkpoint.tags)
        seconds = ALLOWANCE + len(text) / SLOWEST_SPEECH + TAG_SECONDS * tags
        frame_seconds = self._owner.codec.frame_samples / self._owner.sample_rate
        return self._owner.checkpoint.layout.slots * math.ceil(seconds / frame_seconds) + 1  # the end's own id

    def _sampling(self, number: int, max_tokens: int) -> Sampling:
        values: dict[str, Any] = self._owner.checkpoint.sampling(self.voice)
        for name in ("temperature", "top_p", "top_k", "repetition_penalty"):
            asked = getattr(self.request, name)
            if asked is not None:
                values[name] = asked
        return Sampling(max_tokens=max_tokens, seed=(self.seed + number) % (MAX_SEED + 1), **values)
