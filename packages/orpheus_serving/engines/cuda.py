"""Our own GPU engine: continuous batching by the token, with the host two steps behind the GPU.

    generate() --waiting--> worker thread: admit -> rows of a step -> RowModel.step --> tickets, oldest first
               <-- lists of ids, a frame each, one call to the event loop a step --'

Why not a general engine: what a speech model's step needs is narrow, and knowing it takes the work off the host, which is
where general engines lose their time with hundreds of short steps a second.

- A stream's next row is known before its last one has been computed: the same place, the next position, and "what you drew".
  So the worker sends AHEAD steps before it reads the oldest, and the GPU never waits for Python. Only the end of speech comes
  as a surprise: such a stream has at most AHEAD rows too many, which nobody reads.
- A request's length is bounded by its text, so its pages are reserved whole when it is admitted. Nothing is ever evicted, and a
  step needs no decisions about memory.
- A prompt's rows join the step of those who are decoding (see `cuda_model.py`), PROMPT_ROWS of them at most a step.
- A step has the rows of those who are in need (see `pacing.py`), FEW at least, and as many more as cost nothing; while nobody is
  in need, and nobody's prompt is read, it has everybody's.

Requests wait, first come, first served, for a place and for pages. What a seeded request says depends on that request alone, up
to the last bits of the numbers: these may change with the size of the step.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from orpheus_serving.engines.base import Sampling, check_layout
from orpheus_serving.engines.config import read_config
from orpheus_serving.engines.cuda_kernels import PAGE
from orpheus_serving.engines.cuda_model import NEWEST, RowModel, Ticket
from orpheus_serving.engines.delivery import Item, deliver
from orpheus_serving.engines.llama import Weights
from orpheus_serving.engines.pacing import by_need, id_seconds
from orpheus_serving.engines.threaded import ThreadedEngine
from orpheus_serving.engines.transformers import fetch
from orpheus_serving.errors import EngineError
from orpheus_serving.tokens import TokenLayout

log = logging.getLogger(__name__)

# Steps that are sent and not yet read: one runs, and the host may be late by the length of the others. With 2 (and the codec's
# steps in the same CUDA stream) an H200 with 480 streams was idle for 13 % of the time, waiting for Python; with 3 for 4 %.
AHEAD = 3
PROMPT_ROWS = 256  # ids of prompts in one step: more would hold up everybody's next frame
FEW = 64  # rows that a step has anyway if there are so many: an H200 takes 2.5 ms for them, for 8 rows 2.0, for 512 7.6
SWITCH_INTERVAL = 0.0002  # seconds, of the interpreter: see `_warm_up`
RESERVE = 3 << 30  # bytes of the GPU that stay free: the graphs, the libraries, the codec's workspaces
OLDEST_GPU = (8, 9)  # compute capability: the first with FP8 products


@dataclass(eq=False, slots=True)
class _Request:
    """A request on its way. The event loop reads `lists`; everything below `closed` belongs to the worker."""

    id: str
    prompt: list[int]
    sampling: Sampling
    budget: int  # ids it may generate
    seed: int
    seconds: float  # for which an id is heard
    loop: asyncio.AbstractEventLoop
    lists: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)
    closed: bool = False  # nobody reads it any more

    place: int = -1
    pages: list[int] = field(default_factory=list)
    read: int = 0  # ids of the prompt that were sent
    sent: int = 0  # ids that will have been drawn by the steps sent so far
    heard: float = 0.0  # see `pacing.py`; of the ids that were sent
    drawn: list[int] = field(default_factory=list)  # ids of the frame that is not complete yet
    received: int = 0
    ended: bool = False  # all that it will say has been read

    @property
    def need(self) -> int:
        """Pages for all that it may hold."""
        return -(-(len(self.prompt) + self.budget) // PAGE)


@dataclass(frozen=True, slots=True)
class _Step:
    """Sent, not yet read. Row `rows[i]` draws for `requests[i]`."""

    ticket: Ticket
    rows: list[int]
    requests: list[_Request]


class CudaEngine(ThreadedEngine[_Request]):
    """An `Engine` on one NVIDIA GPU with FP8 products (Ada, Hopper or newer), without any other runtime.

    max_streams: requests that are decoded at once; others wait. max_length: ids of prompt and speech together.
    memory: bytes for the cache. None: all that is free at `start`, less a reserve; so start the codec first.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        layout: TokenLayout,
        *,
        max_streams: int = 512,
        max_length: int = 4096,
        revision: str | None = None,
        memory: int | None = None,
        device: str = "cuda",
    ) -> None:
        super().__init__(checkpoint, max_length)
        self._layout = layout
        self._max_streams = max_streams
        self._revision = revision
        self._memory = memory
        self._device = torch.device(device)

        self._model: RowModel  # from `_load` until `stop`, as are the pages
        self._pages = 0  # that requests can have

        # The worker's own.
        self._free_places: list[int] = []
        self._free_pages: list[int] = []
        self._reading: list[_Request] = []  # whose prompt is not sent entirely
        self._decoding: list[_Request] = []
        self._sent: deque[_Step] = deque()

    def _request(self, prompt: Sequence[int], sampling: Sampling, request_id: str, budget: int) -> _Request:
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        loop = asyncio.get_running_loop()
        request = _Request(request_id, list(prompt), sampling, budget, seed, id_seconds(sampling.pace), loop)
        if request.need > self._pages:
            raise EngineError(
                f"request {request_id}: {len(prompt)} + {budget} ids need more than the whole cache of {self._pages * PAGE};"
                " shorten the text or give the engine more memory"
            )
        return request

    def _unload(self) -> None:
        del self._model

    def _load(self) -> None:
        if self._device.type == "cuda" and torch.cuda.get_device_capability(self._device) < OLDEST_GPU:
            name = torch.cuda.get_device_name(self._device)
            raise EngineError(f"engine cuda: {name} has no FP8 products; use an Ada, Hopper or newer GPU, or engine embedded")
        folder = fetch(self._checkpoint, self._revision)
        config = read_config(folder)
        check_layout(self._layout, config.vocab_size, folder)
        with Weights(folder) as weights:
            model = RowModel(
                config,
                weights,
                self._layout,
                places=self._max_streams,
                rows=self._max_streams + PROMPT_ROWS,
                length=self._max_length,
                device=self._device,
            )
        memory = self._memory
        if memory is None:
            torch.cuda.empty_cache()
            memory = torch.cuda.mem_get_info(self._device)[0] - RESERVE
        # More pages than all places could fill are of no use.
        self._pages = min(memory // model.page_bytes - 1, self._max_streams * model.table_width)
        if self._pages < 1:
            raise EngineError(
                f"engine cuda: {max(memory, 0) / 1e9:.1f} GB of the GPU are left for its cache, and a page takes "
                f"{model.page_bytes / 1e6:.1f} MB; end what else runs on the GPU, lower max_streams, or use a larger GPU"
            )
        model.open_pages(self._pages + 1)
        log.info("cache of %d tokens in pages of %d, %.1f GB", self._pages * PAGE, PAGE, self._pages * model.page_bytes / 1e9)
        self._vocabulary = config.vocab_size
        self._model = model
        self._free_places = list(range(self._max_streams))
        self._free_pages = list(range(1, self._pages + 1))
        self._warm_up()

    def _warm_up(self) -> None:
        """The steps have run when their graphs were made; what is left is what an admission does."""
        # The worker comes back from the GPU every few milliseconds, and then must not wait the usual 5 ms for its turn in Python.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        prompt = [self._layout.first_code, 0]
        self._model.admit(0, prompt, Sampling(1), 0, [0])
        self._model.step([0], [0], prompt[:1]).ids()

    # Everything from here on runs on the worker thread.

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(self._has_work)
                    if self._stopping:
                        break
                    admitted = self._admit()
                for request in admitted:
                    self._model.admit(request.place, request.prompt, request.sampling, request.seed, request.pages)
                sent = self._send()
                if len(self._sent) >= AHEAD or (self._sent and not sent):
                    deliver(self._read(self._sent[0]))
                    self._sent.popleft()  # not before: if it cannot be read, its requests are among those that hear so
        except Exception as error:  # a GPU that fails answers nobody any more
            log.exception("the engine failed")
            with self._changed:
                self.failure = f"the engine failed: {error}"
        with self._changed:
            left = [*self._reading, *self._decoding, *self._waiting]
            left += [request for step in self._sent for request in step.requests]
            self._waiting.clear()
        self._reading, self._decoding = [], []
        self._sent.clear()
        failures = {request: EngineError(f"request {request.id}: {self.failure}") for request in left if not request.ended}
        deliver(failures.items())

    def _has_work(self) -> bool:
        return bool(self._stopping or self._waiting or self._reading or self._decoding or self._sent)

    def _admit(self) -> list[_Request]:
        """Take back what those who left had, and give places and pages to those waiting longest."""
        for request in [r for r in (*self._reading, *self._decoding) if r.closed]:
            self._leave(request)
        admitted = []
        while self._waiting:
            request = self._waiting[0]
            if not request.closed:
                if not self._free_places or len(self._free_pages) < request.need:
                    break
                request.place = self._free_places.pop()
                request.pages = [self._free_pages.pop() for _ in range(request.need)]
                admitted.append(request)
            self._waiting.popleft()
        self._reading += admitted
        return admitted

    def _leave(self, request: _Request) -> None:
        """No more rows for this request, if it has not left yet: what it had can be another's from the next step on."""
        if request.place < 0:
            return
        self._reading = [other for other in self._reading if other is not request]
        self._decoding = [other for other in self._decoding if other is not request]
        self._free_places.append(request.place)
        self._free_pages += request.pages
        request.place = -1

    def _send(self) -> bool:
        """Send a step of the next rows; False where there are none."""
        now = time.monotonic()
        places: list[int] = []
        positions: list[int] = []
        tokens: list[int] = []
        rows: list[int] = []
        requests: list[_Request] = []
        room = PROMPT_ROWS
        for request in self._reading:
            taken = range(request.read, min(request.read + room, len(request.prompt)))
            room -= len(taken)
            places += [request.place] * len(taken)
            positions += taken
            tokens += request.prompt[taken.start : taken.stop]
            request.read = taken.stop
            if request.read == len(request.prompt):
                rows.append(len(places) - 1)
                requests.append(request)
                request.heard = now
            if not room:
                break
        chosen, others = self._choose(now, len(places))
        rows += range(len(places), len(places) + len(chosen))
        places += [request.place for request in chosen]
        positions += [len(request.prompt) + request.sent - 1 for request in chosen]
        tokens += [NEWEST] * len(chosen)
        requests += chosen
        if not places:
            return False
        ticket = self._model.step(places, positions, tokens)
        self._sent.append(_Step(ticket, rows, requests))
        for request in requests:
            request.sent += 1
            request.heard += request.seconds
        self._reading = [request for request in self._reading if request.read < len(request.prompt)]
        self._decoding = requests + others
        for request in [request for request in requests if request.sent == request.budget]:
            self._leave(request)
        return True

    def _choose(self, now: float, prompt_rows: int) -> tuple[list[_Request], list[_Request]]:
        """Who of those decoding is in a step beside so many rows of prompts, and who is not."""
        decoding, in_need = by_need(self._decoding, now)
        if not in_need and not prompt_rows:
            return decoding, []
        count = self._model.size(min(prompt_rows + max(in_need, FEW), self._model.rows)) - prompt_rows
        return decoding[:count], decoding[count:]

    def _read(self, step: _Step) -> list[tuple[_Request, Item]]:
        """What is to be handed out once a step's ids are there."""
        frame, end = self._layout.slots, self._layout.end_of_speech
        drawn = step.ticket.ids()
        news: list[tuple[_Request, Item]] = []
        for row, request in zip(step.rows, step.requests, strict=True):
            if request.ended:
                continue
            token = drawn[row]
            request.drawn.append(token)
            request.received += 1
            over = request.received == request.budget
            if token == end and not over:
                self._leave(request)
            request.ended = over or token == end
            if request.ended or len(request.drawn) == frame:
                news.append((request, request.drawn))
                request.drawn = []
            if request.ended:
                news.append((request, None))
        return news
