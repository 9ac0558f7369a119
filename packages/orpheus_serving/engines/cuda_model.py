"""A Llama on a GPU whose step takes *rows*: any tokens of any streams, side by side.

    places, positions, tokens [n] --one copy--> graph of the next larger bucket:
        embedding -> layers (FP8 products, pages) -> norm -> audio head -> draw -> ids [n] --one copy--> host
                                                                             |
        newest[place]  <------ the next step's token of a decoding row ------'

A decoding stream is one row a step. A prompt is as many rows as it has ids, in one step or cut over several. Both go through the
same step together, so nobody waits for anybody's prompt, and there is one kind of CUDA graph. The id that a row draws stays on
the GPU as its stream's newest, so the host may send the next steps before it has read this one's.

Weights are FP8 (e4m3) with a scale a channel, rows are FP8 with a scale each (see `cuda_kernels.py`), the residual, the head and
the embedding bf16. The head has the audio ids alone, slot after slot, then the end of speech; the sampler
(`draw_kernel.py`) draws from the slot that can follow.

State of a place: its newest id, its page table, its sampling. `admit` writes it. All of it, copies included, happens on one CUDA
stream in the order of the calls, so a place and its pages may be given to the next request while steps that still mention the
last one are under way: what those write is overwritten before it is read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.config import LlamaConfig
from orpheus_serving.engines.cuda_kernels import FP8, PAGE, Raw, Rows, attend, gate, last_norm, norm, rotate
from orpheus_serving.engines.draw_kernel import draw
from orpheus_serving.engines.llama import Weights, rope_tables
from orpheus_serving.tokens import TokenLayout

NEWEST = -1  # as a row's token: the id that its stream drew last
SMALLEST_BUCKET = 8  # fewer rows would cost as much
BUCKETS = (8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256)  # then every 64
PROGRAMS = 1024  # of attention, wanted at least, so that few rows keep a GPU of about 132 processors busy
MOST_PARTS = 16
MOST_SENT = 4
HEAD_ROWS = 64  # the head's rows come in multiples of this, so that a row of logits starts on an aligned address

Ints = NDArray[np.int32]


def buckets(most: int) -> list[int]:
    """Sizes of steps up to `most`: close together, since a step is padded to the next."""
    sizes = [size for size in (*BUCKETS, *range(320, most, 64)) if size < most]
    return [*sizes, -(-most // SMALLEST_BUCKET) * SMALLEST_BUCKET]


@dataclass(frozen=True, slots=True)
class Product:
    """x @ weight.T of FP8 rows."""

    weight: Tensor  # [out, in] FP8
    channels: Tensor  # scales [out] fp32
    one: Tensor  # the scale that the library asks for

    @classmethod
    def of(cls, weight: Tensor) -> Product:
        channels = weight.float().abs().amax(dim=1).clamp_(min=1e-12) / torch.finfo(FP8).max
        return cls((weight.float() / channels[:, None]).to(FP8), channels, channels.new_ones(()))

    def __call__(self, x: Rows) -> Raw:
        codes = torch._scaled_mm(
            x.codes, self.weight.T, scale_a=self.one, scale_b=self.one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return Raw(codes, x.scales, self.channels)


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: Tensor
    qkv: Product  # of query heads, key heads and value heads, in this order
    output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


@dataclass(frozen=True, slots=True)
class Ticket:
    """A step that was sent."""

    drawn: Ints  # valid from when it is done until MOST_SENT steps later
    done: torch.cuda.Event | None

    def ids(self) -> list[int]:
        """Wait for what each row drew, [n]; of a row inside a prompt it means nothing. Other threads run meanwhile."""
        if self.done is not None:
            self.done.synchronize()
        drawn: list[int] = self.drawn.tolist()
        return drawn


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    rows: Tensor  # [3, size] on the device; the graph reads it
    drawn: Tensor  # [size] on the device; the graph writes it
    buffers: deque[tuple[Tensor, Tensor, torch.cuda.Event]]  # of steps under way: rows and drawn, pinned; it is done


class RowModel:
    """See the module. Its caller keeps to one thread.

    places: streams at once. rows: most rows of a step. length: most ids of a stream, prompt included.
    After loading, `open_pages` decides how many pages the cache has; `page_bytes` is what one takes.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Weights,
        layout: TokenLayout,
        *,
        places: int,
        rows: int,
        length: int,
        device: torch.device,
    ) -> None:
        self.layout = layout
        self.device = device
        self.places = places
        self.table_width = -(-length // PAGE)
        self._buckets = buckets(rows)
        self.rows = self._buckets[-1]
        self._eps = config.rms_norm_eps
        self._page_shape = (2, config.num_key_value_heads, PAGE * config.head_dim)
        self.page_bytes = config.num_hidden_layers * math.prod(self._page_shape)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

        cos, sin = rope_tables(config, length, device, torch.float32)
        half = config.head_dim // 2
        self._cos, self._sin = cos[:, 0, half:].contiguous(), sin[:, 0, half:].contiguous()
        self._load(config, weights)
        self._caches: list[Tensor] = []
        self._graphs: dict[int, _Graph] = {}

        count = places + 1  # the last one is spare: it belongs to rows that fill up a bucket
        self._tables = torch.zeros(count, self.table_width, dtype=torch.int32, device=device)
        self._newest = torch.zeros(count, dtype=torch.int32, device=device)
        self._prompts = torch.full((count,), length + 1, dtype=torch.int32, device=device)  # the spare one is never complete
        self._temperature, self._top_p, self._penalty = torch.ones(3, count, dtype=torch.float32, device=device)
        self._top_k = torch.ones(count, dtype=torch.int32, device=device)
        self._seeds = torch.zeros(count, dtype=torch.int64, device=device)
        self._seen = torch.zeros(count, len(self._head), dtype=torch.int8, device=device)

    def _load(self, config: LlamaConfig, weights: Weights) -> None:
        layout, hidden, mlp = self.layout, config.hidden_size, config.intermediate_size
        q_width, kv_width = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim

        def get(name: str, *shape: int) -> Tensor:
            return weights.get(name, shape).to(self.device, torch.bfloat16)

        self._embedding = get("model.embed_tokens.weight", config.vocab_size, hidden)
        head = self._embedding if config.tie_word_embeddings else get("lm_head.weight", config.vocab_size, hidden)
        codes = layout.slots * layout.codes_per_slot
        self._head = head.new_zeros(-(-(codes + 1) // HEAD_ROWS) * HEAD_ROWS, hidden)
        self._head[:codes] = head[layout.first_code : layout.last_code + 1]
        self._head[codes] = head[layout.end_of_speech]
        self._norm = get("model.norm.weight", hidden)
        self._layers = []
        for index in range(config.num_hidden_layers):
            name = f"model.layers.{index}"
            qkv = [
                get(f"{name}.self_attn.q_proj.weight", q_width, hidden),
                get(f"{name}.self_attn.k_proj.weight", kv_width, hidden),
                get(f"{name}.self_attn.v_proj.weight", kv_width, hidden),
            ]
            gate_up = [get(f"{name}.mlp.gate_proj.weight", mlp, hidden), get(f"{name}.mlp.up_proj.weight", mlp, hidden)]
            self._layers.append(
                Layer(
                    attention_norm=get(f"{name}.input_layernorm.weight", hidden),
                    qkv=Product.of(torch.cat(qkv)),
                    output=Product.of(get(f"{name}.self_attn.o_proj.weight", hidden, q_width)),
                    mlp_norm=get(f"{name}.post_attention_layernorm.weight", hidden),
                    gate_up=Product.of(torch.cat(gate_up)),
                    down=Product.of(get(f"{name}.mlp.down_proj.weight", hidden, mlp)),
                )
            )

    @torch.inference_mode()
    def open_pages(self, count: int) -> None:
        """Make the cache, and on a GPU a graph for each size of step. Page 0 is the spare place's, requests get 1 .. count - 1"""
        self._caches = [
            torch.zeros(count, *self._page_shape, dtype=torch.uint8, device=self.device).view(FP8) for _ in self._layers
        ]
        if self._stream is None:
            return
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self._buckets):
            rows = self._spare_rows(size).to(self.device)
            with torch.cuda.stream(self._stream):
                self._forward(rows)  # compiles, and lets libraries allocate
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                drawn = self._forward(rows)
            # Events that block: a thread that waits for the GPU leaves its processor to others.
            buffers = deque(
                (self._spare_rows(size), torch.empty(size, dtype=torch.int32, pin_memory=True), torch.cuda.Event(blocking=True))
                for _ in range(MOST_SENT)
            )
            self._graphs[size] = _Graph(graph, rows, drawn, buffers)

    @torch.inference_mode()
    def admit(self, place: int, prompt: Sequence[int], sampling: Sampling, seed: int, pages: Sequence[int]) -> None:
        """Give a place to a request: its pages must hold its prompt and all that it may generate. `seed` is a 64-bit integer."""
        layout = self.layout
        columns = [i - layout.first_code for i in prompt if layout.is_code(i)]
        if layout.end_of_speech in prompt:
            columns.append(layout.slots * layout.codes_per_slot)
        with torch.cuda.stream(self._stream):
            self._tables[place, : len(pages)].copy_(self._pinned(pages, torch.int32), non_blocking=True)
            self._prompts[place] = len(prompt)
            self._temperature[place] = sampling.temperature
            self._top_p[place] = sampling.top_p
            self._top_k[place] = sampling.top_k or layout.codes_per_slot + 1
            self._penalty[place] = sampling.repetition_penalty
            self._seeds[place] = seed
            self._seen[place].zero_()
            if columns:
                self._seen[place].index_fill_(0, self._pinned(columns, torch.int64).to(self.device, non_blocking=True), 1)

    def size(self, count: int) -> int:
        """Rows that a step of so many is padded to: more of them cost nothing."""
        return self._buckets[bisect_left(self._buckets, count)]

    @torch.inference_mode()
    def step(self, places: Sequence[int], positions: Sequence[int], tokens: Sequence[int]) -> Ticket:
        """Send one step of rows [n], 1 <= n <= `rows`. A row whose token is NEWEST goes on with what its place drew last.

        Rows that end a prompt or go on draw an id. A place has several rows only while they are its prompt's. At most
        `MOST_SENT` steps may be sent and not read.
        """
        count = len(places)
        size = self.size(count)
        if self._stream is None:
            return Ticket(self._forward(self._filled(self._spare_rows(size), places, positions, tokens)).numpy()[:count], None)
        # Few calls into PyTorch, each of which lets go of the interpreter and may wait to get it back.
        graph = self._graphs[size]
        rows, drawn, done = graph.buffers[0]
        graph.buffers.rotate(-1)
        self._filled(rows, places, positions, tokens)
        with torch.cuda.stream(self._stream):
            graph.rows.copy_(rows, non_blocking=True)
            graph.graph.replay()
            drawn.copy_(graph.drawn, non_blocking=True)
            done.record()
        return Ticket(drawn.numpy()[:count], done)

    def _filled(self, rows: Tensor, places: Sequence[int], positions: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """`rows` with these first, and rows of the spare place after them."""
        numbers, count = rows.numpy(), len(places)
        numbers[:, :count] = places, positions, tokens
        numbers[0, count:] = self.places
        numbers[1:, count:] = 0
        return rows

    def _forward(self, rows: Tensor) -> Tensor:
        """Ids drawn, [n] int32, by rows [3, n] int32 of places, positions and tokens."""
        places, positions, tokens = rows.unbind(0)
        layout, spare = self.layout, self.places
        parts = max(1, min(MOST_PARTS, PROGRAMS // (len(places) * self._page_shape[1])))
        x = torch.nn.functional.embedding(torch.where(tokens == NEWEST, self._newest[places], tokens), self._embedding)
        delta: Raw | None = None
        for layer, cache in zip(self._layers, self._caches, strict=True):
            qkv = layer.qkv(norm(x, delta, layer.attention_norm, self._eps))
            q = rotate(qkv, cache, self._cos, self._sin, places, positions, self._tables)
            delta = layer.output(attend(q, cache, places, positions, self._tables, parts=parts))
            gate_up = layer.gate_up(norm(x, delta, layer.mlp_norm, self._eps))
            delta = layer.down(gate(gate_up))
        assert delta is not None
        hidden = last_norm(x, delta, self._norm, self._eps)
        drawn, sampled = draw(
            linear(hidden, self._head),
            self._seen,
            places,
            positions + 1,
            self._prompts,
            self._prompts,
            self._temperature,
            self._top_p,
            self._top_k,
            self._penalty,
            self._seeds,
            slots=layout.slots,
            codes_per_slot=layout.codes_per_slot,
            first_code=layout.first_code,
            end_of_speech=layout.end_of_speech,
        )
        ids = drawn.to(torch.int32)
        self._newest.index_copy_(0, torch.where(sampled != 0, places, spare).long(), ids)
        return ids

    def _spare_rows(self, size: int) -> Tensor:
        """[3, size] int32 rows of the spare place, pinned where there is a GPU."""
        rows = torch.zeros(3, size, dtype=torch.int32, pin_memory=self._stream is not None)
        rows[0] = self.places
        return rows

    def _pinned(self, values: Sequence[int], dtype: torch.dtype) -> Tensor:
        tensor = torch.tensor(values, dtype=dtype)
        return tensor if self._stream is None else tensor.pin_memory()
