"""Limits on size, places, waiting and time: past each there is a clear answer at once, and nobody else hears of it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import LiveServer, serving

BODY = {"input": "Hello there.", "response_format": "pcm", "seed": 1}


def speak(live: LiveServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/audio/speech", json=BODY | fields, timeout=30)


def raw_request(length: int) -> bytes:
    """The head of a request with a body of so many bytes."""
    lines = ("POST /v1/audio/speech HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {length}", "", "")
    return "\r\n".join(lines).encode()


@contextlib.contextmanager
def speaking(live: LiveServer) -> Iterator[httpx.Response]:
    """A stream that has begun on a paced server, and goes on when the engine does."""
    live.call(live.engine.advance, 4)
    with httpx.stream("POST", f"{live.url}/v1/audio/speech", json=BODY, timeout=30) as response:
        assert response.status_code == 200
        yield response


def test_a_body_that_says_it_is_too_large_is_refused(noise_folder: Path) -> None:
    with serving(noise_folder, max_body=2000) as live:
        response = speak(live, input="a" * 3000)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
        assert speak(live).status_code == 200


def test_a_chunked_body_is_counted(noise_folder: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"input": "'
        for _ in range(100):
            yield b"a" * 1000

    with serving(noise_folder, max_body=2000) as live:
        for path in ("/v1/audio/speech", "/v1/models/model:predict"):
            with contextlib.suppress(httpx.WriteError):  # the server need not read the rest
                response = httpx.post(f"{live.url}{path}", content=chunks(), headers={"content-type": "application/json"})
                assert response.status_code == 413
        assert speak(live).status_code == 200


def test_a_body_that_stops_coming_is_given_up(noise_folder: Path) -> None:
    with serving(noise_folder, stall_timeout=0.2) as live, socket.create_connection(("127.0.0.1", live.port), 30) as half:
        half.sendall(raw_request(50) + b"{")
        assert b" 408 " in half.recv(4096).split(b"\r\n")[0]


def test_text_that_is_too_long_is_refused(noise_folder: Path) -> None:
    with serving(noise_folder, settings={"max_text": 100}) as live:
        response = speak(live, input="word " * 30)
        assert response.status_code == 400
        assert "at most 100" in response.json()["error"]["message"]


def test_past_capacity_the_answer_is_429_at_once(noise_folder: Path) -> None:
    with serving(noise_folder, frames=8, engine={"paced": True}, max_active=1, max_queued=0) as live:
        with speaking(live) as running:
            for path in ("/v1/audio/speech", "/v1/models/model:predict"):
                refused = httpx.post(f"{live.url}{path}", json=BODY | {"prompt": "Hello."})
                assert refused.status_code == 429
                assert 1 <= int(refused.headers["retry-after"]) <= 60
            live.call(live.engine.advance, 20)
            assert len(running.read()) > 4 * 2048
        live.settle()
        live.call(live.engine.advance, 20)
        assert speak(live).status_code == 200
        metrics = httpx.get(f"{live.url}/metrics").text
        assert 'orpheus_requests_total{outcome="overloaded",protocol="openai"} 1.0' in metrics


def test_who_waits_gets_the_place_that_comes_free(noise_folder: Path) -> None:
    with serving(noise_folder, frames=8, engine={"paced": True}, max_active=1, max_queued=1) as live:
        with speaking(live) as running, socket.create_connection(("127.0.0.1", live.port), 30) as waiting:
            raw = json.dumps(BODY).encode()
            waiting.sendall(raw_request(len(raw)) + raw)
            live.until(lambda: live.service.queued == 1, "one request waits")
            assert speak(live).status_code == 429
            live.call(live.engine.advance, 100)
            running.read()
            assert b" 200 " in waiting.recv(4096).split(b"\r\n")[0]
        live.settle()


def test_who_waits_too_long_is_refused_and_who_leaves_is_forgotten(noise_folder: Path) -> None:
    with serving(noise_folder, frames=8, engine={"paced": True}, max_active=1, max_queued=1, queue_timeout=0.3) as live:
        with speaking(live):
            assert speak(live).status_code == 429
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{live.url}/v1/audio/speech", json=BODY, timeout=0.1)
            live.until(lambda: not live.service.queued, "the queue is empty")
        live.settle()


def test_a_stream_has_a_time_limit(noise_folder: Path) -> None:
    with serving(noise_folder, frames=8, engine={"paced": True}, request_timeout=0.5) as live:
        assert speak(live).status_code == 502  # not a sound within its time
        live.call(live.engine.advance, 4)
        with speaking(live) as running, pytest.raises(httpx.RemoteProtocolError):
            running.read()
        live.settle()
        assert 'orpheus_requests_total{outcome="timeout",protocol="openai"} 2.0' in httpx.get(f"{live.url}/metrics").text


def test_others_hear_what_they_hear_alone_while_requests_are_refused(noise_folder: Path) -> None:
    with serving(noise_folder, max_active=2, max_queued=0) as live:
        alone = speak(live).content
        with httpx.Client() as client:
            for _ in range(3):
                answers = [client.post(f"{live.url}/v1/audio/speech", json=BODY) for _ in range(4)]
                assert {a.content for a in answers if a.status_code == 200} == {alone}
