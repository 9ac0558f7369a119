"""Our own protocol, in Cartesia's shape."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live import LiveServer, serving
from ws_client import Client, Prompts, client, recording, spoken

PATH = "/tts/websocket?cartesia_version=2025-04-16"
TEXT = "Hello there, friend. This is the second sentence, and it costs 3.50 at Dr. Smith's. Bye."
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
BASE = {"model_id": "sonic", "voice": {"mode": "id", "id": "noise"}, "output_format": RAW, "language": "en"}


@pytest.fixture(scope="module")
def server(noise_folder: Path) -> Iterator[tuple[LiveServer, Prompts]]:
    with recording(noise_folder) as server:
        yield server
        server[0].settle()


def say(socket: Client, context: str, transcript: str, more: bool = True, **fields: Any) -> None:
    socket.send(**BASE | {"context_id": context, "transcript": transcript, "continue": more} | fields)


def audio(messages: list[dict[str, Any]], context: str, kind: str = "<i2") -> np.ndarray:
    data = [base64.b64decode(m["data"]) for m in messages if m["type"] == "chunk" and m["context_id"] == context]
    assert all(len(piece) % np.dtype(kind).itemsize == 0 for piece in data)
    return np.frombuffer(b"".join(data), kind)


def test_a_context_is_spoken_and_done(server: tuple[LiveServer, Prompts]) -> None:
    live, prompts = server
    prompts.take()
    with client(live, PATH) as socket:
        say(socket, "a", "Hel", add_timestamps=True)
        say(socket, "a", "lo there, friend.")
        say(socket, "a", "", more=False)
        messages = socket.until("done")
    assert prompts.take() == ["Hello there, friend."]
    assert {m["type"] for m in messages} == {"chunk", "done"}, "nothing is known of the times of words"
    assert {m["context_id"] for m in messages} == {"a"}
    assert [m["done"] for m in messages] == [False] * (len(messages) - 1) + [True]
    assert {m["status_code"] for m in messages[:-1]} == {206}
    assert messages[-1]["status_code"] == 200
    assert len(audio(messages, "a")) > 1000


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
@settings(max_examples=15, deadline=None)
def test_what_is_spoken_is_exactly_the_concatenation(server: tuple[LiveServer, Prompts], cuts: list[int]) -> None:
    live, prompts = server
    prompts.take()
    with client(live, PATH) as socket:
        for a, b in pairwise([0, *sorted(cuts), len(TEXT)]):
            say(socket, "a", TEXT[a:b])
        say(socket, "a", " ", more=False)
        socket.until("done")
    assert spoken(prompts.take()) == spoken([TEXT])


def test_formats_are_the_same_sound(server: tuple[LiveServer, Prompts]) -> None:
    sounds = {}
    with client(server[0], PATH) as socket:
        for encoding, rate in (("pcm_s16le", 24000), ("pcm_f32le", 24000), ("pcm_s16le", 8000), ("pcm_f32le", 44100)):
            form = {"container": "raw", "encoding": encoding, "sample_rate": rate}
            say(socket, "a", "Hello there, friend.", more=False, output_format=form, seed=5)
            sounds[encoding, rate] = audio(socket.until("done"), "a", "<i2" if encoding == "pcm_s16le" else "<f4")
    exact = sounds["pcm_f32le", 24000]
    assert np.abs(sounds["pcm_s16le", 24000] / 32767 - exact).max() < 1e-4
    assert len(sounds["pcm_s16le", 8000]) == pytest.approx(len(exact) / 3, abs=2)
    assert len(sounds["pcm_f32le", 44100]) == pytest.approx(len(exact) * 44100 / 24000, abs=2)


def test_flushes_are_spoken_and_answered_in_order(server: tuple[LiveServer, Prompts]) -> None:
    live, prompts = server
    prompts.take()
    with client(live, PATH) as socket:
        say(socket, "a", "", flush=True)
        assert socket.until("flush_done")[-1]["flush_id"] == 1
        say(socket, "a", "Half a sentence", flush=True)
        messages = socket.until("flush_done")
        assert messages[-1]["flush_id"] == 2
        assert len(audio(messages, "a")) > 1000
        say(socket, "a", " and the other half", more=False)
        socket.until("done")
    assert prompts.take() == ["Half a sentence", "and the other half"]


def test_without_a_buffer_every_transcript_is_spoken_as_it_is(server: tuple[LiveServer, Prompts]) -> None:
    live, prompts = server
    prompts.take()
    with client(live, PATH) as socket:
        say(socket, "a", "Hello there, friend", max_buffer_delay_ms=0)
        socket.until("chunk")
        say(socket, "a", "and good bye", max_buffer_delay_ms=0)
        say(socket, "a", "", more=False, max_buffer_delay_ms=0)
        assert "flush_done" not in [m["type"] for m in socket.until("done")]
    assert prompts.take() == ["Hello there, friend", "and good bye"]


def test_text_that_waits_too_long_is_spoken(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH) as socket:
        say(socket, "a", "Half a sentence", max_buffer_delay_ms=20)
        socket.until("chunk")  # without any end in sight


def test_contexts_run_beside_one_another(noise_folder: Path) -> None:
    with serving(noise_folder, frames=30, engine={"paced": True}) as live, client(live, PATH) as socket:
        say(socket, "a", "A long story.", more=False)
        live.until(lambda: live.engine.active, "the first is running")
        say(socket, "b", "Another one.", more=False)
        live.until(lambda: len(live.engine.active) == 2, "both are running")
        live.call(live.engine.advance, 70)
        messages = socket.until("done") + socket.until("done")
    assert {m["context_id"] for m in messages if m["type"] == "done"} == {"a", "b"}
    assert len(audio(messages, "a")) > 30_000
    assert len(audio(messages, "b")) > 30_000


def test_contexts_beside_one_another_sound_as_they_do_alone(server: tuple[LiveServer, Prompts]) -> None:
    """Also where a client, as LiveKit's plugin, starts the next one without a word about the last."""
    with client(server[0], PATH) as socket:

        def start(context: str) -> None:
            say(socket, context, "A first sentence here. And a second one, friend.", more=False, seed=ord(context))

        alone = {}
        for context in "abc":
            start(context)
            alone[context] = audio(socket.until("done"), context)
        for context in "abc":
            start(context)
        messages = socket.until("done") + socket.until("done") + socket.until("done")
    for context in "abc":
        assert np.array_equal(audio(messages, context), alone[context])
    assert len({sound.tobytes() for sound in alone.values()}) == 3


def test_a_cancel_stops_one_context_only(noise_folder: Path) -> None:
    with serving(noise_folder, frames=50, engine={"paced": True}) as live, client(live, PATH) as socket:
        say(socket, "a", "A long story.", more=False)
        live.call(live.engine.advance, 5)
        socket.until("chunk")
        say(socket, "b", "Another one.", more=False)
        live.until(lambda: len(live.engine.active) == 2, "both are running")
        socket.send(context_id="a", cancel=True)
        live.until(lambda: len(live.engine.active) == 1, "one engine request is closed")
        socket.send(context_id="nobody", cancel=True)
        live.call(live.engine.advance, 60)
        messages = socket.until("done")
        assert messages[-1]["context_id"] == "a"
        rest = socket.until("done")
        assert {m["context_id"] for m in rest} == {"b"}, "a cancelled context was heard after its end"


def test_phrases_have_the_times_of_their_audio(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH) as socket:
        say(socket, "a", "A first sentence here. ", add_phrase_timestamps=True)
        first = socket.until("phrase_timestamps")
        say(socket, "a", "And a second one.", more=False)
        second = socket.until("done")
    times = [m["phrase_timestamps"] for m in first + second if m["type"] == "phrase_timestamps"]
    assert [t["phrases"] for t in times] == [["A first sentence here."], ["And a second one."]]
    assert times[0]["start"] == [0]
    assert times[0]["end"] == times[1]["start"] == [len(audio(first, "a")) / 24000]
    assert times[1]["end"] == [len(audio(first + second, "a")) / 24000]


@pytest.mark.parametrize(
    ("frame", "context", "reason"),
    [
        ("not json", None, "not valid JSON"),
        (b"\x00", None, "binary"),
        ('{"context_id": 7}', None, "context_id"),
        ('{"cancel": true}', None, "context_id"),
        ('{"context_id": "a", "transcript": 7}', "a", "transcript"),
        ('{"context_id": "a", "transcript": "Hi", "continue": "yes"}', "a", "continue"),
        ('{"context_id": "a", "transcript": "Hi", "voice": {"mode": "id", "id": "nobody"}}', "a", "the voices of"),
        ('{"context_id": "a", "transcript": "Hi", "voice": {"mode": "embedding", "embedding": [1]}}', "a", "voice"),
        ('{"context_id": "a", "transcript": "Hi", "output_format": {"container": "mp3"}}', "a", "output_format.container"),
        ('{"context_id": "a", "transcript": "Hi", "output_format": {"sample_rate": 1}}', "a", "output_format.sample_rate"),
        ('{"context_id": "a", "transcript": "Hi", "temperature": 9}', "a", "temperature"),
        (json.dumps({"context_id": "a", "transcript": "x" * 20_001, "continue": True}), "a", "more than 20000 characters"),
    ],
)
def test_faults_are_told_per_context(
    server: tuple[LiveServer, Prompts], frame: str | bytes, context: str | None, reason: str
) -> None:
    with client(server[0], PATH) as socket:
        socket.send_raw(frame)
        error = socket.until("error")[-1]
        assert error["context_id"] == context
        assert error["status_code"] == 400
        assert reason in error["message"]
        assert error["done"] is False  # LiveKit's plugin takes a `done` error for a clean end
        say(socket, "b", "Still here, friend.", more=False)
        assert {m["context_id"] for m in socket.until("done")} == {"b"}


def test_a_fault_ends_its_context(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH) as socket:
        say(socket, "a", "Hello there. And")
        socket.send(context_id="a", transcript=5)
        assert socket.until("error")[-1]["context_id"] == "a"
        server[0].settle()


def test_the_end_of_what_never_began_is_done(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH) as socket:
        say(socket, "a", " ", more=False)
        assert socket.receive()["type"] == "done"
        say(socket, "a", " ")
        say(socket, "a", "!?")
        say(socket, "a", "", more=False)
        assert [m["type"] for m in socket.until("done")] == ["done"]


def test_an_engine_that_fails_is_told(noise_folder: Path) -> None:
    with serving(noise_folder, frames=20, engine={"fail_after": 70, "paced": True}) as live, client(live, PATH) as socket:
        say(socket, "a", "Hello there, friend.", more=False)
        live.call(live.engine.advance, 10)
        socket.until("chunk")
        live.call(live.engine.advance, 1)
        assert socket.until("error")[-1]["status_code"] == 500
        live.settle()


def test_contexts_of_a_socket_are_bounded(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH) as socket:
        for number in range(33):
            say(socket, f"context {number}", " ")
        assert "the most" in socket.until("error")[-1]["message"]


def fail_voice(socket: Client) -> None:
    say(socket, "a", "Hello there. And", voice="nobody")


def fail_type(socket: Client) -> None:
    say(socket, "a", "Hello there. And")
    say(socket, "a", "so on", flush="yes")


def fail_length(socket: Client) -> None:
    say(socket, "a", "Hello there. And")
    say(socket, "a", "x" * 20_001)


def cut_short(socket: Client) -> None:
    say(socket, "a", "Hello there, friend. This is the second sentence. And", max_tokens=7)


@pytest.mark.parametrize("last", [{"transcript": "end.", "continue": False}, {"cancel": True}])
@pytest.mark.parametrize(
    ("begin", "over"), [(fail_voice, "error"), (fail_type, "error"), (fail_length, "error"), (cut_short, "done")]
)
def test_nothing_is_spoken_of_a_context_that_is_over_until_its_client_ends_it(
    server: tuple[LiveServer, Prompts], begin: Any, over: str, last: dict[str, Any]
) -> None:
    live, prompts = server
    with client(live, PATH) as socket:
        begin(socket)
        socket.until(over)
        live.settle()
        prompts.take()
        say(socket, "a", " of a sentence that began before. And so ", flush=True)
        socket.send(**BASE | {"context_id": "a"} | last)
        say(socket, "a", "Here it begins anew.", more=False)
        messages = socket.until("chunk") + socket.until("done")
    assert prompts.take() == ["Here it begins anew."]
    assert {m["type"] for m in messages} == {"chunk", "done"}


def test_an_engine_that_fails_ends_its_context(noise_folder: Path) -> None:
    with serving(noise_folder, frames=20, engine={"fail_after": 70}) as live, client(live, PATH) as socket:
        say(socket, "a", "Hello there, friend. And")
        assert socket.until("error")[-1]["status_code"] == 500
        live.settle()
        say(socket, "a", " so on. And ")
        say(socket, "a", "on.", more=False)
        assert [m["type"] for m in socket.until("done")] == ["done"]


def test_contexts_that_are_over_are_remembered_within_bounds(server: tuple[LiveServer, Prompts]) -> None:
    with client(server[0], PATH) as socket:
        for number in range(257):
            say(socket, f"context {number}", "Hello.", voice="nobody")
            socket.until("error")
        say(socket, "context 256", "Hello.", more=False)
        assert [m["type"] for m in socket.until("done")] == ["done"]
        say(socket, "context 0", "Hello there, friend.", more=False)
        assert socket.until("done")[0]["type"] == "chunk"
