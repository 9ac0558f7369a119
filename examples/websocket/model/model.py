"""The Truss of streamed text: words in, speech out, over one WebSocket. The protocol is orpheus_serving's orpheus_truss.py.

load        config.yaml -> the same synthesizer as the HTTP Truss's, behind the server's admission
websocket   one utterance: a JSON frame, text frames, __END__; PCM frames come back while the text is still being written
"""

import asyncio
from pathlib import Path
from typing import Any

from fastapi import WebSocket

from orpheus_serving.build import build_truss
from orpheus_serving.server.options import ServerOptions
from orpheus_serving.server.service import Service
from orpheus_serving.server.websocket.orpheus_truss import OrpheusTruss
from orpheus_serving.server.websocket.session import converse


class Model:
    def __init__(
        self, config: dict[str, Any], data_dir: Path, secrets: Any = None, trt_llm: dict[str, Any] | None = None
    ) -> None:
        self._config = config
        self._data = Path(data_dir)
        self._secrets = secrets
        self._trt_llm = trt_llm

    def load(self) -> None:
        options = ServerOptions.load((self._config.get("model_metadata") or {}).get("orpheus_server"))
        self._service = Service(build_truss(self._config, self._data, self._secrets, self._trt_llm), options)
        asyncio.run(self._service.start())

    async def websocket(self, ws: WebSocket) -> None:
        await converse(ws, self._service, OrpheusTruss)
