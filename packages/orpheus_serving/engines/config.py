"""What the engines have to know of a checkpoint's config.json.

The names and defaults are those of `transformers.LlamaConfig`. It is read here because importing that class takes longer
(two seconds on two cores) than loading a small model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from orpheus_serving.errors import CheckpointError

ARCHITECTURE = "LlamaForCausalLM"


class LlamaConfig(BaseModel):
    """The fields that decide the arithmetic; others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    vocab_size: PositiveInt = 32000
    hidden_size: PositiveInt = 4096
    intermediate_size: PositiveInt = 11008
    num_hidden_layers: PositiveInt = 32
    num_attention_heads: PositiveInt = 32
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    rope_parameters: dict[str, Any]
    "`rope_type`, `rope_theta` and what the type needs."
    raw: dict[str, Any] = Field(repr=False)
    "config.json as it is."

    hidden_act: Literal["silu"] = "silu"
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, raw: Any) -> Any:
        """Fill in what follows from other fields, and put the older form of the RoPE settings into the newer one."""
        values = {name: value for name, value in raw.items() if value is not None} | {"raw": raw}
        heads, hidden = values.get("num_attention_heads", 32), values.get("hidden_size", 4096)
        for name, value in (("num_attention_heads", heads), ("hidden_size", hidden)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}: it should be an integer greater than 0")
        values.setdefault("num_key_value_heads", heads)
        values.setdefault("head_dim", hidden // heads)
        name = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
        rope = values.get(name) or {}
        if not isinstance(rope, dict):
            raise ValueError(f"{name} is {rope!r}: it should be an object")
        kind = rope.get("rope_type", rope.get("type", "default"))
        theta = rope.get("rope_theta", values.get("rope_theta", 10000.0))
        return values | {"rope_parameters": rope | {"rope_type": kind, "rope_theta": theta}}


def read_config(folder: Path, *, quantised: bool = False) -> LlamaConfig:
    """The folder's configuration. Raises CheckpointError, naming the field, for what the engines cannot run.

    quantised: whether the caller can run weights that were quantised before.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder}: config.json is missing; is this a checkpoint in Hugging Face format?")
    try:
        raw = json.loads(path.read_text("utf-8"))
        if not isinstance(raw, dict):
            raise ValueError(f"it holds a {type(raw).__name__}, not an object")
    except ValueError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    found = raw.get("architectures") or []
    if ARCHITECTURE not in found:
        raise CheckpointError(
            f"{path}: architectures {found} are not supported; use a checkpoint of {ARCHITECTURE}, which every engine runs"
        )
    if raw.get("quantization_config") and not quantised:
        raise CheckpointError(f"{path}: quantization_config is set; use the unquantised checkpoint")
    try:
        return LlamaConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if not first["loc"]:  # from `_complete`
            raise CheckpointError(f"{path}: {first['ctx']['error']}") from error
        field = str(first["loc"][0])
        raise CheckpointError(f"{path}: {field} is {raw.get(field)!r}: {first['msg']}") from error
