"""The tasks that wait for another runtime's next output, and how an engine's `stop` ends their wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from orpheus_serving.errors import EngineError


class Readers:
    """`runtime`: its name, for errors. Between `close` and `open` every wait ends in EngineError."""

    def __init__(self, runtime: str) -> None:
        self._runtime = runtime
        self._waiting: set[asyncio.Task[Any]] = set()
        self.closed = True

    def open(self) -> None:
        self.closed = False

    def close(self) -> None:
        """End every wait."""
        self.closed = True
        for reader in self._waiting:
            reader.cancel()

    async def next(self, outputs: AsyncIterator[Any], request_id: str) -> Any:
        """The next of a request's outputs, None at its end. Raises EngineError for whatever the runtime raises."""
        return await self.wait(lambda: anext(outputs, None), request_id)

    async def wait(self, step: Callable[[], Awaitable[Any]], request_id: str) -> Any:
        """Ask the runtime for something and await it. Raises as `next` does."""
        if self.closed:
            raise EngineError(f"request {request_id}: the engine is not started or was stopped")
        reader = asyncio.current_task()
        assert reader is not None
        self._waiting.add(reader)
        try:
            return await step()
        except asyncio.CancelledError:
            if not self.closed:
                raise  # the caller's own cancellation
            reader.uncancel()
            raise EngineError(f"request {request_id}: the engine was stopped") from None
        except Exception as error:
            raise EngineError(f"request {request_id}: {self._runtime} failed: {error or type(error).__name__}") from error
        finally:
            self._waiting.discard(reader)
