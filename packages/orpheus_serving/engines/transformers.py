"""The embedded engine: a Llama checkpoint in Hugging Face format, in this process, with continuous batching.

    generate() --request--> waiting --admit--> a row --one step after another--> frames of ids --> generate()

One worker thread repeats: drop the rows of closed requests, give free rows to waiting requests (their prompts are
computed one by one), do one step for all rows together, hand out what is complete. Streams so join and leave between
any two steps. The thread sleeps while there is nothing to do. Ids go to the event loop in one call a step, a frame at a
time. On a CPU, where each row makes a step longer, a step has the rows of those who are in need (see `pacing.py`), or of all
while nobody is.

What a row computes, and so what a seeded request says, depends on nothing but that request: always on a CPU (see
`llama.py` for how), and up to the last bits of the numbers, which can tip a draw, on a GPU.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from orpheus_serving.engines.base import Sampling, check_layout
from orpheus_serving.engines.config import read_config
from orpheus_serving.engines.delivery import Item, deliver
from orpheus_serving.engines.llama import LlamaDecoder, Weights
from orpheus_serving.engines.pacing import by_need, id_seconds
from orpheus_serving.engines.sampling import Candidates, draw
from orpheus_serving.engines.threaded import ThreadedEngine
from orpheus_serving.errors import CheckpointError, EngineError
from orpheus_serving.tokens import TokenLayout

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.float32}

# What is fetched of a hub repository: nothing below its top folder, no optimizer states, no pickles.
HUB_PATTERNS = ("*.json", "*.safetensors", "tokenizer.model")
HUB_IGNORED = ("*/*", "*optimizer*")


@dataclass(eq=False, slots=True)
class _Request:
    """A request on its way. The event loop reads `lists`; everything below it belongs to the worker."""

    id: str
    prompt: list[int]
    sampling: Sampling
    budget: int  # ids it may generate: max_tokens, or what its row has room for
    seconds: float  # for which an id is heard
    loop: asyncio.AbstractEventLoop
    lists: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)
    closed: bool = False

    uniforms: random.Random = field(init=False)
    generated: int = 0
    newest: int = 0
    heard: float = 0.0  # see `pacing.py`
    pending: list[int] = field(default_factory=list)  # ids of the frame that is not complete yet

    def __post_init__(self) -> None:
        self.uniforms = random.Random(self.sampling.seed)


_Event = tuple[_Request, Item]
_Batch = list[tuple[int, _Request]]  # row and request, in the order of the rows


class TransformersEngine(ThreadedEngine[_Request]):
    """An `Engine` over a local folder or hub repository in Hugging Face format (Llama family, safetensors).

    device: "auto" is CUDA where there is one. dtype, of the weights: "auto" is bfloat16 on CUDA and int8 on a CPU.
    max_streams: rows of the cache; further requests wait their turn. max_length: prompt plus generated ids of a row.
    constrained: only draw ids of the slot that follows, and the end of speech where a frame begins.
    exact: see `llama.py`; None is True on a CPU and False elsewhere.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        layout: TokenLayout,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_streams: int = 8,
        max_length: int = 4096,
        constrained: bool = True,
        revision: str | None = None,
        exact: bool | None = None,
    ) -> None:
        if max_streams < 1 or max_length < 2:
            raise ValueError(f"max_streams {max_streams} must be at least 1 and max_length {max_length} at least 2")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if dtype == "auto":
            dtype = "bfloat16" if device.startswith("cuda") else "int8"
        if dtype not in DTYPES:
            raise ValueError(f"dtype: {dtype!r} is not one of auto, {', '.join(DTYPES)}")
        if dtype == "int8" and not device.startswith("cpu"):
            raise ValueError(f"dtype: int8 is for CPUs, and the device is {device}; use bfloat16")
        super().__init__(checkpoint, max_length)
        self._layout = layout
        self._device = torch.device(device)
        self._dtype = DTYPES[dtype]
        self._int8 = dtype == "int8"
        self._max_streams = max_streams
        self._constrained = constrained
        self._revision = revision
        self._exact = self._device.type == "cpu" if exact is None else exact

        self._decoder: LlamaDecoder  # these three from `_load` until `stop`
        self._candidates: Candidates
        self._seen: Tensor  # [rows, groups, width] bool: ids that the row has had, for the repetition penalty
        self._rows: list[_Request | None] = [None] * max_streams

    def _request(self, prompt: Sequence[int], sampling: Sampling, request_id: str, budget: int) -> _Request:
        return _Request(request_id, list(prompt), sampling, budget, id_seconds(sampling.pace), asyncio.get_running_loop())

    def _unload(self) -> None:
        del self._decoder, self._candidates, self._seen

    def _load(self) -> None:
        folder = fetch(self._checkpoint, self._revision)
        config = read_config(folder)
        check_layout(self._layout, config.vocab_size, folder)
        self._vocabulary = config.vocab_size
        with Weights(folder) as weights:
            decoder = LlamaDecoder(
                config,
                weights,
                rows=self._max_streams,
                length=self._max_length,
                device=self._device,
                dtype=self._dtype,
                exact=self._exact,
                int8=self._int8,
            )
        candidates = Candidates(decoder.head, self._layout, self._constrained, decoder.product)
        seen = torch.zeros(decoder.rows, candidates.groups, candidates.width, dtype=torch.bool, device=self._device)
        self._decoder, self._candidates, self._seen = decoder, candidates, seen
        self._warm_up()

    def _warm_up(self) -> None:
        """A prompt, a step of all rows and a draw from every group: each kernel has run before the first request."""
        decoder, groups = self._decoder, list(range(self._candidates.groups))
        decoder.prefill(0, [0])
        hidden = decoder.decode(range(decoder.rows), [0] * decoder.rows, [1] * decoder.rows)[:1]
        self._draw(hidden.expand(len(groups), -1), [0] * len(groups), groups, [Sampling(1)] * len(groups), [0.5] * len(groups))

    # Everything from here on runs on the worker thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._stopping:
                    break
                admitted = self._admit()
            events: list[_Event] = []
            for row, request in admitted:
                self._try(self._prefill, [(row, request)], events)
            if running := self._running():
                self._try(self._step, running, events)
            deliver(events)
            if self.failure:
                break
        with self._changed:
            left = [*filter(None, self._rows), *self._waiting]
            self._rows = [None] * self._max_streams
            self._waiting.clear()
        deliver([(request, EngineError(f"request {request.id}: {self.failure}")) for request in left])

    def _has_work(self) -> bool:
        return self._stopping or bool(self._waiting) or any(self._rows)

    def _admit(self) -> list[tuple[int, _Request]]:
        """Free the rows of closed requests and give free rows, lowest first, to those waiting longest."""
        for row, request in enumerate(self._rows):
            if request and request.closed:
                self._rows[row] = None
        self._waiting = deque(request for request in self._waiting if not request.closed)
        admitted = []
        for row, request in enumerate(self._rows):
            if request is None and self._waiting:
                self._rows[row] = newcomer = self._waiting.popleft()
                admitted.append((row, newcomer))
        return admitted

    def _running(self) -> _Batch:
        """Who is in the next step."""
        batch = [(row, request) for row, request in enumerate(self._rows) if request and not request.closed]
        if self._device.type != "cpu":
            return batch
        ordered, in_need = by_need([request for _, request in batch], time.monotonic())
        chosen = set(ordered[: in_need or None])
        return [(row, request) for row, request in batch if request in chosen]

    def _try(self, work: Callable[[_Batch], list[_Event]], batch: _Batch, events: list[_Event]) -> None:
        """Do `work` for the batch; if it fails, these requests do, and the others go on if the device still answers."""
        try:
            events += work(batch)
        except Exception as error:
            log.exception("a step of %d requests failed", len(batch))
            for row, request in batch:
                self._rows[row] = None
                failure = EngineError(f"request {request.id}: a step of the language model failed: {error}")
                failure.__cause__ = error
                events.append((request, failure))
            try:
                torch.ones(1, device=self._device).add_(1).item()
            except Exception:
                with self._changed:
                    self.failure = f"the device {self._device} does not answer any more: {error}"

    def _prefill(self, batch: _Batch) -> list[_Event]:
        [(row, request)] = batch
        request.heard = time.monotonic()
        self._seen[row] = False
        for group, column in filter(None, map(self._candidates.place, request.prompt)):
            self._seen[row, group, column] = True
        return self._extend(batch, self._decoder.prefill(row, request.prompt))

    def _step(self, batch: _Batch) -> list[_Event]:
        hidden = self._decoder.decode(
            [row for row, _ in batch],
            [request.newest for _, request in batch],
            [len(request.prompt) + request.generated for _, request in batch],
        )
        return self._extend(batch, hidden)

    def _extend(self, batch: _Batch, hidden: Tensor) -> list[_Event]:
        """Draw the next id of each request, from hidden [n, hidden], and say what is to be handed out."""
        rows = [row for row, _ in batch]
        groups = [self._candidates.group(request.generated) for _, request in batch]
        samplings = [request.sampling for _, request in batch]
        columns = self._draw(hidden, rows, groups, samplings, [request.uniforms.random() for _, request in batch])
        events: list[_Event] = []
        for (row, request), group, column in zip(batch, groups, columns, strict=True):
            request.newest = self._candidates.token(group, column)
            request.pending.append(request.newest)
            request.generated += 1
            request.heard += request.seconds
            ended = request.newest == self._layout.end_of_speech or request.generated == request.budget
            if ended or len(request.pending) == self._layout.slots:
                events.append((request, request.pending))
                request.pending = []
            if ended:
                events.append((request, None))
                self._rows[row] = None
        return events

    @torch.inference_mode()
    def _draw(
        self, hidden: Tensor, rows: list[int], groups: list[int], samplings: list[Sampling], uniforms: list[float]
    ) -> list[int]:
        """Draw a column of its group for each row, and note it as seen."""
        logits = self._candidates.logits(hidden, groups)
        if all(sampling.repetition_penalty == 1 for sampling in samplings):  # then nobody will ask what was seen, either
            return draw(logits, None, samplings, uniforms)
        columns = draw(logits, self._seen[rows, groups], samplings, uniforms)
        self._seen[rows, groups, columns] = True
        return columns


def fetch(checkpoint: str | Path, revision: str | None) -> Path:
    """The local folder of a checkpoint: itself, or the hub repository's, fetched without optimizer states and pickles.

    Raises CheckpointError if it is neither a folder nor a repository that can be reached.
    """
    if Path(checkpoint).is_dir():
        return Path(checkpoint)
    from huggingface_hub import snapshot_download

    try:
        path = snapshot_download(
            str(checkpoint), revision=revision, allow_patterns=list(HUB_PATTERNS), ignore_patterns=list(HUB_IGNORED)
        )
    except Exception as error:
        raise CheckpointError(
            f"{checkpoint}: not a folder, and not to be had from the hub (name? network? token?): {error}"
        ) from error
    return Path(path)
