"""What can be said of the Dockerfile without Docker: what it copies is there and is enough, and its commands work."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
from process import PATIENCE, Process

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
COPIED = [source.rstrip("/") for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M) for source in line.split()]
ENVIRONMENT = dict(
    re.findall(r"\b(ORPHEUS_\w+)=(\S+)", DOCKERFILE.partition("AS run")[2].partition("USER")[0].partition("\nENV")[2])
)
HEALTH = json.loads(re.search(r"^HEALTHCHECK.*? CMD (\[.*\])$", DOCKERFILE, re.M)[1])  # type: ignore[index]
COMMAND = [
    word
    for name in ("ENTRYPOINT", "CMD")
    for word in json.loads(re.search(rf"^{name} (\[.*\])$", DOCKERFILE, re.M)[1])  # type: ignore[index]
]


def test_what_is_copied_is_let_into_the_context_and_nothing_else_is() -> None:
    allowed = [line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
    assert sorted(allowed) == sorted(COPIED)
    assert all((ROOT / name).exists() for name in COPIED)


def test_what_is_copied_is_enough_to_be_healthy_and_to_speak(tmp_path: Path) -> None:
    """The commands of the image over a copy of its files, far from the repository. The port is another one."""
    image, home = tmp_path / "image", tmp_path / "home"
    home.mkdir()
    for name in COPIED:
        if name.startswith("data/"):  # tens of MB
            (image / name).parent.mkdir(parents=True, exist_ok=True)
            (image / name).symlink_to(ROOT / name)
        elif (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, image / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, image / name)
    clean = {name: value for name, value in os.environ.items() if not fnmatch.fnmatch(name, "ORPHEUS_*")}
    own = ENVIRONMENT | {
        "ORPHEUS_CHECKPOINT": str(image / "data/demo_voice"),
        "ORPHEUS_SERVER_HOST": "127.0.0.1",
        "ORPHEUS_SERVER_PORT": "0",
        "ORPHEUS_SERVER_GRPC_PORT": "0",
        "PYTHONPATH": str(image / "packages"),
        "HOME": str(home),
    }
    assert COMMAND == ["orpheus-serving", "serve"]
    start = (
        "import os, orpheus_serving.cli as c; assert c.__file__.startswith(os.environ['PYTHONPATH']); raise SystemExit(c.main())"
    )
    command = [
        "env",
        "-i",
        *(f"{name}={value}" for name, value in (clean | own).items()),
        sys.executable,
        "-c",
        start,
        *COMMAND[1:],
    ]
    with Process(command, cwd=home) as server:
        port = str(server.until("listening")["port"])
        check = [sys.executable, *HEALTH[1:]]
        assert HEALTH[0] == "python"
        healthy = clean | own | {"ORPHEUS_SERVER_PORT": port}
        assert subprocess.run(check, env=healthy, cwd=home, capture_output=True, check=False, timeout=PATIENCE).returncode
        server.until("ready")
        subprocess.run(check, env=healthy, cwd=home, check=True, timeout=PATIENCE)
        body = {"input": "Hello there.", "voice": "ava", "response_format": "wav"}
        spoken = httpx.post(f"http://127.0.0.1:{port}/v1/audio/speech", json=body, timeout=PATIENCE)
        assert spoken.status_code == 200
        assert len(spoken.content) > 24_000
        assert "<html" in httpx.get(f"http://127.0.0.1:{port}/").text
        server.terminate()
        assert server.end() == 0
