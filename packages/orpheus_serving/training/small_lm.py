"""The demo voice's language model: characters in, codes out; a Llama small enough for two CPU cores.

    "ava: hello." -> characters -> [START_TEXT, ..., START_SPEECH] -> Llama -> codes, 7 ids a frame -> END_OF_SPEECH

Parameter names are those of transformers' `LlamaForCausalLM`, so that a checkpoint is a state dict and nothing is
renamed. The
vocabulary is the layout of Orpheus in small: a few special ids, characters, then 7 slots x 1,024 codes.
"""

from __future__ import annotations

import json
import string
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..tokens import TokenLayout

PAD, END_OF_SPEECH, START_TEXT, START_SPEECH = range(4)
CHARACTERS = " " + string.ascii_lowercase + ".,?!'-;:"
FIRST_CHARACTER = 4
LAYOUT = TokenLayout(
    first_code=64, codes_per_slot=1024, slots=7, end_of_speech=END_OF_SPEECH, prompt_before=(START_TEXT,),
    prompt_after=(START_SPEECH,),
)  # fmt: skip
VOCABULARY = LAYOUT.last_code + 1
SAMPLING = {"temperature": 0.6, "top_p": 0.7, "repetition_penalty": 1.0}


def make_tokenizer() -> Any:
    """A `tokenizers.Tokenizer`: accents off, lower case, one id a character; characters it does not know vanish."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    vocabulary = {
        "<pad>": PAD,
        "<end_of_speech>": END_OF_SPEECH,
        "<start_text>": START_TEXT,
        "<start_speech>": START_SPEECH,
    }
    vocabulary |= {c: FIRST_CHARACTER + i for i, c in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex("[‘’ʼ]"), "'"), normalizers.Replace(Regex("[–—]"), ", "),
            normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex(r"[^ a-z.,?!'\-;:]"), ""),
        ]
    )  # fmt: skip
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return tokenizer


@dataclass(frozen=True)
class Shape:
    """20.5 M parameters as it stands."""

    hidden: int = 384
    layers: int = 10
    heads: int = 6
    mlp: int = 1024
    theta: float = 10000.0
    positions: int = 2048


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), 1e-5).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(shape.hidden, shape.hidden, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, who: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """`who` sees whom: a mask [B, 1, T, T], or where each document begins in the flattened rows [N] int32 (CUDA)."""
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, *turn), rotate(k, *turn)
        if who.ndim == 1:
            out = by_document(q, k, v, who)
        else:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=who).transpose(1, 2)
        y: torch.Tensor = self.o_proj(out.flatten(2))
        return y


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Layer(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), Mlp(shape)
        self.input_layernorm, self.post_attention_layernorm = Norm(shape.hidden), Norm(shape.hidden)
        self.dropout = dropout

    def forward(self, x: torch.Tensor, who: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + F.dropout(self.self_attn(self.input_layernorm(x), who, turn), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), self.dropout, self.training)


class Body(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)


class SmallLM(nn.Module):
    """Training form: packed rows in, loss out. `state_dict()` is LlamaForCausalLM's (tied head)."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.shape, self.dropout = shape, dropout
        self.model = Body(shape, dropout)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 / (2 * shape.layers) ** 0.5 if deep else 0.02)
        size = shape.hidden // shape.heads
        self.speed: torch.Tensor
        self.register_buffer("speed", shape.theta ** (-torch.arange(0, size, 2).float() / size), persistent=False)

    def forward(self, ids: torch.Tensor, document: torch.Tensor, position: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """ids, document, position, target [B, T] -> mean cross entropy where target >= 0, document by document."""
        dtype = torch.bfloat16 if ids.is_cuda else torch.float32
        angle = position[..., None].float() * self.speed
        angle = torch.cat([angle, angle], -1)[:, :, None]
        turn = angle.cos().to(dtype), angle.sin().to(dtype)
        who = document_starts(document) if ids.is_cuda else document_mask(document)
        with torch.autocast(ids.device.type, dtype, enabled=ids.is_cuda):
            x = F.dropout(self.model.embed_tokens(ids).to(dtype), self.dropout, self.training)
            for layer in self.model.layers:
                x = layer(x, who, turn)
            return self.loss(x, target)

    def loss(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight.to(x.dtype))
        return F.cross_entropy(logits.view(-1, VOCABULARY).float(), target.reshape(-1), ignore_index=-100)


def document_mask(document: torch.Tensor) -> torch.Tensor:
    """document [B, T] -> [B, 1, T, T]: each id sees what came before it in its own document."""
    causal = torch.ones(document.shape[1], document.shape[1], dtype=torch.bool, device=document.device).tril()
    return (document[:, None, :, None] == document[:, None, None, :]) & causal


def document_starts(document: torch.Tensor) -> torch.Tensor:
    """document [B, T] -> where each begins in the flattened rows, then B * T until the end; [B * T // 32 + 1] int32.

    A fixed size, so that nothing waits for the GPU and one compilation serves; documents have 32 ids or more on average.
    """
    first = torch.ones_like(document, dtype=torch.bool)
    first[:, 1:] = document[:, 1:] != document[:, :-1]
    index = torch.arange(document.numel(), device=document.device)
    starts = torch.where(first.flatten(), index, document.numel()).sort().values
    return F.pad(starts[: document.numel() // 32], (0, 1), value=document.numel()).int()


def by_document(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Causal attention inside each document, nothing spent on the rest of the row: [B, T, H, D] -> [B, T, H, D]. CUDA.

    This is the operator below `torch.nn.attention.varlen`, whose arguments differ between releases.
    """
    rows, length = q.shape[:2]
    flat = (t.flatten(0, 1) for t in (q, k, v))
    out: torch.Tensor = torch.ops.aten._flash_attention_forward(*flat, starts, starts, length, length, 0.0, True, False)[0]
    return out.unflatten(0, (rows, length))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def hf_config(shape: Shape) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=shape.hidden, intermediate_size=shape.mlp, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.heads, rms_norm_eps=1e-5, tie_word_embeddings=True,
        max_position_embeddings=shape.positions, rope_theta=shape.theta, bos_token_id=START_TEXT,
        eos_token_id=END_OF_SPEECH,
        pad_token_id=PAD,
    )  # fmt: skip


def to_hf(state: dict[str, torch.Tensor], shape: Shape) -> Any:
    """A `LlamaForCausalLM` with these weights, float32."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(hf_config(shape))
    missing, unexpected = model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
    if unexpected or [k for k in missing if k != "lm_head.weight"]:
        raise KeyError(f"not a SmallLM state dict: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model.eval()


def export(state: dict[str, torch.Tensor], shape: Shape, folder: Path, name: str, voices: list[str]) -> None:
    """config.json, model.safetensors (fp16), tokenizer.json and speech.json."""
    folder.mkdir(parents=True, exist_ok=True)
    to_hf(state, shape).half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    speech = {
        "name": name,
        "tokens": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(LAYOUT).items()},
        "voices": {v: {} for v in voices},
        "prompt": {"with_voice": "{voice}: {text}", "without_voice": "{text}"},
        "tags": [],
        "text": "spoken",
        "sampling": SAMPLING,
        "languages": ["en"],
    }
    (folder / "speech.json").write_text(json.dumps(speech, indent=1) + "\n", encoding="utf-8")
