"""The routes of a Truss: the same bodies, statuses and bytes as model/model.py gives."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import LiveServer, serving


def predict(live: LiveServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/models/model:predict", json={"prompt": "Hello there, friend.", "seed": 1} | fields)


def test_pcm_by_default_and_wav_if_asked(live_server: LiveServer) -> None:
    pcm = predict(live_server)
    assert pcm.status_code == 200
    assert pcm.headers["content-type"] == "audio/pcm; rate=24000; channels=1; bits=16; big-endian=false"
    wav = predict(live_server, response_format="wav")
    assert wav.headers["content-type"] == "audio/wav"
    assert wav.content[44:] == pcm.content
    assert struct.unpack("<I", wav.content[24:28]) == (24000,)


def test_it_says_the_same_as_the_openai_route(live_server: LiveServer) -> None:
    body = {"input": "Hello there, friend.", "seed": 1, "response_format": "pcm"}
    assert predict(live_server).content == httpx.post(f"{live_server.url}/v1/audio/speech", json=body).content


def test_the_request_id_and_the_seed_come_back(live_server: LiveServer) -> None:
    response = predict(live_server, request_id="call 7")
    assert (response.headers["x-request-id"], response.headers["x-seed"]) == ("call 7", "1")
    assert predict(live_server).headers["x-request-id"].startswith("req_")
    hostile = predict(live_server, request_id="a\r\nSet-Cookie: b=1\u2028")
    assert hostile.headers["x-request-id"] == "a??Set-Cookie: b=1?"
    assert "set-cookie" not in hostile.headers


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"voice": "nobody"}, "voice"),
        ({"response_format": "mp3"}, "response_format"),
        ({"top_p": 0}, "top_p"),
    ],
)
def test_refusals_name_the_field(live_server: LiveServer, fields: dict[str, Any], field: str) -> None:
    response = predict(live_server, **fields)
    assert response.status_code == 422
    assert response.json()["error"].startswith(f"{field}: ")


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_a_400(live_server: LiveServer, raw: bytes) -> None:
    response = httpx.post(f"{live_server.url}/v1/models/model:predict", content=raw)
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]


def test_a_failure_is_a_502_before_the_first_sound_and_a_broken_body_after_it(noise_folder: Path) -> None:
    with serving(noise_folder, engine={"fail_after": 7}) as live:
        assert predict(live).status_code == 502
        assert predict(live).json()["error"].startswith("speech failed: ")
    with serving(noise_folder, frames=20, engine={"paced": True, "fail_after": 70}) as live:
        live.call(live.engine.advance, 6)
        with httpx.stream("POST", f"{live.url}/v1/models/model:predict", json={"prompt": "Hello there."}) as response:
            assert response.status_code == 200
            live.call(live.engine.advance, 10)
            with pytest.raises(httpx.RemoteProtocolError):
                response.read()
        live.settle()


def test_readiness(live_server: LiveServer) -> None:
    response = httpx.get(f"{live_server.url}/v1/models/model")
    assert (response.status_code, response.json()) == (200, {})
