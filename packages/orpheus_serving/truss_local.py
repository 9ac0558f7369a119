"""The genuine Truss server on this machine, without Docker and without an account.

    a Truss folder --build_app--> an app folder (what the image's /app would hold) --LocalTrussServer--> http://127.0.0.1:N

Truss writes the image's build context; the server in it is an ordinary Python program and runs in this environment
(`requirements/truss.txt`). Two things differ from a deployment. The engine of a `trt_llm` section exists only on the
platform, so `local=True` leaves that section out and model/model.py falls back to its own engine. Packages come from
the path instead of /packages.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import urlsplit

import yaml

from orpheus_serving.errors import OrpheusServingError

READY = "/v1/models/model"
PREDICT = "/v1/models/model:predict"
LOG_LINES = 30  # of the server's log in an error message


class TrussError(OrpheusServingError):
    """A Truss could not be built or served here, or its server refused a request."""


def offline_environment() -> dict[str, str]:
    """This process' environment with the hub switched off.

    Reading a config.yaml with a `trt_llm` section makes the truss library ask the hub for the checkpoint's config.json
    (where transformers is installed), and retry for half a minute where there is no network. It only warns in the end.
    """
    return {**os.environ, "HF_HUB_OFFLINE": "1"}


def build_app(
    folder: str | Path,
    target: str | Path,
    *,
    local: bool = True,
    extension: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    runtime: Mapping[str, Any] | None = None,
) -> Path:
    """Build the app folder of the Truss `folder` inside `target` (made if missing); returns the app folder.

    local: leave the `trt_llm` section out. Without it the engine of the section must come from `extension`: a Python
    file that takes the place of the platform's, with a class `Extension` (`load`, `model_args`, `model_override`).
    settings: laid over `model_metadata.orpheus` of config.yaml. runtime: laid over `runtime`, and kept even where Truss
    would set another value (it sets `predict_concurrency: 512` beside an engine).
    Raises TrussError if truss is missing or refuses the folder.
    """
    folder, target = Path(folder).resolve(), Path(target).resolve()
    _need_truss()
    config = _read_config(folder)
    if local and extension:
        raise TrussError("extension: stands in for the engine of a trt_llm section, which local=True leaves out")
    if local:
        config.pop("trt_llm", None)
    config["runtime"] = {**(config.get("runtime") or {}), **(runtime or {})}
    metadata = config["model_metadata"] = config.get("model_metadata") or {}
    metadata["orpheus"] = {**(metadata.get("orpheus") or {}), **(settings or {})}

    # What ships is copied aside first: a build copies its folder twice, and a working folder holds far more. Packages that it
    # names outside of itself stay where they are.
    config["external_package_dirs"] = [str((folder / package).resolve()) for package in config.get("external_package_dirs") or ()]
    source, context, app = target / "source", target / "context", target / "app"
    for stale in (source, context, app):
        shutil.rmtree(stale, ignore_errors=True)
    source.mkdir(parents=True)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    model, packages, data = (
        config.get(key, default)
        for key, default in (("model_module_dir", "model"), ("bundled_packages_dir", "packages"), ("data_dir", "data"))
    )
    if not (folder / model).is_dir():
        raise TrussError(f"{folder} is no Truss: it has no {model}/ with the model's class")
    for name in (model, packages):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, source / name, ignore=unwanted)
    (source / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")

    script = "import pathlib, sys, truss\ntruss.load(sys.argv[1]).docker_build_setup(build_dir=pathlib.Path(sys.argv[2]))\n"
    done = subprocess.run(
        [sys.executable, "-c", script, str(source), str(context)],
        capture_output=True, text=True, env=offline_environment(), check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise TrussError(f"truss refused {folder}:\n{_last_lines(done.stderr)}")

    shutil.copytree(context / "server", app)
    shutil.copytree(context / model, app / model)
    filled_in = yaml.safe_load((context / "config.yaml").read_text(encoding="utf-8"))
    filled_in["runtime"].update(runtime or {})
    (app / "config.yaml").write_text(yaml.safe_dump(filled_in), encoding="utf-8")
    if (folder / data).is_dir():  # weights: linked, not copied
        (app / "data").symlink_to(folder / data, target_is_directory=True)
    if extension:
        shutil.copy(extension, app / "extensions" / "trt_llm" / "extension.py")
    return app


class LocalTrussServer:
    """The server of an app folder, as a context manager: ready inside the `with`, gone with all its children after it.

        with LocalTrussServer(build_app(".", tmp)) as server:
            ... server.url + "/v1/models/model:predict"

    port: 0 takes a free one. environment: added to this process' variables. log: where the server writes; its last
    lines are part of every error. Raises TrussError if the model does not load.
    """

    def __init__(
        self, app: str | Path, *, port: int = 0, environment: Mapping[str, str] | None = None, timeout: float = 600
    ) -> None:
        self.app = Path(app)
        self.port = port
        self.timeout = timeout  # seconds until it must be ready
        self.log = self.app / "server.log"
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.port = self.port or _free_port()
        packages = self.app.parent / "context" / "packages"
        path = os.pathsep.join(p for p in (str(packages), os.environ.get("PYTHONPATH", "")) if p)
        environment = {
            **os.environ, **self._environment, "PYTHONPATH": path, "INFERENCE_SERVER_PORT": str(self.port)
        }  # fmt: skip
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "main.py"],
                cwd=self.app, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own, so that stop() reaches its children
            )  # fmt: skip
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        """Poll readiness. A server whose model failed to load ends with code 0, or kills itself when it is asked."""
        assert self._process is not None
        until = time.monotonic() + self.timeout
        while not self._answers():
            if self._process.poll() is not None:
                # It leaves this note for a supervisor in a container, which there is none of here.
                Path("~/inference_server_crashed.txt").expanduser().unlink(missing_ok=True)
                raise TrussError(f"the model did not load; the server's log ends with:\n{self.log_tail()}")
            if time.monotonic() > until:
                raise TrussError(f"not ready after {self.timeout:g} s; the server's log ends with:\n{self.log_tail()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", READY)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def wait(self) -> int:
        """Block until the server ends by itself; its exit code."""
        assert self._process is not None
        return self._process.wait()

    def stop(self, grace: float = 5) -> None:
        """End the server and whatever it started: politely, and after `grace` seconds not politely."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):  # an open stream holds a polite shutdown for up to an hour
            process.wait(grace)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log_tail(self) -> str:
        return _last_lines(self.log.read_text(encoding="utf-8", errors="replace")) if self.log.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def serve(folder: str | Path = ".", *, port: int = 8080, settings: Mapping[str, Any] | None = None) -> int:
    """Build and serve `folder` until it ends, Ctrl-C or SIGTERM; the server's exit code. Raises TrussError as the parts do.

    settings: of this project; they win over those of config.yaml and of this process' environment.
    """
    # The server is in a session of its own: whoever ends this process has to end that one too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="orpheus-truss-") as work:
        print(f"building {Path(folder).resolve()}", file=sys.stderr)
        app = build_app(folder, work)
        environment = {f"ORPHEUS_{name.upper()}": str(value) for name, value in (settings or {}).items()}
        print("loading the model", file=sys.stderr)
        with LocalTrussServer(app, port=port, environment=environment) as server:
            print(f"ready: POST {server.url}{PREDICT}   (Ctrl-C ends it)", file=sys.stderr)
            try:
                return server.wait()
            except KeyboardInterrupt:
                return 0


def predict(target: str | Path, payload: Mapping[str, Any], out: BinaryIO, *, timeout: float = 600) -> int:
    """POST `payload` and write the audio into `out` as it arrives; returns the number of bytes.

    target: the URL of a running server (with or without the path), or a Truss folder to serve for this one call.
    Raises TrussError for an answer that is no success, and for a stream that breaks off.
    """
    if "://" not in str(target):
        with (
            tempfile.TemporaryDirectory(prefix="orpheus-truss-") as work,
            LocalTrussServer(build_app(target, work)) as server,
        ):
            return predict(server.url, payload, out, timeout=timeout)
    url = urlsplit(str(target))
    if url.scheme != "http" or not url.hostname:
        raise TrussError(f"{target}: give an http:// URL of a local server, or a folder")
    connection = HTTPConnection(url.hostname, url.port, timeout=timeout)
    written = 0
    try:
        connection.request(
            "POST",
            url.path if len(url.path) > 1 else PREDICT,
            json.dumps(payload),
            {"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        if response.status != 200:
            raise TrussError(f"{target} answered {response.status}: {_reason(response)}")
        while chunk := response.read1(65536):
            out.write(chunk)
            written += len(chunk)
    except (OSError, HTTPException) as error:
        after = f" after {written} bytes" if written else ""
        raise TrussError(f"{target}: the connection broke{after} ({error!r})") from error
    finally:
        connection.close()
    return written


def _reason(response: HTTPResponse) -> str:
    body = response.read().decode("utf-8", "replace")
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"])
    return body or response.reason


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except OSError as error:
        raise TrussError(f"{folder} is no Truss: {error}") from error
    except yaml.YAMLError as error:
        raise TrussError(f"{folder / 'config.yaml'}: {error}") from error
    if not isinstance(config, dict):
        raise TrussError(f"{folder / 'config.yaml'} holds no mapping")
    return config


def _need_truss() -> None:
    for module in ("truss", "uvloop", "opentelemetry.sdk", "prometheus_client", "msgpack_numpy"):
        try:
            found = find_spec(module)
        except ModuleNotFoundError:  # the parent package of a dotted name
            found = None
        if found is None:
            raise TrussError(f"{module} is not installed: pip install -r requirements/truss.txt")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-LOG_LINES:])
