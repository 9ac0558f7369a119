"""A speech language model of random weights: the real file formats, the real code path, no voice.

    build_noise_lm(folder) -> config.json, model.safetensors, tokenizer.json, speech.json, README.md, ...

It exists so that everything around a model (serving, cancelling, batching, the HTTP API) runs and is tested in seconds,
before or without a download. What comes out of it is noise, and every file that can say so does.

The vocabulary is as small as the formats allow: special ids, printable ASCII, then the audio codes.
"""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models

from orpheus_serving.tokens import TokenLayout

NAME = "noise: random weights, not a voice"

# Ids of the default vocabulary. The characters follow the special ids, the audio codes follow the characters.
SPECIAL = ("<unk>", "<pad>", "<start_of_text>", "<end_of_text>", "<start_of_speech>", "<end_of_speech>")
CHARACTERS = tuple(sorted(string.digits + string.ascii_letters + string.punctuation + " "))
NOISE_LAYOUT = TokenLayout(
    first_code=len(SPECIAL) + len(CHARACTERS),
    codes_per_slot=1024,
    slots=7,
    end_of_speech=SPECIAL.index("<end_of_speech>"),
    prompt_before=(SPECIAL.index("<start_of_text>"),),
    prompt_after=(SPECIAL.index("<end_of_text>"), SPECIAL.index("<start_of_speech>")),
)

README = """# Noise

This checkpoint was filled with random numbers. It is not a voice and was never trained: whatever text it is given, it
"speaks" noise. It has the files and formats of a real checkpoint so that software can be run and tested without one.
"""


def build_noise_lm(
    folder: str | Path,
    *,
    seed: int = 0,
    layout: TokenLayout = NOISE_LAYOUT,
    voices: Sequence[str] = ("noise",),
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    mlp: int = 128,
    tied: bool = True,
    max_positions: int = 16384,
    rope_scaling: dict[str, Any] | None = None,
) -> Path:
    """Write a random Llama checkpoint in Hugging Face format, with `speech.json` beside it; returns the folder.

    The same arguments write the same weights. `layout.first_code` must lie above the tokenizer's ids (six special ones
    and printable ASCII). `head_dim` defaults to `hidden / heads`; `rope_scaling` to a `llama3` scaling
    with the factors of Llama 3.2. Raises ValueError if the layout's codes begin inside the tokenizer's ids.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _character_tokenizer()
    if layout.first_code < tokenizer.get_vocab_size():
        raise ValueError(f"layout: first_code {layout.first_code} falls among the tokenizer's {tokenizer.get_vocab_size()} ids")
    head_dim = head_dim or hidden // heads
    vocabulary = max(layout.last_code, layout.end_of_speech, *layout.prompt_before, *layout.prompt_after) + 1

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": rope_scaling
        or {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": tied,
        "vocab_size": vocabulary,
        "eos_token_id": layout.end_of_speech,
        "torch_dtype": "float32",
    }
    speech = {
        "name": NAME,
        "tokens": dataclasses.asdict(layout),
        "voices": {voice: {} for voice in voices},
        "prompt": {"with_voice": "{voice}: {text}", "without_voice": "{text}"},
        "tags": [],
        "text": "clean",
        "sampling": {},
        "languages": ["en"],
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"do_sample": True, "eos_token_id": layout.end_of_speech})
    _write_json(folder / "speech.json", speech)
    (folder / "README.md").write_text(README, encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(
        _random_weights(seed, vocabulary, hidden, layers, heads * head_dim, kv_heads * head_dim, mlp, tied),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return folder


def _random_weights(
    seed: int, vocabulary: int, hidden: int, layers: int, q_width: int, kv_width: int, mlp: int, tied: bool
) -> dict[str, torch.Tensor]:
    """Llama's weights by their Hugging Face names, scaled so that activations keep their size through the layers."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(out: int, into: int) -> torch.Tensor:
        return torch.randn(out, into, generator=generator) * into**-0.5

    weights = {"model.embed_tokens.weight": matrix(vocabulary, hidden), "model.norm.weight": torch.ones(hidden)}
    if not tied:
        weights["lm_head.weight"] = matrix(vocabulary, hidden)
    for layer in range(layers):
        shapes = {
            "self_attn.q_proj": (q_width, hidden),
            "self_attn.k_proj": (kv_width, hidden),
            "self_attn.v_proj": (kv_width, hidden),
            "self_attn.o_proj": (hidden, q_width),
            "mlp.gate_proj": (mlp, hidden),
            "mlp.up_proj": (mlp, hidden),
            "mlp.down_proj": (hidden, mlp),
        }
        for name, shape in shapes.items():
            weights[f"model.layers.{layer}.{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = 1 + 0.1 * torch.randn(hidden, generator=generator)
    return weights


def _character_tokenizer() -> Tokenizer:
    """One id a character: byte-pair encoding without any merges. Other characters become `<unk>`."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=False))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
