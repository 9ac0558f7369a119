"""Many audio streams, one decoder, one thread: frames are decoded as they come, together with whatever else is ready.

    CodecStream.push(frames) -> queue -> [codec thread: ready streams -> step / tail -> audio -> pieces] -> CodecStream iterator

There is no timer. The thread takes one frame from every stream that has one (up to `max_batch`), decodes them in one step and
hands the samples to their event loops; frames that arrive meanwhile are the next step. A stream takes a slot of the
decoder with its first frame and gives it back when it ends or is closed; with all slots taken, streams wait in turn.

An engine's step gives many streams a frame, and an event loop hands all of them over in one turn. The thread is woken at the
end of that turn, not in its midst: it then finds them together, and takes one step where it would take several small ones.

Early audio. Exactly `delay` samples (198 ms) lag behind the newest frame in exact mode, so sound starts with the third frame. In
early mode the decoder also computes a provisional ending and the stream lets go of its better part: after the second frame all
but the last `EARLY_HOLD[2]` samples, holding back more with each frame until only exact samples leave. Where two versions of the
signal meet they are crossfaded. What leaves depends on the number of frames only, never on timing, so a seeded
stream is the same every time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import CodecError
from .decoder import OPEN_END, StreamingDecoder
from .graphs import Runner
from .pieces import Pieces

log = logging.getLogger(__name__)

Samples = NDArray[np.float32]
_Item = Samples | Exception | None  # None ends the stream

# Samples held back after N frames in early mode. By distance from the end of the data a provisional sample was within 20 dB of
# the exact one at 1,024 samples, 44 dB at 2,048 and 119 dB at 4,096 (random weights).
EARLY_HOLD = {2: 1536, 3: 2400, 4: 3300, 5: 4200}
CROSSFADE = 120  # samples, 5 ms


class CodecStream:
    """One utterance: frames in, samples out. Iterate it for float32 arrays of any length; `close` at any time."""

    def __init__(self, codec: Codec, seed: int, early: bool, speed: float) -> None:
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._out: asyncio.Queue[_Item] = asyncio.Queue()
        self._over = False  # the end is in `_out`
        self.seed = seed
        self.early = early
        # Below: owned by the codec thread, except where the codec's lock is held.
        self.pending: deque[Sequence[int]] = deque()
        self.ended = False
        self.closed = False
        self.slot: int | None = None
        self.frames = 0  # decoded
        self.cut = 0  # samples that have left
        self.exact: list[Samples] = []  # exact samples that have not left: from `cut` on
        self.early_tails = 0  # number of frames at the last provisional ending
        self.provisional: tuple[int, Samples] | None = None  # (its first sample's index, samples) of the last early ending
        self.pieces = Pieces(speed * codec.sample_rate)

    def push(self, frames: Iterable[Sequence[int]]) -> None:
        """Hand over frames, each `slots` codes. Raises CodecError for a frame of another length or a code out of range."""
        self._codec._push(self, list(frames))

    def end(self) -> None:
        """No more frames: the rest of the audio follows, then the iterator ends."""
        self._codec._end(self)

    def fail(self, error: Exception) -> None:
        """Drop what has not been decoded; the iterator raises `error` after the audio that is there."""
        self._codec._close(self, error)

    def close(self) -> None:
        """Drop everything and free the slot at once. Closing twice, or after the end, is fine."""
        self._codec._close(self)

    def __aiter__(self) -> AsyncIterator[Samples]:
        return self

    async def __anext__(self) -> Samples:
        item = await self._out.get()
        if item is None or isinstance(item, Exception):
            self._out.put_nowait(item)  # the end stays the end
            if item is None:
                raise StopAsyncIteration
            raise item
        return item

    def _put(self, item: _Item) -> None:
        """On the stream's loop: one more for the reader, unless the end has come already."""
        if not self._over:
            self._over = item is None or isinstance(item, Exception)
            self._out.put_nowait(item)

    # -- called on the codec thread

    def wants_tail(self) -> bool:
        if self.ended and not self.pending:
            return True
        return self.early and self.frames in EARLY_HOLD and self.early_tails != self.frames

    def take_step(self, samples: Samples, frame_samples: int, delay: int) -> Samples | None:
        """The samples of one more frame have come; returns what may leave now."""
        self.frames += 1
        start = (self.frames - 1) * frame_samples - delay
        self.exact.append(samples[max(0, self.cut - start) :])  # less what is before the start, or has left
        if self.early and self.frames in EARLY_HOLD:
            return None  # the tail follows and decides
        return self._leave(self.frames * frame_samples - delay, None)

    def take_tail(self, samples: Samples, frame_samples: int, delay: int) -> Samples | None:
        """The ending as of now has come, provisional or (once ended) final; returns what may leave now."""
        total = self.frames * frame_samples
        tail = samples[max(0, delay - total) :]
        if self.ended and not self.pending:
            return self._leave(total, tail)
        self.early_tails = self.frames
        return self._leave(total - EARLY_HOLD[self.frames], tail)

    def _leave(self, until: int, tail: Samples | None) -> Samples | None:
        """Cut the samples `cut .. until` out of exact ones followed by `tail`."""
        if tail is not None:
            tail_start = self.frames * self._codec.decoder.weights.frame_samples - len(tail)
            tail = tail[max(0, self.cut - tail_start) :]
        parts = [*self.exact, *([] if tail is None else [tail])]
        exact = sum(len(part) for part in self.exact)
        if not parts or until <= self.cut:
            if tail is not None:
                self.provisional = (self.cut + exact, tail)
            return None
        signal = np.concatenate(parts)
        count = until - self.cut
        out, rest = signal[:count].copy(), signal[count:]
        if self.provisional is not None:
            start, before = self.provisional
            before = before[max(0, self.cut - start) :][: min(CROSSFADE, count)]
            if len(before) and start <= self.cut:
                fall = 1 - (np.arange(len(before), dtype=np.float32) + 0.5) / len(before)
                out[: len(before)] += (before - out[: len(before)]) * fall  # no change at all where both are equal
            self.provisional = None
        if tail is not None:
            self.provisional = (self.cut + exact, tail)
        self.cut = until
        kept = max(0, exact - count)
        self.exact = [rest[:kept]] if kept else []
        return out


class Codec:
    """Starts the codec thread and opens streams on it. Everything else of this module is inside.

    `max_streams` is the number of slots, `max_batch` the most frames in one step. On a CPU the batch is 1 unless asked
    otherwise: there a batch costs nearly as much as its rows one by one, and a row alone gives the same bits whatever else runs.
    """

    def __init__(
        self,
        decoder: StreamingDecoder,
        *,
        max_batch: int | None = None,
        compile: bool = False,
    ) -> None:
        on_gpu = decoder.device.type == "cuda"
        self.decoder = decoder
        self.max_batch = max_batch or (decoder.slots if on_gpu else 1)
        self._runner = Runner(decoder, self.max_batch, compile=compile)
        self._wake = threading.Condition()
        self._streams: dict[CodecStream, None] = {}  # with work to do, in order: the one served longest ago first
        self._open: set[CodecStream] = set()  # neither at their end nor closed
        self._free: list[int] = list(range(decoder.slots))
        self._thread: threading.Thread | None = None
        self._started: Future[None] | None = None  # what `start` waits for; None where no thread starts or runs
        self._stopping = False
        self._waking: set[asyncio.AbstractEventLoop] = set()  # they will wake the thread at the end of their turn
        self.failure = "it is not started"
        "Why nothing can be decoded; empty while it can."
        self.batches: Counter[int] = Counter()
        "How many steps decoded so many frames; endings are not counted."

    @property
    def sample_rate(self) -> int:
        return self.decoder.weights.sample_rate

    @property
    def frame_samples(self) -> int:
        return self.decoder.weights.frame_samples

    @property
    def free_slots(self) -> int:
        return len(self._free)

    async def start(self) -> None:
        """Warm up (compile, capture graphs) and start the thread, if none runs. Raises CodecError where that fails."""
        started = self._started
        if started is None:
            started = self._started = Future()
            self._stopping = False
            self._thread = threading.Thread(target=self._main, args=(started,), name="codec", daemon=True)
            self._thread.start()
        await asyncio.shield(asyncio.wrap_future(started))  # who is cancelled here does not cancel the start

    async def stop(self) -> None:
        """End the thread; streams still open, idle ones too, raise CodecError."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def open(self, seed: int = 0, early: bool = False, speed: float = 1.0) -> CodecStream:
        """A new stream; `seed` keys the decoder's noise. Call it on an event loop; its samples arrive there.

        speed: how many times as fast its samples are heard. It decides how many of them arrive at once, see `pieces.py`.
        """
        # The schedule of early audio is for a delay that is over before it is; attention in the decoder makes it longer.
        early = early and self.decoder.delay < (max(EARLY_HOLD) - 1) * self.frame_samples
        stream = CodecStream(self, seed & (2**63 - 1), early, speed)
        with self._wake:
            if self.failure:
                raise CodecError(f"the codec is not running: {self.failure}")
            self._open.add(stream)
        return stream

    # -- any thread

    def _push(self, stream: CodecStream, frames: list[Sequence[int]]) -> None:
        weights = self.decoder.weights
        for frame in frames:
            if len(frame) != weights.slots or min(frame) < 0 or max(frame) >= weights.codes:
                raise CodecError(f"a frame must be {weights.slots} codes from 0 to {weights.codes - 1}, got {list(frame)}")
        if not frames:
            return
        with self._wake:
            if stream.closed or stream.ended:
                return
            stream.pending.extend(frames)
            self._enqueue(stream)

    def _end(self, stream: CodecStream) -> None:
        with self._wake:
            if stream.closed or stream.ended:
                return
            stream.ended = True
            self._enqueue(stream)

    def _close(self, stream: CodecStream, error: Exception | None = None) -> None:
        """Forget a stream. With an error its reader gets what is decoded, then the error."""
        with self._wake:
            if error is not None:
                _call(stream._loop, _deliver, _last(stream, error))
            self._release(stream)

    def _enqueue(self, stream: CodecStream) -> None:
        if stream not in self._streams:
            self._streams[stream] = None
            if stream._loop not in self._waking and _call(stream._loop, self._wake_up, stream._loop):
                self._waking.add(stream._loop)

    def _wake_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """On a loop, after the turn in which its streams were pushed to."""
        with self._wake:
            self._waking.discard(loop)
            self._wake.notify()

    def _release(self, stream: CodecStream) -> None:
        """Forget a stream. The step in flight may still write its old row; the next owner ignores what it finds."""
        stream.closed = True
        stream.pending.clear()
        self._streams.pop(stream, None)
        self._open.discard(stream)
        if stream.slot is not None:
            self._free.append(stream.slot)
            stream.slot = None
            self._wake.notify()

    # -- the codec thread

    @torch.inference_mode()
    def _main(self, started: Future[None]) -> None:
        try:
            self._runner.warm_up()
        except Exception as error:
            self._fail(str(error) or type(error).__name__)
            started.set_exception(CodecError(f"the codec did not start: {error}"))
            return
        self.failure = ""
        started.set_result(None)
        try:
            while (work := self._next_work()) is not None:
                self._do(*work)
        except Exception as error:  # a broken device breaks every stream: say so rather than hang
            log.exception("the codec failed")
            self._fail(str(error) or type(error).__name__)
        else:
            self._fail("it was stopped")

    def _next_work(self) -> tuple[list[tuple[CodecStream, int, Any]], bool] | None:
        """Wait for streams with something to decode: ([(stream, slot, codes)], is it a step rather than a tail)."""
        with self._wake:
            while not self._stopping:
                steps: list[tuple[CodecStream, int, Any]] = []
                tails: list[tuple[CodecStream, int, Any]] = []
                for stream in self._streams:
                    if stream.slot is None:
                        if not self._free:
                            continue
                        stream.slot = self._free.pop()
                    if stream.wants_tail():
                        if len(tails) < self.max_batch:
                            tails.append((stream, stream.slot, None))
                    elif stream.pending and len(steps) < self.max_batch:
                        steps.append((stream, stream.slot, stream.pending[0]))
                if tails:  # first: they are what a listener waits for
                    return tails, False
                if steps:
                    for stream, _, _ in steps:
                        stream.pending.popleft()
                    return steps, True
                self._wake.wait()
            return None

    def _do(self, work: list[tuple[CodecStream, int, Any]], is_step: bool) -> None:
        weights = self.decoder.weights
        per_frame, none = weights.latents_per_frame, (0,) * weights.slots
        rows = [(slot, s.frames * per_frame, OPEN_END, s.seed, *(codes or none)) for s, slot, codes in work]
        samples = self._runner.step(rows) if is_step else self._runner.tail(rows)
        if is_step:
            self.batches[len(work)] += 1
        deliveries: dict[asyncio.AbstractEventLoop, list[tuple[CodecStream, _Item]]] = {}
        now = time.monotonic()
        with self._wake:
            for (stream, _, _), new in zip(work, samples, strict=True):
                if stream.closed:
                    continue
                take = stream.take_step if is_step else stream.take_tail
                audio = take(new, weights.frame_samples, self.decoder.delay)
                finished = not is_step and stream.ended and not stream.pending
                mine = deliveries.setdefault(stream._loop, [])
                if audio is not None:
                    stream.pieces.add(audio)
                if finished:
                    mine += _last(stream, None)
                    self._release(stream)
                else:
                    if (piece := stream.pieces.take(now)) is not None:
                        mine.append((stream, piece))
                    self._streams.pop(stream, None)  # to the back of the queue, or out of it
                    if stream.pending or stream.wants_tail():
                        self._streams[stream] = None
            for loop, items in deliveries.items():  # with the lock: an error of `CodecStream.fail` does not overtake them
                _call(loop, _deliver, items)

    def _fail(self, reason: str) -> None:
        with self._wake:
            self.failure, self._started = reason, None
            left = list(self._open)
            for stream in left:
                self._release(stream)
            for stream in left:  # who hears of it finds all slots free
                _call(stream._loop, _deliver, _last(stream, CodecError(f"the codec stopped: {reason}")))


def _last(stream: CodecStream, end: Exception | None) -> list[tuple[CodecStream, _Item]]:
    """What a stream's reader still gets."""
    rest = stream.pieces.rest()
    return [(stream, end)] if rest is None else [(stream, rest), (stream, end)]


def _deliver(items: list[tuple[CodecStream, _Item]]) -> None:
    for stream, item in items:
        stream._put(item)


def _call(loop: asyncio.AbstractEventLoop, function: Any, *arguments: Any) -> bool:
    """Whether the loop will do it; one that is closed does nothing any more."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True
