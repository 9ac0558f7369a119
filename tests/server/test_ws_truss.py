"""The protocol of the public Orpheus WebSocket Truss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live import LiveServer
from ws_client import Client, Prompts, client, recording, spoken

from orpheus_serving.audio.formats import pcm16
from orpheus_serving.request import SpeechRequest

PATH = "/v1/websocket"
FIRST = json.dumps({"voice": "noise", "max_tokens": 2000, "buffer_size": 10, "seed": 3})
TEXT = "Hello there, friend. This is the second sentence, and it costs 3.50 at Dr. Smith's. Bye."


@pytest.fixture(scope="module")
def server(noise_folder: Path) -> Iterator[tuple[LiveServer, Prompts]]:
    with recording(noise_folder) as server:
        yield server
        server[0].settle()


def whole(live: LiveServer, prompt: str) -> bytes:
    """The audio of the same text as one request."""

    async def speak() -> bytes:
        speech = live.service.synthesizer.speak(SpeechRequest.parse({"prompt": prompt, "voice": "noise", "seed": 3}))
        return b"".join([pcm16(samples) async for samples in speech])

    return live.run(speak())


def talk(live: LiveServer, *frames: str | bytes) -> tuple[bytes, Client]:
    with client(live, PATH) as socket:
        socket.send_raw(*frames)
        received = socket.rest()
    assert all(isinstance(frame, bytes) for frame in received), received
    return b"".join(received), socket  # type: ignore[arg-type]


def test_deltas_become_pcm_and_the_server_closes(server: tuple[LiveServer, Prompts]) -> None:
    live, prompts = server
    with client(live, PATH) as socket:
        socket.send_raw(FIRST, "Hel", "lo the", "re, friend.", "__END__")
        frames = socket.rest()
    assert prompts.take() == ["Hello there, friend."]
    assert all(isinstance(frame, bytes) and len(frame) % 2 == 0 for frame in frames)
    assert b"".join(frames) == whole(live, "Hello there, friend.")  # type: ignore[arg-type]
    assert socket.closed[0] == 1000


@given(st.lists(st.integers(0, len(TEXT)), max_size=30))
@settings(max_examples=25, deadline=None)
def test_what_is_spoken_is_exactly_the_concatenation(server: tuple[LiveServer, Prompts], cuts: list[int]) -> None:
    live, prompts = server
    prompts.take()
    places = [0, *sorted(cuts), len(TEXT)]
    pcm, socket = talk(live, FIRST, *(TEXT[a:b] for a, b in pairwise(places)), "__END__")
    assert spoken(prompts.take()) == spoken([TEXT])
    assert pcm
    assert socket.closed[0] == 1000


def test_word_senders_ask_for_spaces(server: tuple[LiveServer, Prompts]) -> None:
    live, prompts = server
    prompts.take()
    talk(live, json.dumps({"voice": "noise", "words": True}), "Hello", "there,", "friend.", "__END__")
    assert prompts.take() == ["Hello there, friend."]


def test_speech_begins_before_the_text_is_over(server: tuple[LiveServer, Prompts]) -> None:
    live, _ = server
    with client(live, PATH) as socket:
        socket.send_raw(FIRST, "A first sentence. And")
        assert len(socket.socket.recv(30)) > 0
        socket.send_raw(" the end", "__END__")
        assert socket.rest()
    assert socket.closed[0] == 1000


@pytest.mark.parametrize("frames", [(), ("",), (" ", "\n"), ("!?",)])
def test_nothing_to_say_closes_at_once(server: tuple[LiveServer, Prompts], frames: tuple[str, ...]) -> None:
    pcm, socket = talk(server[0], FIRST, *frames, "__END__")
    assert pcm == b""
    assert socket.closed[0] == 1000


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (["not json"], "not valid JSON"),
        ([b"\x00\x01"], "binary"),
        (["[1, 2]"], "must be a JSON object"),
        (['{"voice": 7}'], "voice"),
        (['{"voice": "nobody"}'], "the voices of"),
        (['{"words": "yes"}'], "words"),
        (['{"temperature": 9}'], "temperature"),
        (["[" * 100_000], "not valid JSON"),
        ([FIRST, b"\xff"], "binary"),
        ([FIRST, "x" * 20_001], "more than 20000 characters"),
    ],
)
def test_faults_are_told_and_close(server: tuple[LiveServer, Prompts], frames: list[str | bytes], reason: str) -> None:
    with client(server[0], PATH) as socket:
        socket.send_raw(*frames)
        told = socket.rest()
    assert reason in json.loads(told[-1])["error"]
    assert socket.closed[0] == 1008
    assert reason in (socket.closed[1] or "")
