"""A Llama decoder that serves many streams at once from one static KV cache.

    prompt ids [T] --prefill(row)--> hidden [hidden]        one prompt, alone, into its row of the cache
    last ids [n]   --decode--------> hidden [n, hidden]     one step for the rows 0 .. n-1 together

The weights are those of `LlamaForCausalLM`, and so is the arithmetic; `transformers` reads the configuration and
computes the RoPE frequencies. The forward pass is written out here because a decode step of a small model on a CPU
takes a few milliseconds, of which the general implementation's Python would be a large part.

Rows. A *row* is a place in the cache, `[row, 2 * kv_heads, position, head_dim]`: keys in the first half of the heads,
values in the second. A step runs the rows below the highest busy one, in blocks of `BLOCK`; an idle row among them
computes something that nobody reads.

Exactness. With `exact=True` a row's numbers are the same bits whatever the other rows hold, so that a stream does not
depend on its company. Three things would break that, and this is how each is kept:

- a matrix product may round differently for another number of rows: so it always sees `BLOCK` rows (`linear`). That
  such a block treats its rows alike is a property of the BLAS library, so each shape of weight is tried out when it is
  first used, and falls back to one row at a time, which cannot go wrong, where it does not hold;
- attention over a padded length may round differently for another padding: so each row attends alone, to its length;
- prompts are computed one by one, at their own length.

The bits do depend on the processor, the BLAS library and the number of threads.

With `exact=False` (for GPUs) a product sees all rows of the step and attention runs once for all rows over the longest,
rounded up; last bits may then change with the company.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from orpheus_serving.errors import CheckpointError

# Rows of one matrix product. On two cores of an AMD EPYC with AVX-512 the products of a 20 M parameter model's step
# took 5.1 ms for 1 row, 1.9 for 2, 2.6 for 4, 4.6 for 8 and 7.1 for 16: four rows cost little more than the fewest.
BLOCK = 4

# Attention lengths of a step with exact=False are multiples of this, so that a GPU sees few different shapes.
BUCKET = 256

# RoPE types whose frequencies do not change with the length of the sequence.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, each [out, in]. Fused: q, k, v along the rows; gate, up along the rows."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class LlamaDecoder:
    """See the module. `rows` is rounded up to a multiple of `BLOCK`; `length` bounds a row's ids, prompt included."""

    def __init__(
        self,
        config: Any,
        weights: Weights,
        *,
        rows: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype,
        exact: bool,
    ) -> None:
        def get(name: str, *shape: int) -> Tensor:
            return weights.get(name, shape).to(device=device, dtype=dtype)

        self.rows = -(-rows // BLOCK) * BLOCK
        self.length = length
        self.device = device
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._eps: float = config.rms_norm_eps

        hidden, mlp = config.hidden_size, config.intermediate_size
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.embedding = get("model.embed_tokens.weight", config.vocab_size, hidden)
        self.head = self.embedding if config.tie_word_embeddings else get("lm_head.weight", config.vocab_size, hidden)
        self._norm = get("model.norm.weight", hidden)
        self._layers = []
        for index in range(config.num_hidden_layers):
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
            self._layers.append(
                Layer(
                    attention_norm=get(f"{name}.input_layernorm.weight", hidden),
                    qkv=torch.cat(qkv),
                    output=get(f"{name}.self_attn.o_proj.weight", hidden, q_width),
                    mlp_norm=get(f"{name}.post_attention_layernorm.weight", hidden),
                    gate_up=torch.cat(gate_up),
                    down=get(f"{name}.mlp.down_proj.weight", hidden, mlp),
                )
            )
        self._cos, self._sin = rope_tables(config, length, device, dtype)
        self._cache = [
            torch.zeros(self.rows, 2 * self.kv_heads, length, self.head_dim, device=device, dtype=dtype) for _ in self._layers
        ]
        self._exact = exact
        self._blocks: dict[torch.Size, int] = {}  # rows of a block product, by the shape of its weight

    @torch.inference_mode()
    def prefill(self, row: int, tokens: Sequence[int]) -> Tensor:
        """Start `row` anew with a prompt of 1 .. `length` ids. Returns its last normed hidden state, [1, hidden]."""
        count = len(tokens)
        cos, sin = self._cos[:count], self._sin[:count]
        x = F.embedding(torch.tensor(tokens, device=self.device), self.embedding)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            heads = self._rotated(F.linear(self._rms(x, layer.attention_norm), layer.qkv), cos, sin)
            q, kv = heads.transpose(0, 1).split((self.heads, 2 * self.kv_heads))  # [heads, T, head_dim]
            cache[row, :, :count] = kv
            k, v = kv[None].chunk(2, dim=1)
            attended = F.scaled_dot_product_attention(q[None], k, v, is_causal=True, enable_gqa=True)
            x = x + F.linear(attended[0].transpose(0, 1).reshape(count, -1), layer.output)
            x = x + F.linear(self._gated(F.linear(self._rms(x, layer.mlp_norm), layer.gate_up)), layer.down)
        return self._rms(x[-1:], self._norm)

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """One step of the rows 0 .. n-1, n a multiple of `BLOCK`.

        `tokens[row]` is the row's newest id and `lengths[row]` the number of its ids with that one, 0 for an idle row.
        Returns the normed hidden states, [n, hidden]; those of idle rows mean nothing.
        """
        count = len(tokens)
        rows = torch.arange(count, device=self.device)
        positions = torch.tensor(lengths, device=self.device).sub_(1).clamp_(min=0)
        cos, sin = self._cos[positions], self._sin[positions]
        span = min(-(-max(lengths) // BUCKET) * BUCKET, self.length)
        visible = None if self._exact else (torch.arange(span, device=self.device) <= positions[:, None])[:, None, None]

        x = self.embedding[torch.tensor(tokens, device=self.device)]
        for layer, cache in zip(self._layers, self._cache, strict=True):
            heads = self._rotated(self.linear(self._rms(x, layer.attention_norm), layer.qkv), cos, sin)
            q, kv = heads.split((self.heads, 2 * self.kv_heads), dim=1)
            cache[rows, :, positions] = kv
            # The query heads that share a key head are so many queries of that one head: no copies of keys and values.
            q = q.reshape(count, self.kv_heads, -1, self.head_dim)
            if visible is None:
                attended = self._attend_each(q, cache, lengths)
            else:
                k, v = cache[:count, :, :span].chunk(2, dim=1)
                attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            x = x + self.linear(attended.reshape(count, -1), layer.output)
            x = x + self.linear(self._gated(self.linear(self._rms(x, layer.mlp_norm), layer.gate_up)), layer.down)
        return self._rms(x, self._norm)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """`x @ weight.T` for x [n, in] and weight [out, in]; with exact=True in blocks of constant size."""
        if not self._exact:
            return F.linear(x, weight)
        block = self._blocks.get(weight.shape)
        if block is None:
            block = self._blocks[weight.shape] = BLOCK if rows_are_alike(weight) else 1
        count = len(x)
        if count == block:
            return block_linear(x, weight)
        x = F.pad(x, (0, 0, 0, -count % block))
        return torch.cat([block_linear(rows, weight) for rows in x.split(block)])[:count]

    def _attend_each(self, q: Tensor, cache: Tensor, lengths: Sequence[int]) -> Tensor:
        """Attention of q [n, kv_heads, group, head_dim], each row to its first `lengths[row]` positions."""
        out = torch.zeros_like(q)
        for row, length in enumerate(lengths):
            if length:
                k, v = cache[row : row + 1, :, :length].chunk(2, dim=1)
                out[row : row + 1] = F.scaled_dot_product_attention(q[row : row + 1], k, v)
        return out

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


def block_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` with the wide matrix first: for few rows BLAS reads it two to three times as fast that way."""
    return (weight @ x.t()).t().contiguous()


def rows_are_alike(weight: Tensor) -> bool:
    """Whether a row of a block product gives the same bits at every place in the block and beside any other rows."""
    generator = torch.Generator().manual_seed(0)

    def noise() -> Tensor:
        return torch.randn(BLOCK, weight.shape[1], generator=generator).to(weight)

    rows = noise()
    expected = block_linear(rows, weight)
    for shift in range(BLOCK):
        if not torch.equal(block_linear(rows.roll(shift, 0), weight), expected.roll(shift, 0)):
            return False
        company = noise()
        company[shift] = rows[0]
        if not torch.equal(block_linear(company, weight)[shift], expected[0]):
            return False
    return True


def rope_tables(config: Any, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of every position, [length, 1, head_dim] each.

    Llama turns the pair (i, i + head_dim / 2) of a head. With the halves swapped and the first half's sine negated
    that is one multiplication and one addition: `x * cos + swapped(x) * sin`.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = config.rope_parameters.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise CheckpointError(f"config.json: rope_type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}")
    if kind == "default":
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        frequencies = config.rope_parameters["rope_theta"] ** -(torch.arange(0, dim, 2).float() / dim)
        scale = 1.0
    else:
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
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
