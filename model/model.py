"""The Truss: `load` builds the pipeline from config.yaml, `predict` streams speech. The pipeline itself is in packages/.

With a `trt_llm` section the platform injects its TensorRT-LLM engine; without one the embedded engine runs. Settings are
`model_metadata.orpheus` of config.yaml, under `ORPHEUS_*` environment variables.
"""

# No `from __future__ import annotations` here: the server reads `request`'s annotation, and wants the class, not its name.
import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

from fastapi import Request
from starlette.responses import StreamingResponse

from orpheus_serving.build import build
from orpheus_serving.http_stream import speech_response
from orpheus_serving.settings import Settings


class Model:
    def __init__(
        self, config: dict[str, Any], data_dir: Path, secrets: Any = None, trt_llm: dict[str, Any] | None = None
    ) -> None:
        self._config = config
        self._data = Path(data_dir)
        self._secrets = secrets
        self._trt_llm = trt_llm

    def load(self) -> None:
        with contextlib.suppress(Exception):  # the server raises for a secret that is not set; public checkpoints need none
            os.environ.setdefault("HF_TOKEN", self._secrets["hf_access_token"])  # what huggingface-hub reads
        settings = Settings.load((self._config.get("model_metadata") or {}).get("orpheus"))
        if self._trt_llm is not None and settings.checkpoint is None:  # tokenizer and layout of what the engine was built from
            source = self._config["trt_llm"]["build"]["checkpoint_repository"]
            settings = settings.model_copy(update={"checkpoint": source["repo"], "checkpoint_revision": source.get("revision")})
        self._synthesizer = build(settings, self._data, self._trt_llm)
        asyncio.run(self._synthesizer.start())

    async def predict(self, model_input: Any, request: Request) -> StreamingResponse:
        return await speech_response(self._synthesizer, model_input, request)
