"""The gRPC port: limits, API keys, health, reflection, and a graceful end. It runs on the event loop of the HTTP application.

call -> key -> RivaService | health | reflection
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ..auth import REASON, Keys
from ..options import ServerOptions
from ..service import Service
from .riva import MAX_ANSWER, RivaService
from .riva_tts_pb2 import DESCRIPTOR
from .riva_tts_pb2_grpc import add_RivaSpeechSynthesisServicer_to_server

NAME: str = DESCRIPTOR.services_by_name["RivaSpeechSynthesis"].full_name
HEALTH: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

# Open to everybody: probes, and the list of voices, which Pipecat's client asks for without its key.
OPEN_METHODS = frozenset({f"/{HEALTH}/Check", f"/{HEALTH}/Watch", f"/{NAME}/GetRivaSynthesisConfig"})

ENVELOPE = 1_000_000  # bytes that an answer may have beside its audio: the texts in its `meta`
KEEPALIVE = 30_000  # milliseconds of silence after which a client is asked whether it is still there
KEEPALIVE_TIMEOUT = 10_000  # milliseconds for its answer
HEALTH_INTERVAL = 0.5  # seconds between two looks at the state for those who watch it


class GrpcServer:
    """A server that is running. `port` is where it listens, which matters where it was asked for 0."""

    def __init__(self, server: Any, health: _Health, port: int) -> None:
        self._server = server
        self._health = health
        self.port = port

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, give running ones `grace` seconds to finish, then cancel them; returns when all are over."""
        self._health.stopping.set()  # those who watch would otherwise be waited for
        await self._server.stop(grace)


async def start_grpc(service: Service, host: str, port: int) -> GrpcServer:
    """Serve `service` on host:port (0 takes a free port) from the running event loop. Raises OSError where that cannot be."""
    options = service.options
    server = grpc.aio.server(
        interceptors=[_KeyInterceptor(service.keys)],
        options=_channel_options(options),
        maximum_concurrent_rpcs=options.max_connections,
    )
    add_RivaSpeechSynthesisServicer_to_server(RivaService(service), server)
    health = _Health(service)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection((NAME, HEALTH, reflection.SERVICE_NAME), server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {address}: {error}") from error
    await server.start()
    return GrpcServer(server, health, bound)


def _channel_options(options: ServerOptions) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a second server on the same port is an error, not a share of the calls
        ("grpc.max_receive_message_length", options.max_body),
        ("grpc.max_send_message_length", MAX_ANSWER + ENVELOPE),
        ("grpc.keepalive_time_ms", KEEPALIVE),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIMEOUT),  # what clients may ask in their turn
    ]


class _KeyInterceptor(grpc.aio.ServerInterceptor):
    """UNAUTHENTICATED for calls without a key, before anything of their request is read."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        metadata = {name: value for name, value in details.invocation_metadata if isinstance(value, str)}
        if details.method in OPEN_METHODS or self._keys.allowed_headers(metadata):
            return await continuation(details)
        return grpc.stream_stream_rpc_method_handler(_unauthenticated)  # on the wire it fits every kind of call


async def _unauthenticated(requests: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, REASON)


class _Health(health_pb2_grpc.HealthServicer):
    """grpc.health.v1: SERVING while the service is ready, for the whole server ("") and for each of its services."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.stopping = asyncio.Event()

    def _status(self) -> Any:
        status = health_pb2.HealthCheckResponse
        return status.SERVING if self._service.ready else status.NOT_SERVING

    async def Check(self, request: Any, context: Any) -> Any:
        if request.service not in ("", NAME):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service: there is no {request.service!r} here")
        return health_pb2.HealthCheckResponse(status=self._status())

    async def Watch(self, request: Any, context: Any) -> None:
        last = None
        while not self.stopping.is_set():
            known = request.service in ("", NAME)
            status = self._status() if known else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if status != last:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                last = status
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), HEALTH_INTERVAL)
