"""The server's own OpenAPI document, and schemathesis reading it: no request that it can think of is a 5xx."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from live import LiveServer


def test_the_document_says_what_can_be_asked(live_server: LiveServer) -> None:
    document = httpx.get(f"{live_server.url}/openapi.json").json()
    paths = document["paths"]
    assert {"/v1/audio/speech", "/v1/audio/voices", "/v1/models", "/v1/models/model:predict", "/health/ready", "/metrics"} <= set(
        paths
    )
    fields = document["components"]["schemas"]["SpeechBody"]["properties"]
    assert {"input", "model", "voice", "response_format", "speed", "instructions", "stream_format", "seed"} <= set(fields)
    assert "429" in paths["/v1/audio/speech"]["post"]["responses"]


@pytest.mark.skipif(not find_spec("schemathesis"), reason="schemathesis is not installed")
def test_nothing_that_the_document_allows_or_forbids_is_an_error_of_the_server(live_server: LiveServer, tmp_path: Path) -> None:
    options = ["--checks", "not_a_server_error", "--max-examples", "40", "--seed", "1", "--no-color", "--mode", "all"]
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run", *options]
    done = subprocess.run(
        [*command, f"{live_server.url}/openapi.json"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
