"""The harness around the genuine Truss server, with a stand-in Truss: build, serve, fail, stop."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from orpheus_serving.truss_local import PREDICT, LocalTrussServer, TrussError, build_app, predict

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STANDIN = HERE / "fixtures" / "standin"
EXTENSION = HERE / "fixtures" / "scripted_extension.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTrussServer]:
    app = build_app(STANDIN, tmp_path_factory.mktemp("local"), runtime={"predict_concurrency": 8})
    with LocalTrussServer(app) as server:
        yield server


def ask(server: LocalTrussServer) -> dict[str, Any]:
    return httpx.post(server.url + PREDICT, json={}).raise_for_status().json()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # one that nobody has reaped yet is dead all the same


def test_a_local_app_has_no_injected_engine(server: LocalTrussServer) -> None:
    said = ask(server)
    assert said["engine"] == "NoneType"
    assert said["settings"] == {"fail_to_load": False, "greeting": "hello"}
    assert said["concurrency"] == 8


def test_an_app_with_an_extension_and_overrides(tmp_path: Path) -> None:
    app = build_app(
        STANDIN,
        tmp_path,
        local=False,
        extension=EXTENSION,
        settings={"greeting": "good evening"},
        runtime={"predict_concurrency": 3},
    )
    environment = {"SCRIPTED_ENGINE_SOCKET": "unused", "SCRIPTED_ENGINE_CODES": "16"}
    with LocalTrussServer(app, environment=environment) as server:
        said = ask(server)
        pids = [said["child"], server._process.pid]
        assert all(alive(pid) for pid in pids)
    assert said["engine"] == "Engine"
    assert said["settings"]["greeting"] == "good evening"
    assert said["concurrency"] == 3, "Truss' own 512 won"
    assert not any(alive(pid) for pid in pids), "a process outlived the server"


def test_a_model_that_does_not_load_is_told_with_the_log(tmp_path: Path) -> None:
    app = build_app(STANDIN, tmp_path, settings={"fail_to_load": True})
    with pytest.raises(TrussError, match=r"(?s)did not load.*told to fail"):
        LocalTrussServer(app).start()


def test_predict_writes_what_arrives(server: LocalTrussServer) -> None:
    out = io.BytesIO()
    assert predict(server.url, {"what": "bytes"}, out) == 3000
    assert out.getvalue() == bytes(3000)


def test_predict_gives_the_reason_of_a_refusal(server: LocalTrussServer) -> None:
    with pytest.raises(TrussError, match="422: what: refused"):
        predict(server.url + PREDICT, {"what": "refuse"}, io.BytesIO())


def test_predict_notices_a_stream_that_breaks_off(server: LocalTrussServer) -> None:
    out = io.BytesIO()
    with pytest.raises(TrussError, match="broke"):
        predict(server.url, {"what": "break"}, out)


def test_predict_serves_a_folder_for_one_call(server: LocalTrussServer) -> None:
    out = io.BytesIO()
    predict(STANDIN, {}, out)
    assert json.loads(out.getvalue())["child"] != ask(server)["child"]


@pytest.mark.parametrize("target", ["https://example.invalid/x", "ftp://x", "http://"])
def test_predict_refuses_what_is_no_local_url(target: str) -> None:
    with pytest.raises(TrussError, match="give an http"):
        predict(target, {}, io.BytesIO())


def test_a_folder_without_a_truss_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrussError, match="is no Truss"):
        build_app(tmp_path, tmp_path / "out")


def test_a_truss_without_a_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("python_version: py311\n")
    with pytest.raises(TrussError, match="no model/"):
        build_app(tmp_path, tmp_path / "out")


def test_what_truss_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "config.yaml").write_text("python_version: py27\n")
    with pytest.raises(TrussError, match="python_version"):
        build_app(tmp_path, tmp_path / "out")


def test_an_extension_needs_the_section_that_it_stands_in_for(tmp_path: Path) -> None:
    with pytest.raises(TrussError, match="local=True"):
        build_app(STANDIN, tmp_path, extension=EXTENSION)


def test_what_a_push_takes() -> None:
    from truss.util.path import collect_files, is_ignored, load_trussignore_patterns

    patterns = load_trussignore_patterns(ROOT / ".truss_ignore")
    shipped = [file.relative_to(ROOT) for file in collect_files(ROOT, patterns)]
    tops = {file.parts[0] for file in shipped}
    assert tops <= {"config.yaml", "model", "packages", "data", "README.md", "LICENSE", ".truss_ignore"}
    package = [f.relative_to(ROOT) for f in (ROOT / "packages" / "orpheus_serving").rglob("*.py")]
    assert set(package) <= set(shipped)
    assert is_ignored(Path("data/demo_voice/model.safetensors"), patterns)
    assert not is_ignored(Path("data/voices.json"), patterns)


def test_stop_may_be_called_twice_and_before_start(tmp_path: Path) -> None:
    server = LocalTrussServer(tmp_path)
    server.stop()
    server.stop()
    assert os.listdir(tmp_path) == []


def test_ending_truss_serve_ends_its_server(noise_folder: Path) -> None:
    """SIGTERM, as a supervisor sends it, to the command in the repository's own folder. Its option wins over the environment."""
    command = [sys.executable, "-m", "orpheus_serving.cli", "truss", "serve", str(ROOT), "--port", "0"]
    command += ["--checkpoint", str(noise_folder)]
    environment = os.environ | {"ORPHEUS_CHECKPOINT": "/from/the/environment"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as serving:
        assert serving.stderr is not None
        ready = next((line for line in serving.stderr if line.startswith("ready: POST ")), "")
        url = urlsplit(ready.split()[2])
        socket.create_connection((url.hostname or "", url.port or 0)).close()
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((url.hostname or "", url.port or 0))
