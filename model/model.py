"""The Truss: `load` builds the pipeline from config.yaml, `predict` streams speech. The pipeline itself is in packages/.

With a `trt_llm` section the platform injects its TensorRT-LLM engine; without one the embedded engine runs. Settings are
`model_metadata.orpheus` of config.yaml, under `ORPHEUS_*` environment variables.
"""

# No `from __future__ import annotations` here: the server reads `request`'s annotation, and wants the class, not its name.
import asyncio
from pathlib import Path
from typing import Any

from fastapi import Request
from starlette.responses import StreamingResponse

from orpheus_serving.build import build_truss
from orpheus_serving.http_stream import speech_response


class Model:
    def __init__(
        self, config: dict[str, Any], data_dir: Path, secrets: Any = None, trt_llm: dict[str, Any] | None = None
    ) -> None:
        self._config = config
        self._data = Path(data_dir)
        self._secrets = secrets
        self._trt_llm = trt_llm

    def load(self) -> None:
        self._synthesizer = build_truss(self._config, self._data, self._secrets, self._trt_llm)
        asyncio.run(self._synthesizer.start())

    async def predict(self, model_input: Any, request: Request) -> StreamingResponse:
        return await speech_response(self._synthesizer, model_input, request)
