"""`orpheus-serving serve`: one process, HTTP and WebSocket on one port, gRPC on another where it is asked for.

options, settings -> Service -> listen -> load behind the probes -> serve
SIGTERM, SIGINT   -> readiness 503, new requests 503 -> running streams finish (drain_timeout) -> close, free, exit 0
a second signal   -> exit now, streams or not, loaded or not
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator

import uvicorn

from ..build import build
from ..errors import OrpheusServingError
from ..settings import Settings
from .app import create_app
from .logs import configure_logging
from .options import ServerOptions
from .service import Service
from .tracing import open_tracer

log = logging.getLogger(__name__)

SPARE_FILES = 200  # for the model, the log and whatever else is open
SEND_BUFFER = 128 * 1024  # bytes, which Linux doubles; 5 s of PCM
PING_INTERVAL = 20.0  # seconds between two pings of a WebSocket
LAST_BYTES = 5  # seconds for what has been spoken to reach its clients, after the last stream has ended


class ServeError(OrpheusServingError):
    """The server could not start, or the model could not be loaded."""


def serve(options: ServerOptions, settings: Settings) -> None:
    """Serve until a signal comes. Raises SettingsError, CheckpointError, CodecError or ServeError where it cannot start."""
    options.check_access()
    configure_logging()
    if unknown := options.unknown():
        log.warning("these settings are not known and change nothing", extra={"fields": {"variables": unknown}})
    with listen(options) as listener:
        run(Service(build(settings), options, open_tracer(options.otel_endpoint)), listener)


def run(service: Service, listener: socket.socket) -> None:
    """Load and serve on an event loop of its own until a signal comes. Raises ServeError."""
    allow_files(service.options.max_connections + SPARE_FILES)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(service, listener))


def allow_files(count: int) -> None:
    """Raise this process's limit on open files, each connection being one, to `count`, as far as it may. Often it is 1,024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def listen(options: ServerOptions) -> Iterator[socket.socket]:
    """The socket of the HTTP port, taken before anything slow happens. Raises ServeError."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family, backlog=2048)
    except OSError as error:
        raise ServeError(f"cannot listen on {options.host}:{options.port}: {error.strerror}") from error
    with listener:
        # asyncio sets it only on sockets that say that they are TCP, which these do not; without it a small piece may wait 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Bounded, what waits for a slow reader is seen to wait; otherwise the kernel takes minutes of audio before it says so.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        # Ends connections whose peer is gone or reads nothing, with what waits for it. A stream notices a stall before that.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(options.stall_timeout * 2000))
        yield listener


def http_server(service: Service) -> uvicorn.Server:
    """uvicorn around the application; it leaves signals to us."""
    config = uvicorn.Config(
        create_app(service),
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=service.options.max_connections,
        timeout_keep_alive=75,  # longer than the idle time of common gateways, so that they close first
        timeout_graceful_shutdown=LAST_BYTES,
        ws_max_size=service.options.max_body,
        # A ping stands in line behind the audio: who plays while he reads answers it when he has heard that, which may take
        # minutes and is no reason to hang up. Pings are for finding out that a peer is gone: then TCP ends the connection.
        ws_ping_interval=PING_INTERVAL,
        ws_ping_timeout=None,
        ws_per_message_deflate=False,  # PCM does not get smaller
    )
    return _Server(config)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(service: Service, listener: socket.socket) -> None:
    options = service.options
    leave, at_once = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if not leave.is_set():
            leave.set()
        elif service.loaded.is_set():
            at_once.set()
        else:
            os._exit(1)  # the thread that loads can be stopped in no other way

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)

    grpc = None
    if options.grpc_port is not None:
        from .grpc import start_grpc

        try:
            grpc = await start_grpc(service, options.host, options.grpc_port)
        except OSError as error:
            raise ServeError(str(error)) from error
        log.info("listening for gRPC", extra={"fields": {"host": options.host, "port": grpc.port}})
    began = time.monotonic()
    server = http_server(service)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    host, port = listener.getsockname()[:2]
    log.info("listening", extra={"fields": {"host": host, "port": port, "keys": service.keys.required}})

    await _first(serving, leave.wait(), service.loaded.wait())
    failed = service.state == "failed"
    if service.ready:
        # A full garbage collection would look at all that has been loaded, which takes 0.2 s: a gap in everybody's audio.
        gc.collect()
        gc.freeze()
        checkpoint = service.synthesizer.checkpoint
        fields = {"model": checkpoint.name, "voices": checkpoint.voices, "places": service.max_active}
        log.info("ready", extra={"fields": fields | {"seconds": round(time.monotonic() - began, 1)}})
        await _first(serving, leave.wait())
    if not service.loaded.is_set():
        log.warning("the model is still being loaded; the process ends when that is over, or at a second signal")
    if leave.is_set():
        log.info("draining", extra={"fields": {"active": service.active, "queued": service.queued}})
        await _first(asyncio.create_task(service.drain()), at_once.wait())
        log.info("drained" if not service.active else "leaving streams behind", extra={"fields": {"active": service.active}})
    if grpc is not None:
        await grpc.stop(0 if service.active else LAST_BYTES)
    server.should_exit = True
    server.force_exit = at_once.is_set()
    await serving
    if failed:
        raise ServeError("the model could not be loaded; the log above says why")


async def _first(task: asyncio.Task[object], *others: object) -> None:
    """Wait until the task or one of the coroutines is done; the coroutines are cancelled then."""
    rest = [asyncio.ensure_future(other) for other in others]  # type: ignore[call-overload]
    await asyncio.wait([task, *rest], return_when=asyncio.FIRST_COMPLETED)
    for other in rest:
        other.cancel()
