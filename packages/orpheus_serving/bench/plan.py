"""Who is asked what, and when.

    closed loop   `level` clients; each asks again as soon as its answer is complete
    Poisson       requests come at random moments, whatever has become of those before; on average `level` play at once
    trace         requests come at the moments that a file names, with its texts; `level` times as fast

The moments of an open loop are drawn before the load and counted from: a request that the client sends late is late.
"""

from __future__ import annotations

import bisect
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import OrpheusServingError
from .hearing import SAMPLE_RATE
from .texts import LENGTHS, mixed


class BenchError(OrpheusServingError):
    """The load cannot be made, or what is asked of the bench makes no sense; names the option."""


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask. http:// and https:// are posted to; ws:// and wss:// speak the native protocol (Cartesia's shape).

    body: keys of every request, JSON; the text goes into `text_field` (of an HTTP request).
    rate: samples a second of its bare PCM. timeout: seconds until a request is given up.
    """

    url: str
    label: str = "server"
    body: dict[str, Any] = field(default_factory=dict)
    text_field: str = "input"
    headers: dict[str, str] = field(default_factory=dict)
    rate: int = SAMPLE_RATE
    timeout: float = 120.0

    @property
    def websocket(self) -> bool:
        return self.url.startswith(("ws://", "wss://"))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of an open loop: `at` seconds after the beginning of the load."""

    at: float
    text: str
    voice: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked.

    ramp: seconds over which the first requests of a closed loop are spread; what is due in them is not counted.
    seconds: of the measured time after that. Requests due in it are counted, to their end, and the load goes on until then.
    utterance: mean seconds of audio of a request; what turns a Poisson level into requests a second.
    trace: what comes when, for "trace"; the measured time then ends with the trace, if not sooner.
    """

    level: float
    arrivals: Literal["closed", "poisson", "trace"] = "closed"
    seconds: float = 20.0
    ramp: float = 10.0
    utterance: float = 10.0
    processes: int = 4
    seed: int = 0
    texts: tuple[str, ...] = tuple(LENGTHS)
    trace: tuple[Arrival, ...] = ()

    @property
    def end(self) -> float:
        """Seconds from the beginning until no request that is due counts any more."""
        end = self.ramp + self.seconds
        return min(end, self.trace[-1].at / self.level + 1e-3) if self.arrivals == "trace" else end

    def counts(self, due: float) -> bool:
        """Whether a request that is due then counts."""
        return self.ramp <= due < self.end

    def measures(self, now: float) -> bool:
        """Whether what happens then is measured. A trace's last requests are heard to their end: nothing comes after them."""
        return self.ramp <= now and (self.arrivals == "trace" or now < self.end)

    @property
    def clients(self) -> int:
        """Client processes that have something to do."""
        return max(1, min(self.processes, int(self.level)) if self.arrivals != "trace" else self.processes)

    @property
    def connections(self) -> int:
        """That a process opens before the load, so that hardly a request has to: with a margin in an open loop."""
        if self.arrivals == "closed":
            return math.ceil(self.level / self.clients)
        if self.arrivals == "poisson":
            return math.ceil(1.2 * self.level / self.clients) + 2
        moments = [arrival.at / self.level for arrival in self.trace]
        together = max(bisect.bisect(moments, at + self.utterance) - i for i, at in enumerate(moments))
        return math.ceil(together / self.clients) + 2


def open_loop(load: Load) -> Iterator[Arrival]:
    """Every request of an open loop, in order; without end for Poisson. The same for the same seed."""
    if load.arrivals == "trace":
        for arrival in load.trace:
            yield Arrival(arrival.at / load.level, arrival.text, arrival.voice)
        return
    draw = random.Random(f"poisson {load.seed} {load.level}")
    at = 0.0
    while True:
        at += draw.expovariate(load.level / load.utterance)
        yield Arrival(at, mixed(load.texts, draw))


def read_trace(path: str | Path) -> tuple[Arrival, ...]:
    """A file of JSON lines, `{"at": seconds, "text": "...", "voice": "..."}`, voice optional, in any order.

    Blank lines and lines that begin with # are skipped. Raises BenchError with the line that cannot be used.
    """
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--trace: {path}: {error}") from error
    arrivals = []
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                arrivals.append(_arrival(line))
            except ValueError as error:
                raise BenchError(f"--trace: {path}, line {number}: {error}") from error
    if not arrivals:
        raise BenchError(f"--trace: {path}: no request in it")
    return tuple(sorted(arrivals, key=lambda arrival: arrival.at))


def _arrival(line: str) -> Arrival:
    """Raises ValueError with what is wrong."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError('not JSON; a line is {"at": 1.5, "text": "..."}') from None
    if not isinstance(entry, dict):
        raise ValueError('not an object; a line is {"at": 1.5, "text": "..."}')
    if unknown := sorted(set(entry) - {"at", "text", "voice"}):
        raise ValueError(f"{unknown[0]!r} is not known; there are at, text and voice")
    at, text, voice = entry.get("at"), entry.get("text"), entry.get("voice")
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e9:
        raise ValueError("at: must be seconds since the beginning, a number from 0")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("text: must be what is spoken, a string that is not blank")
    if voice is not None and not isinstance(voice, str):
        raise ValueError("voice: must be a string")
    return Arrival(float(at), text, voice)
