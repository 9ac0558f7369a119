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

from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..errors import OrpheusServingError
from .auth import KeyMiddleware, refuse
from .logs import RequestMiddleware
from .refusals import openai_refusal
from .service import Service

log = logging.getLogger(__name__)

UPGRADE = {"Upgrade": "websocket", "Connection": "upgrade"}

PROTOCOLS = (
    "truss_routes",
    "openai",
    "playground",
    "websocket.orpheus_truss",
    "websocket.together",
    "websocket.cartesia",
    "websocket.elevenlabs",
)


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
        version=__version__,
        summary="Text to streamed speech with Orpheus-style speech language models.",
        lifespan=lifespan,
    )
    app.include_router(_operations(service))
    for name in PROTOCOLS:
        app.include_router(importlib.import_module(f".{name}", __package__).router(service))
    _answer_plain_requests(app)
    for error in (StarletteHTTPException, RequestValidationError, OrpheusServingError, Exception):
        app.add_exception_handler(error, _refuse)
    app.add_middleware(BodyLimit, most=service.options.max_body, timeout=service.options.stall_timeout)
    app.add_middleware(KeyMiddleware, keys=service.keys)
    app.add_middleware(RequestMiddleware)
    return app


def _answer_plain_requests(app: FastAPI) -> None:
    """Say so where a WebSocket is asked for without an upgrade: often a proxy on the way has taken it out."""

    async def upgrade(request: Request) -> Response:
        raise HTTPException(426, "this path is a WebSocket, and the request has no upgrade; a proxy must pass it on", UPGRADE)

    for path in {route.path for route in app.routes if isinstance(route, WebSocketRoute)}:
        app.add_route(path, upgrade, methods=["GET"], include_in_schema=False)


async def _refuse(request: Request, error: Exception) -> Response:
    return openai_refusal(error)


async def _load(service: Service) -> None:
    try:
        await service.start()
    except Exception:
        log.exception("the model could not be loaded")


def _operations(service: Service) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/health/live")
    async def live() -> JSONResponse:
        """The process answers, and a restart would not help: 503 once the model has failed."""
        failed = service.state == "failed"
        return JSONResponse({"status": "failed" if failed else "live"}, 503 if failed else 200)

    @router.get("/health")
    @router.get("/health/ready")
    async def ready() -> JSONResponse:
        """The model is loaded and new requests are taken; 503 while it loads or drains, and once it has failed."""
        status = {"status": service.state, "active": service.active, "queued": service.queued}
        return JSONResponse(status, 200 if service.ready else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


class BodyLimit:
    """Answers 413 to a body that says it is larger than `most` bytes or turns out to be, 408 to one that stops coming."""

    def __init__(self, app: ASGIApp, most: int, timeout: float) -> None:
        self._app = app
        self._most = most
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        message = f"the body is larger than {self._most} bytes, the limit of this server"
        stall = f"no byte of the body came for {self._timeout:g} s"
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._most:
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": "body_too_large"}
            await refuse(scope, receive, send, 413, {"error": error}, {"connection": "close"})
            return
        received, whole = 0, False

        async def counted() -> Message:
            nonlocal received, whole
            if whole:  # what comes now is the client's leaving
                return await receive()
            try:
                async with asyncio.timeout(self._timeout):
                    event = await receive()
            except TimeoutError:
                raise HTTPException(408, stall, {"connection": "close"}) from None
            whole = not event.get("more_body", False)
            received += len(event.get("body", b""))
            if received > self._most:
                raise HTTPException(413, message, {"connection": "close"})
            return event

        await self._app(scope, counted, send)
