"""A Llama decoder that serves many streams at once from one static KV cache.

    prompt ids [T] --prefill(row)--> hidden [hidden]        one prompt, alone, into its row of the cache
    last ids [n]   --decode--------> hidden [n, hidden]     one step for the rows 0 .. n-1 together

The weights are those of `LlamaForCausalLM`, and so is the arithmetic; `transformers` computes scaled RoPE frequencies. The
forward pass is written out here because a decode step of a small model on a CPU takes a few milliseconds, of which the
general implementation's Python would be a large part. With `exact`, on a CPU and with numba installed, a step is one compiled
function (`cpu_step.py`): two to three times as fast. Prompts always go through torch.

Rows. A *row* is a place in the cache, `[row, 2 * kv_heads, position, head_dim]`: keys in the first half of the heads,
values in the second. A step runs just the busy rows.

Exactness. With `exact=True` a row's numbers are the same bits whatever the other rows hold, so that a stream does not
depend on its company. The compiled step keeps that by the order of its loops. In torch, two things would break it, and this is
how each is kept:

- a matrix product may round differently for another number of rows. That it does not is a property of the product's code,
  so each shape of weight is tried out at the start, and where it does not hold the product runs one row at a time;
- attention over a padded length may round differently for another padding: so each row attends alone, to its length.

Prompts are computed one by one. The bits do depend on the processor, the libraries and the number of threads.

With `exact=False` (for GPUs) attention runs once for all rows over the longest, rounded up; last bits may then change with
the company.

Precision. Products read their weights in `float32`, `bfloat16`, `float16` or `int8` (see `products.py`; everything else is
then float32, and so is the head, whose logits are compared with each other). Int8 is what makes one stream fast on a CPU:
a step has to read every weight once, and a 20 M parameter model's then fit into the cache of the processor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from orpheus_serving.compiled import has_numba
from orpheus_serving.engines.config import LlamaConfig
from orpheus_serving.errors import CheckpointError
from orpheus_serving.products import Product, int8_product, one_by_one, product, quantise, rows_are_alike

# Attention lengths of a step with exact=False are multiples of this, so that a GPU sees few different shapes.
BUCKET = 256

# RoPE types whose frequencies do not change with the length of the sequence.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights. Products of several: q, k, v side by side; gate, up side by side."""

    attention_norm: Tensor
    mlp_norm: Tensor
    qkv: Product
    output: Product
    gate_up: Product
    down: Product


class LlamaDecoder:
    """See the module. `length` bounds a row's ids, prompt included; `int8`: the layers' weights in eight bits."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Weights,
        *,
        rows: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype,
        exact: bool,
        int8: bool = False,
    ) -> None:
        def get(name: str, *shape: int) -> Tensor:
            return weights.get(name, shape).to(device=device, dtype=dtype)

        self.rows = rows
        self._exact = exact
        compiled = exact and device.type == "cpu" and dtype == torch.float32 and has_numba()
        self._alike: dict[tuple[torch.Size, bool], bool] = {}  # do rows come out alike, by shape of the weight and precision
        self.length = length
        self.device = device
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self._eps = config.rms_norm_eps

        hidden, mlp = config.hidden_size, config.intermediate_size
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.embedding = get("model.embed_tokens.weight", config.vocab_size, hidden)
        self.head = self.embedding if config.tie_word_embeddings else get("lm_head.weight", config.vocab_size, hidden)
        self._norm = get("model.norm.weight", hidden)
        layers = config.num_hidden_layers
        stacks: list[Stack] = []
        self._layers = []
        for index in range(layers):
            name = f"model.layers.{index}"
            qkv = [
                get(f"{name}.self_attn.q_proj.weight", q_width, hidden),
                get(f"{name}.self_attn.k_proj.weight", kv_width, hidden),
                get(f"{name}.self_attn.v_proj.weight", kv_width, hidden),
            ]
            gate_up = [
                get(f"{name}.mlp.gate_proj.weight", mlp, hidden),
                get(f"{name}.mlp.up_proj.weight", mlp, hidden),
            ]
            matrices = [
                torch.cat(qkv),
                get(f"{name}.self_attn.o_proj.weight", hidden, q_width),
                torch.cat(gate_up),
                get(f"{name}.mlp.down_proj.weight", hidden, mlp),
            ]
            if compiled:
                stacks = stacks or [Stack(layers, matrix.shape, int8) for matrix in matrices]
                products = [stack.put(index, matrix) for stack, matrix in zip(stacks, matrices, strict=True)]
            else:
                products = [self._product(matrix, int8) for matrix in matrices]
            self._layers.append(
                Layer(
                    get(f"{name}.input_layernorm.weight", hidden),
                    get(f"{name}.post_attention_layernorm.weight", hidden),
                    *products,
                )
            )
        self._cos, self._sin = rope_tables(config, length, device, dtype)
        # Zeros where a mask decides what counts, since nothing times NaN is NaN. Rows that attend alone see only what they wrote;
        # for them the system gives the memory when it is used: half a gigabyte of zeros would be most of the time to load.
        make = torch.empty if exact else torch.zeros
        cache = make(layers, self.rows, 2 * self.kv_heads, length, self.head_dim, device=device, dtype=dtype)
        self._cache = cache.unbind()
        self._compiled_step: Callable[[Tensor, Sequence[int], Sequence[int]], Tensor] | None = None
        if compiled:
            norms = torch.stack([torch.stack([layer.attention_norm, layer.mlp_norm]) for layer in self._layers])
            stacked = [tensor for stack in stacks for tensor in (stack.weights, stack.scales)]
            fixed = [norms, *stacked, self._norm, self._cos[:, 0], self._sin[:, 0], cache]
            self._compiled_step = compiled_step(fixed, self._eps)

    @torch.inference_mode()
    def prefill(self, row: int, tokens: Sequence[int]) -> Tensor:
        """Start `row` anew with a prompt of 1 .. `length` ids. Returns its last normed hidden state, [1, hidden]."""
        count = len(tokens)
        cos, sin = self._cos[:count], self._sin[:count]
        x = F.embedding(torch.tensor(tokens, device=self.device), self.embedding)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            heads = self._rotated(layer.qkv(self._rms(x, layer.attention_norm)), cos, sin)
            q, kv = heads.transpose(0, 1).split((self.heads, 2 * self.kv_heads))  # [heads, T, head_dim]
            cache[row, :, :count] = kv
            k, v = kv[None].chunk(2, dim=1)
            attended = F.scaled_dot_product_attention(q[None], k, v, is_causal=True, enable_gqa=True)
            x = x + layer.output(attended[0].transpose(0, 1).reshape(count, -1))
            x = x + layer.down(self._gated(layer.gate_up(self._rms(x, layer.mlp_norm))))
        return self._rms(x[-1:], self._norm)

    @torch.inference_mode()
    def decode(self, rows: Sequence[int], tokens: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """One step of the rows `rows`: `tokens` are their newest ids, `lengths` the numbers of their ids with those.

        Returns the normed hidden states, [len(rows), hidden].
        """
        if self._compiled_step:
            return self._compiled_step(F.embedding(torch.tensor(tokens), self.embedding), rows, lengths)
        count = len(rows)
        positions = torch.tensor(lengths, device=self.device) - 1
        cos, sin = self._cos[positions], self._sin[positions]
        if not self._exact:
            index = torch.tensor(rows, device=self.device)
            span = min(-(-max(lengths) // BUCKET) * BUCKET, self.length)
            visible = (torch.arange(span, device=self.device) <= positions[:, None])[:, None, None]

        x = F.embedding(torch.tensor(tokens, device=self.device), self.embedding)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            heads = self._rotated(layer.qkv(self._rms(x, layer.attention_norm)), cos, sin)
            q, kv = heads.split((self.heads, 2 * self.kv_heads), dim=1)
            # The query heads that share a key head are so many queries of that one head: no copies of keys and values.
            q = q.reshape(count, self.kv_heads, -1, self.head_dim)
            if self._exact:
                attended = self._attend_each(q, kv, cache, rows, lengths)
            else:
                cache[index, :, positions] = kv
                k, v = cache[index, :, :span].chunk(2, dim=1)
                attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            x = x + layer.output(attended.reshape(count, -1))
            x = x + layer.down(self._gated(layer.gate_up(self._rms(x, layer.mlp_norm))))
        return self._rms(x, self._norm)

    def product(self, weight: Tensor) -> Product:
        """A product with a part of the head, as exact as the decoder's own and in its own precision."""
        if not self._compiled_step:
            return self._product(weight, int8=False)
        from orpheus_serving.engines.cpu_step import head_product

        array = weight.contiguous().numpy()
        return lambda x: torch.from_numpy(head_product(x.contiguous().numpy(), array))

    def _product(self, weight: Tensor, int8: bool) -> Product:
        apply = int8_product(*quantise(weight)) if int8 else product(weight)
        if not self._exact:
            return apply
        kind = (weight.shape, int8)
        if kind not in self._alike:
            self._alike[kind] = rows_are_alike(apply, weight.shape[1], self.rows, weight.dtype)
        return apply if self._alike[kind] else one_by_one(apply)

    def _attend_each(self, q: Tensor, kv: Tensor, cache: Tensor, rows: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Attention of q [n, kv_heads, group, head_dim], each row to its first `lengths[i]` positions, kv [n, ..] the newest."""
        attended = []
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            own = cache[row : row + 1, :, :length]
            own[0, :, -1] = kv[i]
            k, v = own.chunk(2, dim=1)
            attended.append(F.scaled_dot_product_attention(q[i : i + 1], k, v))
        return torch.cat(attended) if len(attended) > 1 else attended[0]

    def _rotated(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Heads [T, heads + 2 * kv_heads, head_dim] of qkv [T, width], queries and keys turned to their positions."""
        heads = qkv.reshape(len(qkv), -1, self.head_dim)
        turning = heads[:, : self.heads + self.kv_heads]
        swapped = turning.roll(self.head_dim // 2, dims=-1)
        turning.mul_(cos).addcmul_(swapped, sin)
        return heads

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)

    @staticmethod
    def _gated(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


class Stack:
    """The same matrix [out, in] of all layers, for the compiled step: weights [layers, out, in], scales [layers, out] fp32."""

    def __init__(self, layers: int, shape: torch.Size, int8: bool) -> None:
        self.int8 = int8
        self.weights = torch.empty(layers, *shape, dtype=torch.int8 if int8 else torch.float32)
        self.scales = torch.ones(layers, shape[0])

    def put(self, layer: int, weight: Tensor) -> Product:
        """Keep the weight of a layer. Returns torch's product with what is kept, which prompts take."""
        kept, scale = self.weights[layer], self.scales[layer]
        if not self.int8:
            kept.copy_(weight)
            return lambda x: F.linear(x, kept)
        for place, value in zip((kept, scale), quantise(weight), strict=True):
            place.copy_(value)
        return int8_product(kept, scale)


def compiled_step(fixed: Sequence[Tensor], eps: float) -> Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]:
    """`cpu_step.step` of embedded ids [n, hidden], rows and lengths, over the tensors that are always the same."""
    from orpheus_serving.engines.cpu_step import step

    arrays = [tensor.numpy() for tensor in fixed]

    def run(x: Tensor, rows: Sequence[int], lengths: Sequence[int]) -> Tensor:
        return torch.from_numpy(step(x.numpy(), np.array(rows), np.array(lengths) - 1, *arrays, eps))

    return run


def rope_tables(config: LlamaConfig, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of every position, [length, 1, head_dim] each.

    Llama turns the pair (i, i + head_dim / 2) of a head. With the halves swapped and the first half's sine negated
    that is one multiplication and one addition: `x * cos + swapped(x) * sin`.
    """
    kind = config.rope_parameters["rope_type"]
    if kind not in ROPE_TYPES:
        raise CheckpointError(f"config.json: rope_type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    if kind == "default":
        frequencies = config.rope_parameters["rope_theta"] ** -(torch.arange(0, config.head_dim, 2).float() / config.head_dim)
        scale = 1.0
    else:
        from transformers import LlamaConfig as TheirConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](TheirConfig(**config.raw), torch.device("cpu"))
    angles = torch.outer(torch.arange(length).float(), frequencies.float())[:, None]
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return (
        torch.cat([cos, cos], dim=-1).to(device=device, dtype=dtype),
        torch.cat([-sin, sin], dim=-1).to(device=device, dtype=dtype),
    )


class Weights:
    """The tensors of a folder's safetensors files, by name, read when asked for. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        paths = sorted(folder.glob("*.safetensors"))
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            paths = sorted({folder / name for name in json.loads(index.read_text("utf-8"))["weight_map"].values()})
        if not paths:
            raise CheckpointError(f"{folder}: no *.safetensors file; convert other weight formats with save_pretrained")
        for path in paths:
            try:
                file = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: cannot be read: {error}") from error
            self._files.update(dict.fromkeys(file.keys(), file))

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Raises CheckpointError for a missing tensor or another shape."""
        if name not in self._files:
            raise CheckpointError(f"checkpoint: tensor {name} is missing from the safetensors files")
        tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"checkpoint: {name} has shape {tuple(tensor.shape)}, config.json says {shape}")
        return tensor

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
