"""examples/docker_server: what the truss library makes of it, its start command run as it stands, and the library's own proxy
before it (where nginx is installed). There is no container here: /packages is the build context's, and the secret is absent.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from truss_control import PATIENCE, ROOT
from websockets.sync.client import connect

from orpheus_serving.server.grpc.riva_tts_pb2 import SynthesizeSpeechRequest
from orpheus_serving.server.grpc.riva_tts_pb2_grpc import RivaSpeechSynthesisStub
from orpheus_serving.truss_local import offline_environment

EXAMPLE = ROOT / "examples" / "docker_server"
CONFIGS = ("config.yaml", "grpc.yaml")

LIBRARY = """
import json, pathlib, sys, truss
from truss.base.truss_config import TrussConfig
folder, context = map(pathlib.Path, sys.argv[1:])
TrussConfig.from_yaml(folder / "config.yaml").validate_forbid_extra()
handle = truss.load(folder)
handle.validate()
handle.docker_build_setup(build_dir=context)
"""


@pytest.fixture(scope="module", params=CONFIGS)
def context(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context of a configuration."""
    work = tmp_path_factory.mktemp(request.param.partition(".")[0])
    folder = work / "examples" / "docker_server"
    folder.mkdir(parents=True)
    shutil.copy(EXAMPLE / request.param, folder / "config.yaml")  # as `truss push --config` does it
    shutil.copytree(ROOT / "packages", work / "packages", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-c", LIBRARY, str(folder), str(work / "context")]
    done = subprocess.run(command, capture_output=True, text=True, env=offline_environment(), check=False)
    assert done.returncode == 0, done.stderr
    return work / "context"


def is_grpc(context: Path) -> bool:
    config = yaml.safe_load((context / "config.yaml").read_text("utf-8"))
    return config["runtime"]["transport"]["kind"] == "grpc"


class Container:
    """What the image would start: the command that supervisord would run, and nginx with the library's proxy.conf."""

    def __init__(self, context: Path, work: Path, environment: dict[str, str]) -> None:
        self.ports = {name: free_port() for name in ("8000", "50051", "8080")}
        supervisor = configparser.RawConfigParser()
        supervisor.read(context / "supervisord.conf", "utf-8")
        command = supervisor["program:model-server"]["command"].replace("/packages", str(context / "packages"))
        self._command = [self._at_free_ports(part) for part in shlex.split(command)]
        self._log = (work / "server.log").open("wb")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.server = subprocess.Popen(
            self._command, cwd=work, env={**os.environ, **environment, "PATH": path}, stdout=self._log, stderr=subprocess.STDOUT
        )
        self.proxy: subprocess.Popen[bytes] | None = None
        if nginx := shutil.which("nginx"):
            proxy = self._at_free_ports((context / "proxy.conf").read_text("utf-8")).replace("/dev/shm", str(work))
            main = f"pid {work}/nginx.pid; error_log stderr; events {{}} http {{ {proxy} }}"
            (work / "nginx.conf").write_text(main, "utf-8")
            self.proxy = subprocess.Popen([nginx, "-c", str(work / "nginx.conf"), "-g", "daemon off;"], stderr=self._log)

    def _at_free_ports(self, text: str) -> str:
        for known, free in self.ports.items():
            text = text.replace(known, str(free))
        return text

    def url(self, port: str = "8000") -> str:
        return f"http://127.0.0.1:{self.ports[port]}"

    def wait_until_ready(self) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            assert self.server.poll() is None, self.log()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(self.url() + "/health/ready").status_code == 200:
                    return
            time.sleep(0.05)
        pytest.fail(f"not ready:\n{self.log()}")

    def log(self) -> str:
        return Path(self._log.name).read_text("utf-8", "replace")[-4000:]

    def stop(self) -> int:
        """As the platform ends a container; the server's exit code."""
        if self.proxy is not None:
            self.proxy.terminate()
            self.proxy.wait(PATIENCE)
        self.server.send_signal(signal.SIGTERM)
        try:
            return self.server.wait(PATIENCE)
        finally:
            self.server.kill()
            self._log.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def container(context: Path, tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]) -> Iterator[Container]:
    environment = {f"ORPHEUS_{key.upper()}": value for key, value in settings.items()}
    container = Container(context, tmp_path_factory.mktemp("container"), environment)
    try:
        container.wait_until_ready()
        yield container
    finally:
        code = container.stop()
    assert code == 0, container.log()


def test_the_image_has_the_package_and_the_base(context: Path) -> None:
    dockerfile = (context / "Dockerfile").read_text("utf-8")
    assert "FROM python:3.11-bookworm" in dockerfile
    assert "/packages" in dockerfile
    assert (context / "packages" / "orpheus_serving" / "cli.py").is_file()


def test_the_requirements_are_those_of_the_library_and_the_server() -> None:
    import tomllib

    def names(lines: list[str]) -> set[str]:
        return {line.split("#")[0].split(";")[0].strip().partition(">")[0].partition("=")[0].lower() for line in lines} - {""}

    library = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    server = (ROOT / "requirements/server.txt").read_text("utf-8").splitlines()
    for name in CONFIGS:
        config = yaml.safe_load((EXAMPLE / name).read_text("utf-8"))
        assert names(config["requirements"]) == names(library) | names(server)


def test_both_configurations_run_on_the_same_machine() -> None:
    one, other = (yaml.safe_load((EXAMPLE / name).read_text("utf-8")) for name in CONFIGS)
    for key in ("resources", "requirements", "base_image", "environment_variables", "secrets", "python_version"):
        assert one[key] == other[key]


BODY = {"prompt": "Hello there.", "seed": 7}


def test_the_start_command_serves(container: Container, context: Path) -> None:
    predicted = httpx.post(f"{container.url()}/v1/models/model:predict", json=BODY, timeout=PATIENCE)
    assert predicted.status_code == 200
    assert predicted.content
    if is_grpc(context):
        with grpc.insecure_channel(f"127.0.0.1:{container.ports['50051']}") as channel:
            assert spoken(channel) == predicted.content
    else:
        assert speak_over_openai(container.url())
        assert speak_over_websocket(container.url() + "/v1/websocket")


@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_the_platforms_proxy_reaches_everything(container: Container, context: Path) -> None:
    proxy = container.url("8080")
    if is_grpc(context):
        with grpc.insecure_channel(proxy.removeprefix("http://")) as channel:
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            assert spoken(channel)
        return
    assert httpx.get(f"{proxy}/").json() == {"status": "live"}
    assert httpx.get(f"{proxy}/v1/models/model").json()["status"] == "ready"
    predicted = httpx.post(f"{proxy}/v1/models/model:predict", json=BODY, timeout=PATIENCE)
    assert predicted.headers["content-type"].startswith("audio/pcm")
    assert predicted.content == httpx.post(f"{container.url()}/v1/models/model:predict", json=BODY, timeout=PATIENCE).content
    assert speak_over_openai(proxy)
    assert speak_over_websocket(f"{proxy}/v1/websocket")


def spoken(channel: Any) -> bytes:
    request = SynthesizeSpeechRequest(text="Hello there.", custom_configuration={"seed": "7"})
    answers = RivaSpeechSynthesisStub(channel).SynthesizeOnline(iter([request]), timeout=PATIENCE)
    return b"".join(answer.audio for answer in answers)


def speak_over_openai(url: str) -> bytes:
    body = {"model": "tts-1", "input": "Hello there.", "voice": "alloy", "response_format": "wav"}
    answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    assert answer.content[:4] == b"RIFF"
    return answer.content


def speak_over_websocket(url: str) -> bytes:
    with connect(url.replace("http", "ws", 1), open_timeout=PATIENCE) as socket:
        for frame in (json.dumps({"voice": "noise"}), "Hello there.", "__END__"):
            socket.send(frame)
        return b"".join(frame for frame in socket if isinstance(frame, bytes))
