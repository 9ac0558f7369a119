"""What engines with a worker thread of their own share: to start and stop it, and the way of a request to it and of its ids back.

generate() -> waiting --worker thread--> deliver() -> the request's queue, on its event loop -> generate()
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from orpheus_serving.engines.base import Sampling, token_budget
from orpheus_serving.engines.delivery import Listener
from orpheus_serving.errors import CheckpointError, EngineError

Request = TypeVar("Request", bound=Listener)


class ThreadedEngine(Generic[Request]):
    """An `Engine` but for `_load` and `_unload`, `_request`, and `_run`, which is the worker thread."""

    def __init__(self, checkpoint: str | Path, max_length: int) -> None:
        self._checkpoint = checkpoint
        self._max_length = max_length
        self._vocabulary = 0  # from `_load` on
        self._worker: threading.Thread | None = None
        self._changed = threading.Condition()  # guards what follows; notified when the worker should look again
        self._waiting: deque[Request] = deque()
        self._stopping = False
        self.failure = "the engine is not started"

    def _load(self) -> None:
        """Load the checkpoint and warm up. Raises CheckpointError or EngineError, or what is to be wrapped in one."""
        raise NotImplementedError

    def _unload(self) -> None:
        """Free the memory; the worker has ended."""
        raise NotImplementedError

    def _request(self, prompt: Sequence[int], sampling: Sampling, request_id: str, budget: int) -> Request:
        """A request that may generate `budget` ids. Raises EngineError for one that cannot run."""
        raise NotImplementedError

    def _run(self) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Load and warm up, if no worker runs. Raises CheckpointError for a checkpoint that cannot work, else EngineError."""
        if self._worker is not None:
            if not self.failure:
                return
            await self.stop()  # what is left of a worker that has died
        try:
            await asyncio.to_thread(self._load)
        except (CheckpointError, EngineError):
            raise
        except Exception as error:
            raise EngineError(f"{self._checkpoint}: loading failed: {error}") from error
        self._stopping, self.failure = False, ""
        self._worker = threading.Thread(target=self._run, name="engine", daemon=True)
        self._worker.start()

    async def stop(self) -> None:
        """End every request with EngineError and free the memory. `start` may follow."""
        with self._changed:
            self._stopping, self.failure = True, "the engine was stopped"
            self._changed.notify()
        if self._worker is not None:
            await asyncio.to_thread(self._worker.join)
            self._unload()
        self._worker = None

    async def generate(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> AsyncGenerator[list[int], None]:
        """Stream the ids after `prompt`, a frame a list. Raises EngineError before running what cannot run."""
        if self.failure:
            raise EngineError(f"request {request_id}: {self.failure}")
        budget = token_budget(prompt, sampling, max_length=self._max_length, vocabulary=self._vocabulary)
        request = self._request(prompt, sampling, request_id, budget)
        with self._changed:
            if self.failure:  # meanwhile: nobody would take it from there any more
                raise EngineError(f"request {request_id}: {self.failure}")
            self._waiting.append(request)
            self._changed.notify()
        try:
            while (item := await request.lists.get()) is not None:
                if isinstance(item, EngineError):
                    raise item
                yield item
        finally:
            with self._changed:
                request.closed = True
                self._changed.notify()
