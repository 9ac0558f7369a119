"""Client processes for one load: started together, ended together, and what they saw."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from .client import Seen, client_process
from .machine import Watch
from .plan import BenchError, Load, Target
from .transport import open_session

START = 120.0  # seconds for interpreters to start and import
SLACK = 60.0  # seconds beyond the longest a load can take


@dataclass(frozen=True, slots=True)
class Measured:
    """What a load gave: a Seen a process, and what the machine did within the measured time."""

    load: Load
    seen: tuple[Seen, ...]
    machine: dict[str, Any]

    @property
    def seconds(self) -> float:
        """Of the measured time."""
        return measured_until(self.load, self.seen) - self.load.ramp


def measured_until(load: Load, seen: Sequence[Seen]) -> float:
    """Seconds from the beginning to the end of the measured time: of a trace, when its last request that counts was complete."""
    if load.arrivals != "trace":
        return load.end
    return max((o.due + o.took for process in seen for o in process.outcomes if o.counted), default=load.end)


def run_load(target: Target, load: Load) -> Measured:
    """Blocks until the last request that counts is complete. Raises BenchError."""
    open_session(target)  # so that a missing library is said once, here
    context = multiprocessing.get_context("spawn")
    count = load.clients
    pipes: list[Connection] = []
    processes = []
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=client_process, args=(target, load, number, count, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _receive(pipe, START + target.timeout)
        with Watch() as watch:
            began = time.monotonic() + 0.05
            for pipe in pipes:
                pipe.send(began)
            for pipe in pipes:
                _receive(pipe, load.end + target.timeout + SLACK)
            for pipe in pipes:
                pipe.send("stop")
        seen = tuple(_receive(pipe, SLACK) for pipe in pipes)
        return Measured(load, seen, watch.use(began + load.ramp, began + measured_until(load, seen)))
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()
                process.join()


def _receive(pipe: Connection, patience: float) -> Any:
    try:
        if not pipe.poll(patience):
            raise BenchError(f"a client process said nothing for {patience:.0f} s")
        return pipe.recv()
    except (EOFError, OSError) as error:
        raise BenchError("a client process died; its own message is above") from error
