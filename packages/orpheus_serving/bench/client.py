"""One client process: its share of a load, and how late its own event loop was meanwhile.

    parent                          child
           <- "ready"               modules are imported
    begin  ->                        a moment of the machine's monotonic clock, the same for all children
           <- "counted"             every request that counts is complete; the load goes on
    "stop" ->                        all children have said so
           <- Seen                  what is still running is dropped

The load goes on until the last request that counts is complete, so that none of them ends on a server that is emptying.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from .hearing import Hearing, Unplayable
from .plan import Load, Target, open_loop
from .texts import mixed
from .transport import Failed, Session, open_session

TICK = 0.01  # seconds between looks at the own event loop
BREATH = 0.2  # seconds for which a closed loop's client that was refused waits: a server that refuses is not to be flooded


@dataclass(slots=True)
class Outcome:
    """One request. Times in seconds, but for `due`, which counts from the beginning of the load, from when it was due."""

    due: float
    sent: float = 0.0  # how late the client was with it
    ttfb: float | None = None  # to the first byte of audio
    first_speech: float | None = None  # to the first sample that is loud enough to be speech
    lead_in: float | None = None  # audio before that sample
    audio: float = 0.0  # of audio that arrived
    took: float = 0.0
    lateness: float = 0.0  # the jitter buffer with which playback from the first byte on would never have run dry
    error: str | None = None
    fresh: bool = False  # a connection was opened for it
    counted: bool = False


@dataclass(slots=True)
class Seen:
    """What a client process saw, and how it did itself. Lags in seconds, over the measured time."""

    outcomes: list[Outcome] = field(default_factory=list)
    audio: float = 0.0  # seconds of audio that arrived within the measured time
    cpu: float = 0.0  # of a core, over the measured time
    lags: list[float] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)  # an error -> what the server said, once


def client_process(target: Target, load: Load, number: int, count: int, pipe: Connection) -> None:
    """The child's main function."""
    with contextlib.suppress(KeyboardInterrupt, EOFError):  # the parent is gone
        pipe.send(asyncio.run(_Client(target, load, number, count, pipe).run()))


class _Client:
    def __init__(self, target: Target, load: Load, number: int, count: int, pipe: Connection) -> None:
        self._target, self._load, self._number, self._count, self._pipe = target, load, number, count, pipe
        self._seen = Seen()
        self._tasks: set[asyncio.Task[None]] = set()
        self._counting = 0  # requests that count and are not complete
        self._changed = asyncio.Event()
        self._all_due = asyncio.Event()  # an open loop has sent every request that counts
        self._session: Session
        self._began = 0.0

    async def run(self) -> Seen:
        self._session = open_session(self._target)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._target.timeout):
                await self._session.warm(self._load.connections)
        gc.collect()
        gc.freeze()  # what is imported need not be looked through while times are taken
        self._pipe.send("ready")
        self._began = await asyncio.to_thread(self._pipe.recv)
        await self._until(0.0)
        self._start(self._watch_itself())
        if self._load.arrivals == "closed":
            for client in range(self._number, int(self._load.level), self._count):
                self._start(self._closed_loop(client))
            self._all_due.set()
        else:
            self._start(self._open_loop())
        await self._all_due.wait()
        await self._until(self._load.end)
        while self._counting:
            self._changed.clear()
            await self._changed.wait()
        self._pipe.send("counted")
        await asyncio.to_thread(self._pipe.recv)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self._session.close()
        return self._seen

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _until(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - self._now))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _closed_loop(self, client: int) -> None:
        draw = random.Random(f"closed {self._load.seed} {client}")
        await self._until(self._load.ramp * client / self._load.level)
        while True:
            outcome = await self._ask(self._now, mixed(self._load.texts, draw))
            if outcome.error is not None:
                await asyncio.sleep(BREATH)

    async def _open_loop(self) -> None:
        for index, arrival in enumerate(open_loop(self._load)):
            if arrival.at >= self._load.end:
                self._all_due.set()
            if index % self._count == self._number:
                await self._until(arrival.at)
                self._start(self._send(arrival.at, arrival.text, arrival.voice))
        self._all_due.set()

    async def _send(self, due: float, text: str, voice: str | None) -> None:
        await self._ask(due, text, voice)

    async def _ask(self, due: float, text: str, voice: str | None = None) -> Outcome:
        """One request to its end; whatever goes wrong is the outcome's `error`."""
        outcome = Outcome(due, sent=self._now - due, counted=self._load.counts(due))
        hearing = Hearing(self._target.rate)
        self._counting += outcome.counted

        def heard(data: bytes, now: float) -> None:
            before = hearing.audio
            hearing.heard(data, now)
            if self._load.measures(now - self._began):
                self._seen.audio += hearing.audio - before

        try:
            async with asyncio.timeout(self._target.timeout):
                outcome.fresh = await self._session.speak(text, voice, heard)
            hearing.finish()
            outcome.error = None if hearing.total else "no audio"
        except TimeoutError:
            outcome.error = "timeout"
        except (Failed, Unplayable) as error:
            outcome.error = str(error)
            if detail := getattr(error, "detail", ""):
                self._seen.details.setdefault(str(error), detail)
        except Exception as error:  # an answer that makes no sense; the client has to go on asking
            outcome.error = type(error).__name__
            self._seen.details.setdefault(outcome.error, str(error)[:300])
        finally:
            begin = self._began + due
            outcome.took = self._now - due
            outcome.ttfb = hearing.first - begin if hearing.first is not None else None
            outcome.first_speech = hearing.first_speech - begin if hearing.first_speech is not None else None
            outcome.lead_in, outcome.audio, outcome.lateness = hearing.lead_in, hearing.audio, hearing.lateness
            self._counting -= outcome.counted
            self._changed.set()
        self._seen.outcomes.append(outcome)
        return outcome

    async def _watch_itself(self) -> None:
        """How late a timer of TICK is, and the CPU time of this process, within the measured time."""
        await self._until(self._load.ramp)
        wall, cpu = time.monotonic(), time.process_time()
        while self._load.measures(self._now):
            before = time.monotonic()
            await asyncio.sleep(TICK)
            self._seen.lags.append(max(0.0, time.monotonic() - before - TICK))
            self._seen.cpu = (time.process_time() - cpu) / (time.monotonic() - wall)
