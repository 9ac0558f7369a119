"""Logs as JSON lines, each with the request that it belongs to, and nothing that a user wrote.

Paths are logged without their query, where keys may be. What is spoken is logged only with `log_text` (see options.py).
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .tracing import traceparent

access = logging.getLogger("orpheus_serving.access")

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"The request that the current task serves."

# What a client may choose as the id of its request: it comes back in a header and stands in logs.
ACCEPTABLE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def ident_for(asked: str) -> str:
    """The id of a request: the one that its client chose, where that is fit for headers and logs, or a new one."""
    return asked if ACCEPTABLE.fullmatch(asked) else f"req_{secrets.token_hex(12)}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, request_id, and the `fields` of a record's `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if (current := request_id.get()) is not None:
            line["request_id"] = current
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send everything that this process logs to `stream` (standard error), as JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)  # it would log every WebSocket with its query, where keys may be
    logging.getLogger("httpx").setLevel(logging.WARNING)


class RequestMiddleware:
    """Gives every request an id (the client's X-Request-Id, or a new one), answers with it and writes the access log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        ident = ident_for(Headers(scope=scope).get("x-request-id", ""))
        scope.setdefault("state", {})["request_id"] = ident
        token = request_id.set(ident)
        parent = traceparent.set(Headers(scope=scope).get("traceparent"))
        began = time.monotonic()
        status: int | None = None
        sent = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status, sent
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                status = message.get("status", 101)
                headers = list(message.get("headers", ()))
                if all(name.lower() != b"x-request-id" for name, _ in headers):  # a Truss request may have its own
                    message = dict(message) | {"headers": [*headers, (b"x-request-id", ident.encode())]}
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
            elif message["type"] == "websocket.send":
                sent += len(message.get("bytes") or message.get("text") or "")
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            fields = {
                "method": scope.get("method", "WEBSOCKET"),
                "path": scope["path"],
                "status": status,
                "bytes": sent,
                "seconds": round(time.monotonic() - began, 4),
            }
            probe = scope["path"].startswith("/health") or scope["path"] == "/metrics"
            access.log(logging.DEBUG if probe else logging.INFO, "request", extra={"fields": fields})
            request_id.reset(token)
            traceparent.reset(parent)
