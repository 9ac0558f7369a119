"""The examples, each run as its documentation says, against the server."""

from __future__ import annotations

import subprocess
import sys
import wave
from pathlib import Path

import av
import pytest

from conftest import PATIENCE, Served

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = "Hello there, friend. How are you today?"


def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)


def seconds(path: Path) -> float:
    with wave.open(str(path), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert any(file.readframes(file.getnframes())), "it is silent"
        return file.getnframes() / 24_000


def everything(served: Served) -> str:
    """What was said, whatever it was cut into."""
    return "".join("".join(served.said()).split())


SCRIPTS = [
    ("stream_to_wav.py", (), "{url}/v1/models/model:predict"),
    ("requests_client.py", (), "{url}"),
    ("livekit_agent.py", ("say",), "{ws_url}"),
    ("pipecat_pipeline.py", (), "{ws_url}"),
]


@pytest.mark.parametrize(("name", "verb", "url"), SCRIPTS, ids=[name for name, *_ in SCRIPTS])
def test_it_speaks_into_a_wav(served: Served, tmp_path: Path, name: str, verb: tuple[str, ...], url: str) -> None:
    served.said()
    path = tmp_path / "out.wav"
    address = url.format(url=served.url, ws_url=served.ws_url)
    done = run(name, *verb, TEXT, path, "--voice", "tara", "--url", address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert seconds(path) > 0.3
    assert everything(served) == "".join(TEXT.split())
    served.until_idle()


@pytest.mark.parametrize("suffix", ["mp3", "opus", "flac", "wav"])
def test_openai_python_gets_every_format(served: Served, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    done = run("openai_client.py", TEXT, path, "--url", served.url)
    assert done.returncode == 0, done.stderr
    with av.open(str(path)) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) > 5_000


def test_aiohttp_speaks_several_texts_at_once(served: Served, tmp_path: Path) -> None:
    done = run("aiohttp_client.py", tmp_path, *[f"This is text number {n}, friend." for n in range(4)], "--url", served.url)
    assert done.returncode == 0, done.stderr
    assert all(seconds(tmp_path / f"{n}.wav") > 0.3 for n in range(1, 5))


@pytest.mark.parametrize("name", ["requests_client.py", "openai_client.py"])
def test_a_refusal_is_told(served: Served, tmp_path: Path, name: str) -> None:
    done = run(name, TEXT, tmp_path / "out.wav", "--voice", "nobody", "--url", served.url)
    assert done.returncode == 1
    assert "voice" in done.stderr
