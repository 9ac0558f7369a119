"""One HTTP and WebSocket application: every protocol's routes, and what stands before them.

    request id, access log -> API key -> size of the body -> route

A protocol is a module with `router(service) -> APIRouter`; to add one, add it to PROTOCOLS.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import KeyMiddleware, refuse
from .logs import RequestMiddleware
from .service import Service

log = logging.getLogger(__name__)

PROTOCOLS = ("playground", "websocket.orpheus_truss", "websocket.together", "websocket.cartesia")


def create_app(service: Service) -> FastAPI:
    """The application. Its lifespan loads the model behind the probes and frees it at the end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(_load(service), name="load")
        yield
        if not loading.done():
            loading.cancel()
        await asyncio.wait([loading])
        await service.stop()

    app = FastAPI(
        title="orpheus-serving",
        version=version("orpheus-serving"),
        summary="Text to streamed speech with Orpheus-style speech language models.",
        lifespan=lifespan,
    )
    app.include_router(_operations(service))
    for name in PROTOCOLS:
        app.include_router(importlib.import_module(f".{name}", __package__).router(service))
    app.add_middleware(BodyLimit, most=service.options.max_body)
    app.add_middleware(KeyMiddleware, keys=service.keys)
    app.add_middleware(RequestMiddleware)
    return app


async def _load(service: Service) -> None:
    try:
        await service.start()
    except Exception:
        log.exception("the model could not be loaded")


def _operations(service: Service) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/health/live")
    async def live() -> JSONResponse:
        """The process answers."""
        return JSONResponse({"status": "live"})

    @router.get("/health")
    @router.get("/health/ready")
    async def ready() -> JSONResponse:
        """The model is loaded and new requests are taken; 503 while it loads or drains."""
        status = {"status": service.state, "active": service.active, "queued": service.queued}
        return JSONResponse(status, 200 if service.ready else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


class BodyLimit:
    """Answers 413 to a body that says it is larger than `most` bytes, or turns out to be."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        message = f"the body is larger than {self._most} bytes, the limit of this server"
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._most:
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": "body_too_large"}
            await refuse(scope, receive, send, 413, {"error": error}, {"connection": "close"})
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            event = await receive()
            received += len(event.get("body", b""))
            if received > self._most:
                raise HTTPException(413, message, {"connection": "close"})
            return event

        await self._app(scope, counted, send)
