"""Together's shape."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live import LiveServer, serving
from test_ws_session import LONGEST_STOP
from ws_client import Client, Prompts, client, recording, spoken

PATH = "/v1/audio/speech/websocket?model=orpheus&voice=noise&language=en"
DELTA, DONE = "conversation.item.audio_output.delta", "conversation.item.audio_output.done"
TEXT = "Hello there, friend. This is the second sentence, and it costs 3.50 at Dr. Smith's. Bye."


@pytest.fixture(scope="module")
def server(noise_folder: Path) -> Iterator[tuple[LiveServer, Prompts]]:
    with recording(noise_folder) as server:
        yield server
        server[0].settle()


def append(socket: Client, *texts: str) -> None:
    for text in texts:
        socket.send(type="input_text_buffer.append", text=text)


def commit(socket: Client) -> None:
    socket.send(type="input_text_buffer.commit")


def test_a_session_with_two_items(server: tuple[LiveServer, Prompts]) -> None:
    live, prompts = server
    prompts.take()
    with client(live, PATH) as socket:
        assert socket.receive()["session"]["id"]
        socket.send(type="tts_session.updated", session={"voice": "hiss", "extra_params": {}})
        assert socket.receive() == {"type": "session.updated", "session": {"voice": "hiss"}}
        append(socket, "A first ", "sentence.")
        commit(socket)
        commit(socket)  # with nothing in it
        append(socket, "A second one.")
        commit(socket)
        messages = socket.until(DONE) + socket.until(DONE)
    assert prompts.take() == ["A first sentence.", "A second one."]
    received = [m for m in messages if m["type"] == "conversation.item.input_text.received"]
    assert [m["text"] for m in received] == ["A first ", "sentence.", "A second one."]
    items = [m["item_id"] for m in messages if m["type"] in (DELTA, DONE)]
    first, second = dict.fromkeys(items)
    assert items == sorted(items, key=[first, second].index), "items got mixed"
    assert all(len(base64.b64decode(m["delta"])) % 2 == 0 for m in messages if m["type"] == DELTA)


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
@settings(max_examples=15, deadline=None)
def test_what_is_spoken_is_exactly_the_concatenation(server: tuple[LiveServer, Prompts], cuts: list[int]) -> None:
    live, prompts = server
    prompts.take()
    with client(live, PATH) as socket:
        append(socket, *(TEXT[a:b] for a, b in pairwise([0, *sorted(cuts), len(TEXT)])))
        commit(socket)
        socket.until(DONE)
    assert spoken(prompts.take()) == spoken([TEXT])


def test_speech_begins_before_the_commit(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH) as socket:
        append(socket, "A first sentence. And")
        socket.until(DELTA)


def test_clear_stops_everything_at_once(noise_folder: Path) -> None:
    with serving(noise_folder, frames=50, engine={"paced": True}) as live, client(live, PATH) as socket:
        append(socket, "A long story.")
        commit(socket)
        append(socket, "Another one.")
        live.call(live.engine.advance, 10)
        socket.until(DELTA)
        cleared = time.monotonic()
        socket.send(type="input_text_buffer.clear")
        live.until(lambda: not live.engine.active, "the engine's request is closed")
        assert time.monotonic() - cleared < LONGEST_STOP
        live.settle()
        socket.send(type="tts_session.updated", session={"voice": "hiss"})
        socket.until("session.updated")  # nothing of the old items is behind it
        append(socket, "After that.")
        commit(socket)
        live.call(live.engine.advance, 60)
        messages = socket.until(DONE)
        assert len({m["item_id"] for m in messages if m["type"] in (DELTA, DONE)}) == 1
        assert len(live.engine.started) == 2


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("not json", "not valid JSON"),
        (b"\x00", "binary"),
        ("3", "must be a JSON object"),
        ('{"type": "nonsense"}', "no event 'nonsense'"),
        ('{"text": "hi"}', "type"),
        ('{"type": "input_text_buffer.append", "text": 5}', "text"),
        ('{"type": "tts_session.updated"}', "session.voice"),
    ],
)
def test_faults_are_told_and_the_session_goes_on(server: tuple[LiveServer, Prompts], frame: str | bytes, reason: str) -> None:
    with client(server[0], PATH) as socket:
        socket.send_raw(frame)
        error = socket.until("error")[-1]["error"]
        assert reason in error["message"]
        assert error["type"] == "invalid_request_error"
        append(socket, "Still here, friend.")
        commit(socket)
        socket.until(DONE)


def test_what_cannot_be_spoken_fails_alone(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], "/v1/audio/speech/websocket?voice=nobody") as socket:
        append(socket, "Hello there, friend.")
        commit(socket)
        assert "the voices of" in socket.until("conversation.item.tts.failed")[-1]["error"]["message"]
        socket.send(type="tts_session.updated", session={"voice": "noise"})
        append(socket, "Hello again, friend.")
        commit(socket)
        socket.until(DONE)


def test_text_that_waits_is_bounded(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH) as socket:
        append(socket, "x" * 20_001)
        assert "more than 20000" in socket.until("error")[-1]["error"]["message"]
