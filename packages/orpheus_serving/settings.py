"""Every knob, once: from options of a command, from `ORPHEUS_*` environment variables, or from `model_metadata.orpheus` in
config.yaml, in that order of precedence. Nothing else in the package reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from .errors import OrpheusServingError


class SettingsError(OrpheusServingError):
    """A setting has a name or value that does not exist."""


class Settings(BaseSettings):
    """Keyword arguments win over the environment, the environment over defaults."""

    model_config = SettingsConfigDict(env_prefix="ORPHEUS_", extra="forbid", protected_namespaces=())

    checkpoint: str | None = None
    "Folder or hub repository of the language model. Default: the demo voice if it is there, else random weights (noise)."
    checkpoint_revision: str | None = None
    "Commit of a hub checkpoint."
    codec: str | None = None
    "SNAC folder or hub repository. Default: the checkpoint's own `codec/`, else hubertsiuzdak/snac_24khz."
    codec_revision: str | None = None
    "Commit of a hub codec."
    voice: str | None = None
    "Voice of requests that name none. Default: the checkpoint's first."
    device: Literal["auto", "cpu", "cuda"] = "auto"
    "Where the embedded engine and the codec run."
    engine: Literal["auto", "embedded", "cuda", "vllm", "tensorrt_llm"] = "auto"
    "What runs the language model. Default: cuda where there is a GPU with FP8 (Ada, Hopper, newer), else embedded."
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    "Precision of the embedded engine's weights. Default: int8 on a CPU (three times as fast there), bfloat16 on a GPU."
    max_streams: Annotated[int, Field(ge=1, le=1024)] = 4
    "Requests decoded at once; others wait. Default: 4, what two CPU cores keep up with; 512 for engines other than embedded."
    codec_streams: Annotated[int, Field(ge=1, le=4096)] | None = None
    "Slots of the codec where the engine is injected. Default: 16 on a CPU, 512 on a GPU."
    max_length: Annotated[int, Field(ge=64, le=131072)] = 4096
    "Tokens of the prompt and audio of one chunk in the embedded engine: 4,096 are about 48 s."
    constrained: bool = True
    "Embedded engine: draw only from the slot that can follow, and end of speech between frames."
    early_audio: bool = False
    "Let sound start a frame sooner, with a provisional signal over the first half second (see codec/batcher.py)."
    compile_codec: bool | None = None
    "torch.compile for the codec. Default: on a GPU, where it makes it nearly three times as fast; it adds a minute to the start."
    max_chunk_size: Annotated[int, Field(ge=20, le=500)] = 280
    "Characters that are spoken in one go where the request does not say."
    max_text: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    "Characters of one request."
    threads: Annotated[int, Field(ge=1, le=256)] | None = None
    "Threads of one torch operation on a CPU. Default: 1, which left most for streams side by side where it was measured."

    @classmethod
    def load(cls, section: Mapping[str, Any] | None = None, over: Mapping[str, Any] | None = None) -> Settings:
        """Settings from a section of config.yaml, under the environment; `over` is over both. Raises SettingsError."""
        section = {k: v for k, v in (section or {}).items() if f"ORPHEUS_{k.upper()}" not in os.environ}
        try:
            return cls(**{**section, **(over or {})})
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            known = ", ".join(cls.model_fields)
            if first["type"] == "extra_forbidden":
                raise SettingsError(f"settings: there is no {name!r}; known: {known}") from error
            raise SettingsError(f"settings: {name}: {first['msg']}") from error
