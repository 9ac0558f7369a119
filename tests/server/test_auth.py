"""API keys: who is let in, by which header, and where a server may do without them."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live import LiveServer, serving

from orpheus_serving.server.auth import Keys
from orpheus_serving.server.options import ServerOptions
from orpheus_serving.settings import SettingsError

GOOD = [
    {"Authorization": "Bearer k1"},
    {"Authorization": "bearer k2"},
    {"Authorization": "Api-Key k1"},
    {"X-API-Key": "k2"},
    {"xi-api-key": "k1"},
]
BAD = [
    {},
    {"Authorization": "Bearer k"},
    {"Authorization": "Bearer k11"},
    {"Authorization": "Bearer"},
    {"Authorization": "Basic k1"},
    {"X-API-Key": ""},
    {"X-API-Key": "K1"},
    {"Cookie": "k1"},
]


@pytest.fixture(scope="module")
def keyed(noise_folder: Path) -> Iterator[LiveServer]:
    with serving(noise_folder, api_keys=frozenset({"k1", "k2"})) as live:
        yield live


def speak(live: LiveServer, headers: dict[str, str], query: str = "") -> httpx.Response:
    return httpx.post(f"{live.url}/v1/audio/speech{query}", json={"input": "Hello."}, headers=headers)


@pytest.mark.parametrize("headers", GOOD)
def test_a_key_opens(keyed: LiveServer, headers: dict[str, str]) -> None:
    assert speak(keyed, headers).status_code == 200


@pytest.mark.parametrize("headers", BAD)
def test_anything_else_does_not(keyed: LiveServer, headers: dict[str, str]) -> None:
    response = speak(keyed, headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["x-request-id"]
    keyed.settle()


def test_a_key_in_the_query_is_for_websockets_only(keyed: LiveServer) -> None:
    assert speak(keyed, {}, "?api_key=k1").status_code == 401


@pytest.mark.parametrize(("query", "status"), [("", 401), ("?api_key=k", 401), ("?api_key=k1", 101)])
def test_a_websocket_is_refused_at_the_upgrade(keyed: LiveServer, query: str, status: int) -> None:
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    with httpx.stream("GET", f"{keyed.url}/v1/websocket{query}", headers=headers) as response:
        assert response.status_code == status


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/"])
def test_probes_and_the_page_need_no_key(keyed: LiveServer, path: str) -> None:
    assert httpx.get(f"{keyed.url}{path}").status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/openapi.json", "/health/../v1/models", "//", "/v1/models/model"])
def test_the_rest_does(keyed: LiveServer, path: str) -> None:
    assert httpx.get(f"{keyed.url}{path}").status_code == 401


def test_without_keys_everybody_is_let_in() -> None:
    assert Keys().allowed(None)
    assert Keys().allowed_headers({})
    assert not Keys().required


@given(st.text(max_size=40))
def test_no_other_text_is_a_key(text: str) -> None:
    keys = Keys(["a long key", "schlüssel"])
    expected = text.strip() in ("a long key", "schlüssel")
    assert not keys.allowed(text) or expected
    assert not keys.allowed_headers({"authorization": f"Bearer {text}"}) or expected


def test_a_server_that_others_reach_wants_keys_or_to_be_told() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.8.9.1"):
        ServerOptions(host=host).check_access()
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(SettingsError, match="ORPHEUS_SERVER_API_KEYS"):
            ServerOptions(host=host).check_access()
        ServerOptions(host=host, api_keys=frozenset({"k"})).check_access()
        ServerOptions(host=host, allow_unauthenticated=True).check_access()


def test_keys_come_from_the_environment_and_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORPHEUS_SERVER_API_KEYS", " first,second ,,")
    options = ServerOptions()
    assert options.api_keys == {"first", "second"}
    assert "first" not in repr(options)
    with pytest.raises(SettingsError, match="port"):
        ServerOptions.load({"port": 99_999})
