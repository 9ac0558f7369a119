"""The tasks that wait for another runtime's next output, and how an engine's `stop` ends their wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from orpheus_serving.errors import EngineError


class Readers:
    """`runtime`: its name, for errors. Between `close` and `open` every wait ends in EngineError."""

    def __init__(self, runtime: str) -> None:
        self._runtime = runtime
        self._waiting: set[asyncio.Task[Any]] = set()
        self._closed = True

    def open(self) -> None:
        self._closed = False

    def close(self) -> None:
        """End every wait."""
        self._closed = True
        for reader in self._waiting:
            reader.cancel()

    async def next(self, outputs: AsyncIterator[Any], request_id: str) -> Any:
        """The next of a request's outputs, None at its end. Raises EngineError for whatever the runtime raises."""
        reader = asyncio.current_task()
        assert reader is not None
        self._waiting.add(reader)
        try:
            return await anext(outputs, None)
        except asyncio.CancelledError:
            if not self._closed:
                raise  # the caller's own cancellation
            reader.uncancel()
            raise EngineError(f"request {request_id}: the engine was stopped") from None
        except Exception as error:
            raise EngineError(f"request {request_id}: {self._runtime} failed: {error or type(error).__name__}") from error
        finally:
            self._waiting.discard(reader)
