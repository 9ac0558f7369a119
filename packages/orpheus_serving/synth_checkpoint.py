"""An Orpheus-shaped checkpoint for load tests: random weights whose output is valid frames and ends, however it is sampled.

    build_synth_lm(folder, size) -> config.json, model-*.safetensors, tokenizer.json, speech.json, README.md (and codec/)

The gated weights are not needed to measure a server, but noise would not do: a random model says ids that are no audio and
never stops, so that lengths, batches and the codec's work have nothing to do with a real run. Here a few of the hidden
dimensions carry marks that no random weight touches, and the first layer is a small program over them:

    embedding   every token has K = 1; start of speech has SOS; a code of slot s has IN[s]; and each id has one of
                OUT[slot 0 .. 6], OUT[end], OUT[text], which is read by the (tied) head only
    attention   head 0: the query of every token asks for the start of speech, at a score that turns slowly with the distance
                (one rotary pair). Past the chosen distance, the start loses against all other tokens together: L goes 0 -> 1
    MLP         IN[s]          -> minus a lot at every OUT but that of slot s + 1 (of slot 0 after the last, and after SOS)
                IN[last] and L -> minus a lot at slot 0 as well, and the end of speech is free

So whatever follows has a logit near zero, spread by random numbers (2 to 3 is its deviation), and whatever must not follow
has one far below. How far depends on the width: the head is tied, so the newest id's own logit stands out by its square root,
and the ban has to outweigh that, even where slot 0 and the end are both half banned. That holds for greedy and for sampled
tokens, with or without constrained sampling, in bf16 and with FP8 weights and KV cache; in FP8 the end comes a frame or two
early or late. The remaining layers are random, as wide and as deep as Orpheus 3B ("full") or as a test needs ("tiny").
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models
from torch import Tensor

from .checkpoint import ORPHEUS_TAGS, ORPHEUS_VOICES
from .codec.noise_codec import SNAC_24KHZ, TINY, build_noise_codec
from .noise_checkpoint import CHARACTERS, NOISE_LAYOUT, SPECIAL
from .tokens import TokenLayout

NAME = "synthetic: random weights, not a voice"
FRAME_SECONDS = 2048 / 24000
ROPE_THETA = 500_000.0
ROPE_SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

README = """# Synthetic

This checkpoint was filled with random numbers so that a server can be loaded without the real weights. It is not a voice and
was never trained: whatever text it is given, it "speaks" noise for about {seconds:.1f} seconds. Its shape, files and formats are
those of Orpheus 3B, so speed and memory are too; what it says means nothing.
"""

# Sizes of the marks, in embeddings whose random part has norm 1.
MARK = 0.5
SHARPNESS = 40.0  # attention score of the start of speech at distance 0 of its cosine
BAN = 3.0  # what the first MLP writes at an OUT that may not follow; dominates the norm of the last hidden state
SPREAD = 2.5  # deviation of the logits that may follow, about
CLEAR = 40.0  # what is banned stays this far below what may follow
GATE = 8.0  # silu(8) is 8 within 0.3 %, silu(-8) is 0 within 0.3 %


@dataclass(frozen=True)
class Shape:
    """What config.json says about the model's size. The defaults are those of Orpheus 3B."""

    layout: TokenLayout = field(default_factory=TokenLayout)
    vocabulary: int = 156_940
    hidden: int = 3072
    layers: int = 28
    heads: int = 24
    kv_heads: int = 8
    head_dim: int = 128
    mlp: int = 8192
    max_positions: int = 131_072
    dtype: torch.dtype = torch.bfloat16


TINY_SHAPE = Shape(
    layout=NOISE_LAYOUT,
    vocabulary=NOISE_LAYOUT.last_code + 1,
    hidden=128,
    layers=3,
    heads=4,
    kv_heads=2,
    head_dim=32,
    mlp=256,
    max_positions=16_384,
    dtype=torch.float32,
)
SHAPES = {"full": Shape(), "tiny": TINY_SHAPE}


def build_synth_lm(
    folder: str | Path,
    size: Literal["full", "tiny"] | Shape = "full",
    *,
    seconds: float = 10.0,
    seed: int = 0,
    device: str = "auto",
    codec: bool = True,
) -> Path:
    """Write the checkpoint, and with `codec` a random SNAC codec of the same size in `codec/`; returns the folder.

    size: or another shape. Full size: 6.6 GB. seconds: of every utterance, 1 to 60; a frame or two more or less in FP8.
    device: where the random numbers are drawn: a GPU needs a second for what takes a CPU a minute.
    Raises ValueError for a length that cannot be marked.
    """
    if not 1 <= seconds <= 60:
        raise ValueError(f"seconds: {seconds}, must be 1 to 60")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    folder, shape = Path(folder), size if isinstance(size, Shape) else SHAPES[size]
    folder.mkdir(parents=True, exist_ok=True)
    frames = round(seconds / FRAME_SECONDS)
    _write_json(folder / "config.json", _config(shape))
    _write_json(folder / "generation_config.json", {"do_sample": True, "eos_token_id": shape.layout.end_of_speech})
    _write_json(folder / "speech.json", _speech(shape))
    (folder / "README.md").write_text(README.format(seconds=frames * FRAME_SECONDS), encoding="utf-8")
    _tokenizer(shape).save(str(folder / "tokenizer.json"))
    _write_weights(folder, shape, _Program(shape, frames), seed, device)
    if codec:
        build_noise_codec(folder / "codec", TINY if size == "tiny" else SNAC_24KHZ, seed)
    return folder


class _Program:
    """The marks and what the first layer does with them. Every row and column that it names is else zero."""

    def __init__(self, shape: Shape, frames: int) -> None:
        slots = shape.layout.slots
        self.shape = shape
        self.one, self.sos, self.late = 0, 1, 2
        self.into = [3 + slot for slot in range(slots)]
        self.out = [3 + slots + slot for slot in range(slots)]
        self.out_end, self.out_text = 3 + 2 * slots, 4 + 2 * slots
        self.marks = 5 + 2 * slots
        # The end may come once frames * slots ids are generated, which is the distance of the newest id from the start.
        self.distance = (frames - 0.5) * slots
        self.pair, self.phase = self._turn()
        # 1 / (a mark after the norm): squares of the random part, K, the own IN and OUT
        self.unit = math.sqrt((1 + 3 * MARK**2) / shape.hidden) / MARK

    def _turn(self) -> tuple[int, float]:
        """The rotary pair and phase whose cosine falls through the critical score at `distance`.

        The score is SHARPNESS cos(frequency * d + phase); the start of speech has a quarter of the attention left where it
        equals log(others / 3). At d = 0 it must be well above, so the phase stays above -1.25.
        """
        critical = math.acos(math.log((self.distance + 40) / 3) / SHARPNESS)
        turns = {pair: f * self.distance for pair, f in enumerate(rotary_frequencies(self.shape.head_dim))}
        suited = [pair for pair, turn in turns.items() if 0.4 < turn < critical + 1.25]
        if not suited:
            raise ValueError(f"seconds: no rotary frequency turns as slowly as {self.distance:.0f} tokens need")
        pair = min(suited, key=lambda pair: abs(turns[pair] - 1.8))
        phase = critical - turns[pair]
        return pair, phase

    def embed(self, table: Tensor, first: int) -> None:
        """Mark the rows of a piece of the embedding; row 0 of it is the id `first`. Random parts get norm 1."""
        layout = self.shape.layout
        table[:, : self.marks] = 0
        table /= table.norm(dim=1, keepdim=True)
        ids = torch.arange(first, first + len(table), device=table.device)
        table[:, self.one] = MARK
        table[:, self.out_text] = MARK
        table[ids == layout.prompt_after[-1], self.sos] = MARK
        for slot in range(layout.slots):
            rows = (ids >= layout.token(slot, 0)) & (ids <= layout.token(slot, layout.codes_per_slot - 1))
            table[rows, self.into[slot]] = MARK
            table[rows, self.out[slot]] = MARK
            table[rows, self.out_text] = 0
        end = ids == layout.end_of_speech
        table[end, self.out_end] = MARK
        table[end, self.out_text] = 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> None:
        """Write head 0 into the projections; the other query heads that share its keys say nothing."""
        size, group = self.shape.head_dim, self.shape.heads // self.shape.kv_heads
        q[: size * group] = 0
        k[:size] = 0
        v[:size] = 0
        o[:, : size * group] = 0
        length = math.sqrt(SHARPNESS * math.sqrt(size))  # of query and key
        q[self.pair, self.one] = length * math.cos(self.phase) * self.unit
        q[self.pair + size // 2, self.one] = length * math.sin(self.phase) * self.unit
        k[self.pair, self.sos] = length * self.unit
        v[0, self.one] = self.unit
        v[0, self.sos] = -self.unit
        o[self.late, 0] = MARK

    def transition(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        """Write the neurons: one a slot, one for the start, one for the end."""
        slots = self.shape.layout.slots
        everything = [*self.out, self.out_end, self.out_text]
        neurons = slots + 2
        gate[:neurons] = 0
        up[:neurons] = 0
        down[:, :neurons] = 0
        for neuron, mark in enumerate([*self.into, self.sos]):
            follows = self.out[(neuron + 1) % slots] if neuron < slots else self.out[0]
            gate[neuron, mark] = GATE * self.unit
            up[neuron, mark] = self.unit
            down[[out for out in everything if out != follows], neuron] = -BAN / GATE
        # 2 GATE IN[last] + 2 GATE L - 3 GATE: -GATE with either alone, GATE with both
        end = slots + 1
        gate[end, self.into[-1]] = 2 * GATE * self.unit
        gate[end, self.late] = 2 * GATE * self.unit
        gate[end, self.one] = -3 * GATE * self.unit
        up[end, self.one] = self.unit
        down[self.out_end, end] = BAN / GATE
        down[self.out[0], end] = -BAN / GATE

    def last_norm(self, weight: Tensor) -> None:
        """Weights of the last norm: only the OUT marks and the random part reach the head."""
        hidden, banned = self.shape.hidden, self.shape.layout.slots + 1
        size = math.sqrt(2.0 + banned * BAN**2)  # of the hidden state; the random layers leave 2 of the squares, about
        weight[:] = SPREAD * size / math.sqrt(2.0) * math.sqrt((hidden - self.marks) / hidden)
        weight[: self.marks] = 0
        own = SPREAD * math.sqrt(hidden / 2)  # the newest id's own logit, above others'; its OUT, itself a mark, is at MARK - BAN
        ban = (own + CLEAR) * BAN / (BAN - MARK - BAN / 2)  # of what is banned in full; slot 0 and the end meet at -BAN / 2
        weight[[*self.out, self.out_end, self.out_text]] = ban / (MARK * BAN * math.sqrt(hidden) / size)


def rotary_frequencies(head_dim: int) -> list[float]:
    """Radians a token of each rotary pair, with Llama 3's stretching of the slow ones."""
    scaling = ROPE_SCALING
    slow = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
    fast = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
    frequencies = []
    for i in range(head_dim // 2):
        frequency = ROPE_THETA ** (-2 * i / head_dim)
        wavelength = 2 * math.pi / frequency
        if wavelength > slow:
            frequency /= scaling["factor"]
        elif wavelength > fast:
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            smooth = (scaling["original_max_position_embeddings"] / wavelength - low) / (high - low)
            frequency = (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
        frequencies.append(frequency)
    return frequencies


def _tensors(shape: Shape, program: _Program, seed: int, device: str) -> Iterator[tuple[str, Tensor]]:
    """Llama's weights by their Hugging Face names, in fp32 or the shape's dtype, one at a time."""
    generator = torch.Generator(device).manual_seed(seed)
    hidden, marks = shape.hidden, program.marks

    def matrix(out: int, into: int, scale: float = 1.0) -> Tensor:
        values = torch.empty(out, into, device=device, dtype=shape.dtype).normal_(generator=generator)
        return values.mul_(scale * into**-0.5)

    table = torch.empty(shape.vocabulary, hidden, dtype=shape.dtype)
    for first in range(0, shape.vocabulary, 16_384):
        piece = matrix(min(16_384, shape.vocabulary - first), hidden).float()
        program.embed(piece, first)
        table[first : first + len(piece)] = piece.to(shape.dtype)
    yield "model.embed_tokens.weight", table

    # The first layer's inputs are embeddings, the others' a hidden state that the bans dominate: its random part is small.
    enlarge = math.sqrt(2.0 + (shape.layout.slots + 1) * BAN**2)
    quiet = 0.03 / math.sqrt(hidden)  # all sublayers of the full size together add about as much as the embedding has
    for layer in range(shape.layers):
        q = matrix(shape.heads * shape.head_dim, hidden)
        k = matrix(shape.kv_heads * shape.head_dim, hidden)
        v = matrix(shape.kv_heads * shape.head_dim, hidden)
        gate, up = matrix(shape.mlp, hidden), matrix(shape.mlp, hidden)
        o = matrix(hidden, shape.heads * shape.head_dim, quiet)
        down = matrix(hidden, shape.mlp, quiet)
        for weight in (q, k, v, gate, up):
            weight[:, :marks] = 0
        for weight in (o, down):
            weight[:marks] = 0
        if layer == 0:
            program.attend(q, k, v, o)
            program.transition(gate, up, down)
        prefix = f"model.layers.{layer}."
        yield prefix + "self_attn.q_proj.weight", q
        yield prefix + "self_attn.k_proj.weight", k
        yield prefix + "self_attn.v_proj.weight", v
        yield prefix + "self_attn.o_proj.weight", o
        yield prefix + "mlp.gate_proj.weight", gate
        yield prefix + "mlp.up_proj.weight", up
        yield prefix + "mlp.down_proj.weight", down
        norm = torch.full((hidden,), 1.0 if layer == 0 else enlarge, dtype=shape.dtype)
        yield prefix + "input_layernorm.weight", norm
        yield prefix + "post_attention_layernorm.weight", norm.clone()
    norm = torch.empty(hidden, dtype=shape.dtype)
    program.last_norm(norm)
    yield "model.norm.weight", norm


def _write_weights(folder: Path, shape: Shape, program: _Program, seed: int, device: str) -> None:
    """Shards of at most about 1 GB, written as they are made, and the index that names them."""
    index: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    total = held = number = 0

    def flush() -> None:
        nonlocal held, number
        number += 1
        name = f"model-{number:05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, name))
        shard.clear()
        held = 0

    for name, weight in _tensors(shape, program, seed, device):
        shard[name] = weight.cpu().contiguous()
        held += weight.nbytes
        total += weight.nbytes
        if held > 900_000_000:
            flush()
    if shard:
        flush()
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "bos_token_id": shape.layout.prompt_before[-1],
        "eos_token_id": shape.layout.end_of_speech,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": ROPE_THETA,
        "rope_scaling": ROPE_SCALING,
        "tie_word_embeddings": True,
        "vocab_size": shape.vocabulary,
        "torch_dtype": str(shape.dtype).removeprefix("torch."),
    }


def _speech(shape: Shape) -> dict[str, Any]:
    layout = shape.layout
    return {
        "name": NAME,
        "tokens": dataclasses.asdict(layout),
        "voices": {voice: {} for voice in ORPHEUS_VOICES},
        "tags": list(ORPHEUS_TAGS),
    }


def _tokenizer(shape: Shape) -> Tokenizer:
    """One id a character of ASCII; the special ids and audio codes are there by name, and no text becomes one of them."""
    layout = shape.layout
    if layout == NOISE_LAYOUT:
        names = (*SPECIAL, *CHARACTERS)
        vocabulary = {name: index for index, name in enumerate(names)}
    else:
        vocabulary = {name: index for index, name in enumerate(("<unk>", *CHARACTERS))}
        vocabulary |= {"<|begin_of_text|>": 128_000, "<|eot_id|>": 128_009}
        vocabulary |= {f"<custom_token_{n}>": 128_256 + n for n in range(shape.vocabulary - 128_256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=False))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
