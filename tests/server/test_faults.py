"""Clients that misbehave, and an engine that does: whatever they do, nothing is left behind and nobody else hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live import PATIENCE, SLOTS, LiveServer, noise_script, serving
from test_grpc import asked, beside
from test_ws_session import TELL
from websockets.sync.client import connect

from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.request import SpeechRequest
from orpheus_serving.server.answer import SpeechAnswer
from orpheus_serving.server.grpc.riva_tts_pb2_grpc import RivaSpeechSynthesisStub

BODY = {"input": "Hello there.", "response_format": "pcm", "seed": 1}
LONG = {"input": "One short sentence here. " * 100, "max_chunk_size": 40, "response_format": "pcm", "seed": 3}
LONGEST_STOP = 0.2  # seconds from a client's leaving to the engine's rest: a promise of the project
POISON = 666  # a seed at which the engine of some tests fails midway


@contextlib.contextmanager
def connected(
    live: LiveServer, body: dict[str, Any], window: int | None = None, path: str = "/v1/audio/speech"
) -> Iterator[socket.socket]:
    """A raw connection on which a request has been sent, with a receive buffer of `window` bytes."""
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    with socket.socket() as connection:
        if window is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", live.port))
        connection.sendall(head.encode() + raw)
        yield connection


def reset(connection: socket.socket) -> None:
    """Let the close be a RST, as of a machine that has crashed, rather than an orderly FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def speak(client: httpx.AsyncClient, body: dict[str, Any] = BODY) -> httpx.Response:
    return await client.post("/v1/audio/speech", json=body)


def client(live: LiveServer, connections: int = 250) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=live.url, timeout=PATIENCE, limits=limits)


async def test_clients_that_leave_at_random_points(noise_folder: Path) -> None:
    """20 of them, before, while and after they get sound, beside others who stay."""
    draw = random.Random(1)

    def leave_somewhere() -> None:
        with connected(live, LONG | {"response_format": draw.choice(["pcm", "mp3", "opus", "wav"])}) as connection:
            left = draw.choice([0, 1, 100, 5_000, 50_000, 200_000])
            while left > 0 and (got := connection.recv(min(left, 65536))):
                left -= len(got)
            if draw.random() < 0.5:
                reset(connection)

    with serving(noise_folder, frames=20, max_active=8, max_queued=100) as live:
        async with client(live) as others:
            alone = (await speak(others)).content
            leaving = [asyncio.to_thread(leave_somewhere) for _ in range(20)]
            staying = [speak(others) for _ in range(10)]
            answers = await asyncio.gather(*staying, *leaving)
            assert {answer.content for answer in answers[:10]} == {alone}
            live.settle()
            assert (await speak(others)).content == alone
        live.settle()
        assert len(live.call(lambda: list(live.engine.started))) == len(live.call(lambda: list(live.engine.closed)))


async def test_clients_of_websockets_and_grpc_that_leave_at_random_points(noise_folder: Path) -> None:
    """The same for every other protocol: 4 clients of each leave, in whatever way, beside others who stay."""
    draw = random.Random(2)

    def leave_socket(path: str) -> None:
        with connect(live.ws_url + path, max_size=None, close_timeout=1) as ws:
            for frame in TELL[path][: draw.choice([0, 1, 2])]:
                ws.send(frame)
            with contextlib.suppress(TimeoutError):
                for _ in range(draw.choice([0, 1, 3, 20])):
                    ws.recv(0.2)
            if draw.random() < 0.5:
                ws.socket.shutdown(socket.SHUT_RDWR)  # without a close frame

    def leave_call() -> None:
        with grpc.insecure_channel(f"127.0.0.1:{riva.server.port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = RivaSpeechSynthesisStub(channel).SynthesizeOnline(iter([asked("A long story. " * 50)]), timeout=PATIENCE)
            for _ in range(draw.choice([0, 1, 3, 20])):
                next(call)
            if draw.random() < 0.5:
                call.cancel()

    with serving(noise_folder, frames=20, max_active=12, max_queued=100) as live, beside(live) as riva:
        async with client(live) as others:
            alone = (await speak(others)).content
            leaving = [asyncio.to_thread(leave_socket, path) for path in TELL for _ in range(4)]
            leaving += [asyncio.to_thread(leave_call) for _ in range(4)]
            answers = await asyncio.gather(*(speak(others) for _ in range(10)), *leaving)
            assert {answer.content for answer in answers[:10]} == {alone}
            await asyncio.to_thread(live.settle)
            assert (await speak(others)).content == alone
        assert len(live.call(lambda: list(live.engine.started))) == len(live.call(lambda: list(live.engine.closed)))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/audio/speech", {"response_format": "pcm"}),
        ("/v1/audio/speech", {"response_format": "mp3", "speed": 1.5}),
        ("/v1/audio/speech", {"stream_format": "sse"}),
        ("/v1/models/model:predict", {}),
    ],
    ids=["pcm", "mp3", "sse", "truss"],
)
def test_leaving_stops_generation(noise_folder: Path, path: str, fields: dict[str, Any]) -> None:
    """With an orderly end and without one, before the first sound and after it."""
    with serving(noise_folder, frames=300, engine={"paced": True}) as live:
        for sounds, abruptly in ((False, False), (False, True), (True, False), (True, True)):
            with connected(live, {"prompt": "Hello there."} | fields, path=path) as connection:
                live.until(lambda: live.engine.active, "the engine works")
                if sounds:
                    live.call(live.engine.advance, 20)
                    assert b" 200 " in connection.recv(64)
                if abruptly:
                    reset(connection)
                connection.close()
                left = time.monotonic()
                live.until(lambda: not live.engine.active and live.codec.free_slots == SLOTS, "everything is free")
                assert time.monotonic() - left < LONGEST_STOP
            live.settle()
        assert 'outcome="cancelled"' in live.call(live.service.metrics.render).decode()


def test_connections_notice_that_their_peer_is_gone_without_a_word(noise_folder: Path) -> None:
    """A machine that vanishes sends nothing, not even an end. The kernel finds out, and small pieces do not wait for others."""
    with serving(noise_folder, stall_timeout=7) as live, socket.create_connection(("127.0.0.1", live.port)) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(4096)
        assert live.socket_option(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert live.socket_option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 14_000


async def test_half_open_sockets_cost_nobody_anything(noise_folder: Path) -> None:
    with serving(noise_folder, max_active=2) as live, contextlib.ExitStack() as open_ones:
        for part in (b"", b"POST /v1/audio/", b"POST /v1/audio/speech HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"):
            for _ in range(10):
                half = open_ones.enter_context(socket.create_connection(("127.0.0.1", live.port)))
                half.sendall(part)
        async with client(live) as others:
            assert {(await speak(others)).status_code for _ in range(3)} == {200}
        live.settle()


async def test_a_reader_that_stands_still_holds_little_and_is_let_go(noise_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a fraction of its 100 chunks generated, then nothing until it reads; past `stall_timeout` its place is free."""
    monkeypatch.setattr("orpheus_serving.server.serve.SEND_BUFFER", 4096)  # soon full, long before the kernel gives up
    with serving(noise_folder, frames=40, max_active=1, stall_timeout=1.0) as live:
        with connected(live, LONG, window=4096) as connection:
            assert b" 200 " in connection.recv(64)
            live.settle()
            assert len(live.call(lambda: list(live.engine.started))) < 50
            # The kernel lets go of the connection too, and uvicorn of what waited to be sent on it.
            live.until(lambda: not live.connections, "the connection is gone")
        async with client(live) as others:
            assert (await speak(others)).status_code == 200
            metrics = (await others.get("/metrics")).text
        assert 'orpheus_requests_total{outcome="stalled",protocol="openai"} 1.0' in metrics
        live.settle()


def test_a_client_that_does_not_take_the_end_is_let_go(noise_folder: Path) -> None:
    with serving(noise_folder, stall_timeout=0.2) as live:

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                await asyncio.Event().wait()

        request = SpeechRequest.parse({"prompt": "Hello there, friend."})
        live.run(SpeechAnswer(live.service, request, protocol="openai", response_format="pcm")({"type": "http"}, receive, send))
        live.settle()
        assert 'outcome="stalled",protocol="openai"} 1.0' in live.call(live.service.metrics.render).decode()


async def test_a_slow_reader_gets_everything(noise_folder: Path) -> None:
    with serving(noise_folder, frames=10, max_active=1) as live:
        body = LONG | {"input": "One short sentence here. " * 10}
        async with client(live) as others:
            wanted = (await speak(others, body)).content
        with connected(live, body, window=4096) as connection:
            heard = b""
            while not heard.endswith(b"\r\n0\r\n\r\n") and (got := connection.recv(1000)):
                heard += got
        assert unchunked(heard.split(b"\r\n\r\n", 1)[1]) == wanted
        live.settle()


def unchunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        out, body = out + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return out


async def test_200_connections_against_a_limit_of_8(noise_folder: Path) -> None:
    """8 speak; 192 are told at once to come later, while the 8 have not said anything yet. Then the 8 say what they say alone."""
    with serving(noise_folder, engine={"paced": True}, max_active=8, max_queued=0) as live:
        async with client(live) as many:
            live.call(live.engine.advance, 7)
            alone = (await speak(many)).content
            asked = [asyncio.create_task(speak(many)) for _ in range(200)]
            refused: list[httpx.Response] = []
            for answer in asyncio.as_completed(asked):
                refused.append(await answer)
                if len(refused) == 192:
                    break
            assert {answer.status_code for answer in refused} == {429}
            assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
            assert live.call(lambda: live.service.active) == 8
            live.call(live.engine.advance, 8 * 7)
            spoken = [answer for answer in await asyncio.gather(*asked) if answer.status_code == 200]
            assert [answer.content for answer in spoken] == [alone] * 8
        live.settle()


def test_nothing_of_a_request_is_kept(noise_folder: Path) -> None:
    """After 200 requests in turn and 64 at once there are as many tasks and objects as before."""
    formats = ("pcm", "mp3", "opus", "aac", "flac", "wav")

    def bodies(count: int) -> list[dict[str, Any]]:
        kinds = [{"response_format": name} for name in formats] + [{"stream_format": "sse"}, {"speed": 1.5}, {"voice": "nobody"}]
        return [BODY | kinds[number % len(kinds)] for number in range(count)]

    async def at_once(count: int) -> list[int]:
        async with client(live) as many:
            return [answer.status_code for answer in await asyncio.gather(*(speak(many, body) for body in bodies(count)))]

    def in_turn(count: int) -> None:
        with httpx.Client(base_url=live.url, timeout=PATIENCE) as one:
            for number, body in enumerate(bodies(count)):
                if number % 10:
                    assert one.post("/v1/audio/speech", json=body).status_code in (200, 400)
                    continue
                with connect(f"{live.ws_url}/tts/websocket") as ws:
                    ws.send(json.dumps({"context_id": "a", "transcript": "Hello there."}))
                    while not json.loads(ws.recv(PATIENCE))["done"]:
                        pass

    def count() -> tuple[int, int]:
        live.settle()
        live.until(lambda: not live.connections, "every connection is closed")
        gc.collect()
        return live.call(lambda: len(asyncio.all_tasks())), len(gc.get_objects())

    with serving(noise_folder, frames=2, max_active=8, max_queued=64) as live:
        in_turn(20)
        assert set(asyncio.run(at_once(64))) == {200, 400}
        tasks, objects = count()
        in_turn(200)
        assert set(asyncio.run(at_once(64))) == {200, 400}
        tasks_after, objects_after = count()
    assert tasks_after == tasks
    assert objects_after - objects < 2 * 264, "two objects a request and more: something keeps them"


async def test_an_engine_that_fails_for_one_fails_for_one(noise_folder: Path) -> None:
    checkpoint = Checkpoint(noise_folder)
    healthy = noise_script(checkpoint, 20)

    def script(prompt: Any, sampling: Any, request_id: str) -> Iterator[int]:
        for count, token in enumerate(healthy(prompt, sampling, request_id)):
            if sampling.seed == POISON and count == 70:
                raise RuntimeError("out of memory")
            yield token

    with serving(noise_folder, engine={"script": script}, max_active=16) as live:
        async with client(live) as everybody:
            alone = (await speak(everybody)).content
            bodies = [BODY, BODY | {"seed": POISON}] * 8
            answers = await asyncio.gather(*(speak(everybody, body) for body in bodies), return_exceptions=True)
            for body, answer in zip(bodies, answers, strict=True):
                if body["seed"] == POISON:  # before its first sound, or in the middle of it
                    assert isinstance(answer, httpx.RemoteProtocolError) or answer.status_code == 502
                else:
                    assert isinstance(answer, httpx.Response)
                    assert answer.content == alone
            live.settle()
            assert (await speak(everybody)).content == alone
        live.settle()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("input", "prompt", "voice", "response_format", "speed", "seed", "temperature", "max_tokens", "stream_format")


@settings(max_examples=60, deadline=None)
@given(body=st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["Hello.", "noise", "mp3", "sse", 1, 1.0])))
def test_no_json_is_an_error_of_the_server(shared_server: LiveServer, body: dict[str, Any]) -> None:
    for path in ("/v1/audio/speech", "/v1/models/model:predict"):
        raw = json.dumps(body).encode("utf-8", "surrogatepass")
        response = httpx.post(f"{shared_server.url}{path}", content=raw, headers={"content-type": "application/json"})
        assert response.status_code in (200, 400, 422), response.text
        shared_server.settle()


@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=200))
def test_no_bytes_are_an_error_of_the_server(shared_server: LiveServer, raw: bytes) -> None:
    for path in ("/v1/audio/speech", "/v1/models/model:predict"):
        response = httpx.post(f"{shared_server.url}{path}", content=raw, headers={"content-type": "application/json"})
        assert response.status_code in (400, 422)


@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=100), head=st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"POST /v1/audio/speech HTTP/1.1\r\n"]))
def test_no_bytes_on_the_wire_stop_the_server(shared_server: LiveServer, head: bytes, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared_server.port), PATIENCE) as connection:
        connection.sendall(head + raw + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert b" 50" not in connection.recv(4096).split(b"\r\n")[0]
    assert httpx.get(f"{shared_server.url}/health").status_code == 200
