"""Requests from several client processes, and what arrived of each, when.

    plan (who asks when) -> processes, each an event loop with one session -> Outcome a request

Closed loop: so many clients, each asks again as soon as its answer is complete. Open loop: requests come at random
moments (Poisson), whatever has become of those before. A client process that shared the server's event loop, or one session
a request, would measure itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import OrpheusServingError

SAMPLE_RATE = 24_000
SPOKEN = 328  # of 32,767: a sample louder than 1 % is speech, not silence


class BenchError(OrpheusServingError):
    """The load could not be made."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked of whom. `body` is the JSON of the request; the text goes into `text_field`."""

    url: str
    texts: tuple[str, ...]
    body: dict[str, Any] = field(default_factory=lambda: {"response_format": "pcm"})
    text_field: str = "input"
    headers: dict[str, str] = field(default_factory=dict)
    timeout: float = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much. `level` is the number of clients, or for "poisson" the mean number of utterances that play at once.

    ramp: seconds over which the first requests of a closed loop are spread, and which are not counted.
    seconds: of the measured time; requests that start in it are counted, to their end.
    utterance: mean seconds of audio of a request; what turns a Poisson level into arrivals a second.
    """

    level: int
    arrivals: Literal["closed", "poisson"] = "closed"
    seconds: float = 20.0
    ramp: float = 10.0
    utterance: float = 10.0
    processes: int = 4
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """One request. Times in seconds; `start` counts from the beginning of the load."""

    start: float
    ttfb: float | None = None  # to the first byte of audio
    first_speech: float | None = None  # to the first byte that is loud enough to be speech
    audio: float = 0.0  # seconds of audio that arrived
    took: float = 0.0
    lateness: float = 0.0  # the jitter buffer with which playback from the first byte on would never have run dry
    error: str | None = None
    counted: bool = False


def run_load(target: Target, load: Load) -> list[Outcome]:
    """All requests of the load, in no order. Blocks until the last answer is complete. Raises BenchError."""
    try:
        import httpx  # noqa: F401
    except ImportError as error:
        raise BenchError("bench needs httpx: pip install httpx") from error
    context = multiprocessing.get_context("spawn")
    count = max(1, min(load.processes, load.level))
    receivers, processes = [], []
    ready = context.Barrier(count + 1)
    for number in range(count):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_process, args=(target, load, number, count, ready, sender), daemon=True)
        process.start()
        sender.close()
        receivers.append(receiver)
        processes.append(process)
    try:
        ready.wait(timeout=120)
        outcomes: list[Outcome] = []
        for receiver in receivers:
            outcomes += receiver.recv()
    except (EOFError, OSError) as error:
        raise BenchError(f"a client process died: {error!r}") from error
    finally:
        for process in processes:
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()
    return outcomes


def _process(target: Target, load: Load, number: int, count: int, ready: Any, sender: Any) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        ready.wait(timeout=120)  # interpreters have started, modules are imported
        sender.send(asyncio.run(_client(target, load, number, count)))


async def _client(target: Target, load: Load, number: int, count: int) -> list[Outcome]:
    """This process' share of the load."""
    import httpx

    draw = random.Random(1_000 * load.seed + number)
    began = time.monotonic()
    end = load.ramp + load.seconds
    outcomes: list[Outcome] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=target.timeout, limits=limits, headers=target.headers) as session:

        async def ask() -> None:
            outcome = await _ask(session, target, draw.choice(target.texts), began)
            outcome.counted = load.ramp <= outcome.start < end
            outcomes.append(outcome)
            if outcome.error is not None:
                await asyncio.sleep(0.2)  # a server that refuses is not to be flooded

        async def closed_loop(first: float) -> None:
            await asyncio.sleep(first)
            while time.monotonic() - began < end:
                await ask()

        if load.arrivals == "closed":
            clients = range(number, load.level, count)
            await asyncio.gather(*(closed_loop(load.ramp * client / load.level) for client in clients))
        else:
            rate = load.level / load.utterance / count
            tasks = []
            at = draw.expovariate(rate)
            while at < end:
                await asyncio.sleep(max(0.0, began + at - time.monotonic()))
                tasks.append(asyncio.create_task(ask()))
                at += draw.expovariate(rate)
            await asyncio.gather(*tasks)
    return outcomes


async def _ask(session: Any, target: Target, text: str, began: float) -> Outcome:
    """One request to its end; whatever goes wrong is the outcome's `error`."""
    import numpy as np

    asked = time.monotonic()
    outcome = Outcome(asked - began)
    total = 0  # bytes
    first = 0.0
    try:
        async with session.stream("POST", target.url, json={**target.body, target.text_field: text}) as response:
            if response.status_code != 200:
                outcome.error = f"status {response.status_code}"
                await response.aread()
                return outcome
            async for data in response.aiter_raw():
                now = time.monotonic()
                if outcome.ttfb is None:
                    first, outcome.ttfb = now, now - asked
                due = first + total / (2 * SAMPLE_RATE)
                outcome.lateness = max(outcome.lateness, now - due)
                if outcome.first_speech is None:
                    samples = np.frombuffer(data[: len(data) & ~1], dtype="<i2")
                    if len(samples) and int(np.abs(samples.astype(np.int32)).max()) > SPOKEN:
                        outcome.first_speech = now - asked
                total += len(data)
        if total == 0:
            outcome.error = "no audio"
    except Exception as error:
        outcome.error = type(error).__name__
    outcome.took = time.monotonic() - asked
    outcome.audio = total / (2 * SAMPLE_RATE)
    return outcome


def texts(names: Sequence[str] = ("short", "medium", "long")) -> tuple[str, ...]:
    """Sentences of about 3, 7 and 12 seconds."""
    return tuple(TEXTS[name] for name in names)


TEXTS = {
    "short": "Your table is ready, please follow me.",
    "medium": "The train to the coast leaves at seven from platform four, and there is a café on board.",
    "long": (
        "When the storm had passed they walked down to the harbour, counted the boats that were left, and sat on the wall "
        "until the first light came over the water."
    ),
}
