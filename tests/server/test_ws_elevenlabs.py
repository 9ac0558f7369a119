"""ElevenLabs' shape."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live import LiveServer, serving
from ws_client import Client, Prompts, client, recording, spoken

PATH = "/v1/text-to-speech/noise/multi-stream-input?model_id=eleven_flash_v2_5&output_format=pcm_24000"
TEXT = "Hello there, friend. This is the second sentence, and it costs 3.50 at Dr. Smith's. Bye."


@pytest.fixture(scope="module")
def server(noise_folder: Path) -> Iterator[tuple[LiveServer, Prompts]]:
    with recording(noise_folder) as server:
        yield server
        server[0].settle()


def until_final(socket: Client) -> list[dict[str, Any]]:
    messages = [socket.receive()]
    while not messages[-1].get("isFinal"):
        messages.append(socket.receive())
    return messages


def audio(messages: list[dict[str, Any]], context: str) -> bytes:
    return b"".join(base64.b64decode(m["audio"]) for m in messages if "audio" in m and m["contextId"] == context)


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
@settings(max_examples=15, deadline=None)
def test_what_is_spoken_is_exactly_the_concatenation(server: tuple[LiveServer, Prompts], cuts: list[int]) -> None:
    live, prompts = server
    prompts.take()
    with client(live, PATH) as socket:
        socket.send(text=" ", context_id="a", voice_settings={"stability": 0.5})
        socket.send(text="")
        for a, b in pairwise([0, *sorted(cuts), len(TEXT)]):
            socket.send(text=TEXT[a:b], context_id="a")
        socket.send(context_id="a", close_context=True)
        messages = until_final(socket)
    assert spoken(prompts.take()) == spoken([TEXT])
    assert messages[-1] == {"contextId": "a", "isFinal": True}
    assert len(audio(messages, "a")) > 2000


def test_a_flush_speaks_half_a_sentence(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH) as socket:
        socket.send(text="Half a sentence", context_id="a")
        socket.send(context_id="a", flush=True)
        assert "audio" in socket.receive()


def test_auto_mode_speaks_every_text(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH + "&auto_mode=true") as socket:
        socket.send(text="Half a sentence", context_id="a")
        assert "audio" in socket.receive()


def test_the_socket_closes_when_everything_is_spoken(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH) as socket:
        socket.send(text="Hello there, friend.", context_id="a")
        socket.send(text="Hello to you too.", context_id="b")
        socket.send(text=" ", context_id="c")
        socket.send(close_socket=True)
        messages = [json.loads(frame) for frame in socket.rest()]
    assert {m["contextId"] for m in messages if m.get("isFinal")} == {"a", "b", "c"}
    assert audio(messages, "a")
    assert audio(messages, "b")
    assert socket.closed[0] == 1000


@pytest.mark.parametrize(
    ("path", "frame", "reason"),
    [
        (PATH.replace("noise", "nobody"), None, "the voices of"),
        (PATH.replace("pcm_24000", "mp3_44100_128"), None, "output_format"),
        (PATH, "not json", "not valid JSON"),
        (PATH, b"\x00", "binary"),
        (PATH, '{"text": 5}', "text"),
        (PATH, '{"text": "a", "context_id": 5}', "context_id"),
        (PATH, json.dumps({"text": "x" * 20_001}), "more than 20000"),
    ],
)
def test_faults_are_told_and_close(server: tuple[LiveServer, Prompts], path: str, frame: str | bytes | None, reason: str) -> None:
    with client(server[0], path) as socket:
        if frame is not None:
            socket.send_raw(frame)
        assert reason in json.loads(socket.rest()[-1])["message"]
    assert socket.closed[0] == 1008


def test_an_engine_that_fails_closes_the_socket(noise_folder: Path) -> None:
    with serving(noise_folder, engine={"fail_after": 7}) as live, client(live, PATH) as socket:
        socket.send(text="Hello there, friend.", context_id="a", flush=True)
        socket.rest()
        assert socket.closed[0] == 1011
        live.settle()
