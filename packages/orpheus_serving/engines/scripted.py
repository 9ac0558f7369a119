"""An engine for tests: it replays ids, at the pace and with the failures that a test asks for.

    script(prompt, sampling, request_id) -> ids --cut at max_tokens and end of speech--> lists of `list_size` ids

Time is in the test's hands: with `paced=True` no list leaves before `advance()` allows it, so a test stands at any
point of a stream without sleeping. What was started, is active and was closed can be read at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

from orpheus_serving.engines.base import Sampling
from orpheus_serving.errors import EngineError
from orpheus_serving.tokens import TokenLayout

Script = Callable[[Sequence[int], Sampling, str], Iterable[int]]


class ScriptedEngine:
    """An `Engine` that says what `script` says.

    script: ids for every request, ids by request id, or a function of prompt, sampling and request id. If it raises
    while it is read, the request fails with EngineError at that point.
    fail_after: every request fails with EngineError once it has handed out so many ids.
    """

    def __init__(
        self,
        script: Script | Mapping[str, Iterable[int]] | Iterable[int],
        *,
        layout: TokenLayout | None = None,
        list_size: int = 7,
        paced: bool = False,
        fail_after: int | None = None,
    ) -> None:
        if isinstance(script, Mapping):
            by_id = {name: list(ids) for name, ids in script.items()}
            self._script: Script = lambda prompt, sampling, request_id: by_id[request_id]
        elif callable(script):
            self._script = script
        else:
            fixed = list(script)
            self._script = lambda prompt, sampling, request_id: fixed
        self._end = (layout or TokenLayout()).end_of_speech
        self._list_size = list_size
        self._fail_after = fail_after
        self._paced = paced
        self._allowed = asyncio.Semaphore(0)
        self._stopped = asyncio.Event()

        self.failure = "the engine is not started"  # a test may set it
        self.started: list[str] = []  # request ids in the order of their first step
        self.active: set[str] = set()
        self.closed: list[str] = []  # request ids in the order in which they ended, in whatever way

    async def start(self) -> None:
        self._stopped, self.failure = asyncio.Event(), ""

    async def stop(self) -> None:
        self.failure = "the engine was stopped"
        self._stopped.set()

    def advance(self, lists: int = 1) -> None:
        """Let `lists` more lists out (or ends, or failures), of whichever requests come first."""
        for _ in range(lists):
            self._allowed.release()

    async def generate(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> AsyncGenerator[list[int], None]:
        if self.failure:
            raise EngineError(f"request {request_id}: {self.failure}")
        self.started.append(request_id)
        self.active.add(request_id)
        try:
            for ids, error in self._lists(prompt, sampling, request_id):
                await self._turn(request_id, self._stopped)
                if error:
                    raise EngineError(f"request {request_id}: {error}") from error
                yield ids
        finally:
            self.active.discard(request_id)
            self.closed.append(request_id)

    def _lists(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> Iterable[tuple[list[int], Exception | None]]:
        """Lists of ids, or an error, in the order in which the request meets them."""
        ids: list[int] = []
        count = 0
        try:
            for token in self._script(prompt, sampling, request_id):
                if count == self._fail_after:
                    raise RuntimeError(f"told to fail after {count} ids")
                ids.append(token)
                count += 1
                if token == self._end or count == sampling.max_tokens:
                    break
                if len(ids) == self._list_size:
                    yield ids, None
                    ids = []
        except Exception as error:
            if ids:
                yield ids, None
            yield [], error
            return
        if ids:
            yield ids, None

    async def _turn(self, request_id: str, stopped: asyncio.Event) -> None:
        """Wait until the next list may leave. Raises EngineError if the engine is stopped meanwhile."""
        if self._paced:
            turn = asyncio.ensure_future(self._allowed.acquire())
            stop = asyncio.ensure_future(stopped.wait())
            try:
                await asyncio.wait((turn, stop), return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop.cancel()
                if not turn.done():
                    turn.cancel()
        else:
            await asyncio.sleep(0)  # others get their turn, as between the steps of a real engine
        if stopped.is_set():
            raise EngineError(f"request {request_id}: the engine was stopped")
