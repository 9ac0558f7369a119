"""What all WebSocket protocols share: keys, places, leaving, slow readers, silence, garbage."""

from __future__ import annotations

import contextlib
import json
import logging
import socket as sockets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live import LiveServer, serving
from websockets.exceptions import ConnectionClosed, InvalidStatus
from ws_client import PATIENCE, Client, client

ELEVENLABS = "/v1/text-to-speech/noise/multi-stream-input"
PATHS = ("/v1/websocket", "/v1/audio/speech/websocket", "/tts/websocket", ELEVENLABS)
BEGIN = {
    "/v1/websocket": ['{"voice": "noise"}', "A long story. And"],
    "/v1/audio/speech/websocket": ['{"type": "input_text_buffer.append", "text": "A long story. And"}'],
    "/tts/websocket": ['{"context_id": "a", "transcript": "A long story. And", "continue": true}'],
    ELEVENLABS: ['{"context_id": "a", "text": "A long story. And"}'],
}
LONGEST_STOP = 0.2  # seconds from a client's leaving to the engine's rest: a promise of the project


def begin(live: LiveServer, socket: Client, path: str) -> None:
    socket.send_raw(*BEGIN[path])
    live.until(lambda: live.engine.active, "the engine speaks")


def is_audio(frame: str | bytes) -> bool:
    return isinstance(frame, bytes) or "delta" in json.loads(frame) or "data" in json.loads(frame) or "audio" in json.loads(frame)


@pytest.fixture(scope="module")
def paced(noise_folder: Path) -> Iterator[LiveServer]:
    with serving(noise_folder, frames=200, engine={"paced": True}) as live:
        yield live


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("how", ["close", "vanish"])
def test_a_client_that_leaves_stops_generation(paced: LiveServer, path: str, how: str) -> None:
    with client(paced, path) as socket:
        begin(paced, socket, path)
        paced.call(paced.engine.advance, 5)
        while not is_audio(socket.socket.recv(PATIENCE)):
            pass
        left = time.monotonic()
        if how == "vanish":  # without a close frame
            socket.socket.socket.shutdown(sockets.SHUT_RDWR)
        else:
            socket.socket.close()
        paced.until(lambda: not paced.engine.active and paced.codec.free_slots == 16, "everything is free")
        assert time.monotonic() - left < LONGEST_STOP
    paced.settle()


@pytest.mark.parametrize("path", PATHS)
def test_a_key_is_asked_for_at_the_upgrade(keyed: LiveServer, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused, client(keyed, path):
        pass
    assert refused.value.response.status_code == 401
    for headers in ({"Authorization": "Api-Key secret"}, {"Authorization": "Bearer secret"}, {"X-API-Key": "secret"}):
        with client(keyed, path, additional_headers=headers):
            pass


@pytest.fixture(scope="module")
def keyed(noise_folder: Path) -> Iterator[LiveServer]:
    with serving(noise_folder, api_keys="secret") as live:
        yield live


@pytest.mark.parametrize("path", PATHS)
def test_overload_is_told_at_the_upgrade(narrow: LiveServer, path: str) -> None:
    with client(narrow, PATHS[0]) as first:
        begin(narrow, first, PATHS[0])
        with pytest.raises(InvalidStatus) as refused, client(narrow, path):
            pass
        assert refused.value.response.status_code == 503
        assert int(refused.value.response.headers["Retry-After"]) > 0
    narrow.settle()


def test_overload_after_the_upgrade_is_told_too(narrow: LiveServer) -> None:
    with client(narrow, PATHS[0]) as truss, client(narrow, PATHS[1]) as together, client(narrow, PATHS[2]) as cartesia:
        with client(narrow, PATHS[2]) as first:
            begin(narrow, first, PATHS[2])
            truss.send_raw(*BEGIN[PATHS[0]])
            assert "try again" in json.loads(truss.rest()[-1])["error"]
            assert truss.closed[0] == 1013
            together.send_raw(*BEGIN[PATHS[1]])
            failed = together.until("conversation.item.tts.failed")[-1]
            assert failed["error"]["code"] == 429
            cartesia.send_raw(*BEGIN[PATHS[2]])
            assert cartesia.until("error")[-1]["status_code"] == 429
        narrow.settle()


@pytest.fixture(scope="module")
def narrow(noise_folder: Path) -> Iterator[LiveServer]:
    with serving(noise_folder, engine={"paced": True}, max_active=1, max_queued=0) as live:
        yield live


@pytest.mark.parametrize("path", PATHS)
def test_a_silent_socket_is_closed(noise_folder: Path, path: str) -> None:
    with serving(noise_folder, idle_timeout=0.05) as live:
        with client(live, path) as socket:
            socket.rest()
            assert socket.closed[0] == 1000
            assert "no frame" in (socket.closed[1] or "")
        live.settle()


def test_a_writer_that_falls_silent_loses_its_place(noise_folder: Path) -> None:
    with serving(noise_folder, idle_timeout=0.3) as live:
        with client(live, "/tts/websocket") as socket:
            socket.send_raw(
                '{"context_id": "a", "transcript": "A long story. And", "continue": true, "max_buffer_delay_ms": 5000}'
            )
            live.until(lambda: live.service.active, "it has a place")
            socket.rest()
        live.settle()


@pytest.mark.parametrize("path", ["/v1/websocket", "/tts/websocket"])
def test_a_slow_reader_holds_back_generation_and_is_still_heard(noise_folder: Path, path: str) -> None:
    story = "This is one sentence of many in a long story. " * 200
    with serving(noise_folder, frames=100, settings={"max_chunk_size": 60}) as live:
        with client(live, path, max_queue=1) as socket:
            socket.send_raw(*BEGIN[path][:-1])
            if path == "/v1/websocket":
                socket.send_raw(story)
            else:
                socket.send(context_id="a", transcript=story, **{"continue": True})
            wait_until_still(live)
            assert len(live.engine.started) < 20, "it was generated without being read"
            # The reader task still listens: leaving is noticed although audio waits to be sent.
            left = time.monotonic()
            socket.socket.socket.close()
            live.until(lambda: not live.service.active, "the place is free")
            assert time.monotonic() - left < LONGEST_STOP
        live.settle()


def wait_until_still(live: LiveServer) -> None:
    """Until the engine has stopped taking work: as many requests as a while ago."""
    live.until(lambda: live.engine.started, "it began")
    before = -1
    while before != (now := live.call(lambda: live.codec.batches.total())):
        before = now
        time.sleep(0.3)


def test_a_cancel_is_heard_while_audio_waits_to_be_read(noise_folder: Path) -> None:
    story = "This is one sentence of many in a long story. " * 200
    with serving(noise_folder, frames=100, settings={"max_chunk_size": 60}) as live:
        with client(live, "/tts/websocket", max_queue=1) as socket:
            socket.send(context_id="a", transcript=story, **{"continue": True})
            wait_until_still(live)
            sent = time.monotonic()
            socket.send(context_id="a", cancel=True)
            live.until(lambda: not live.service.active, "the place is free")
            assert time.monotonic() - sent < LONGEST_STOP
            socket.until("done")
        live.settle()


STORY = "This is one sentence of many in a long story. " * 200
TELL = {
    "/v1/websocket": ['{"voice": "noise"}', STORY],
    "/v1/audio/speech/websocket": [json.dumps({"type": "input_text_buffer.append", "text": STORY})],
    "/tts/websocket": [json.dumps({"context_id": "a", "transcript": STORY, "continue": True})],
    ELEVENLABS: [json.dumps({"context_id": "a", "text": STORY})],
}


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_takes_nothing_is_given_up(noise_folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orpheus_serving.server.serve.SEND_BUFFER", 4096)  # soon full, long before the kernel gives up
    with serving(noise_folder, frames=100, settings={"max_chunk_size": 60}, stall_timeout=1.0) as live:
        with client(live, path, max_queue=1) as socket:
            socket.send_raw(*TELL[path])
            live.until(lambda: live.service.active, "it began")
            live.until(lambda: not live.service.active, "it was given up")
        live.settle()
        outcomes = [line for line in live.call(live.service.metrics.render).decode().splitlines() if "requests_total{" in line]
        assert len(outcomes) == 1
        assert 'outcome="stalled"' in outcomes[0]


def test_a_slow_reader_need_not_answer_pings(noise_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers come when it has read what is before them: with a time limit on them it would be hung up on in mid-speech."""
    monkeypatch.setattr("orpheus_serving.server.serve.PING_INTERVAL", 0.02)
    with serving(noise_folder, frames=100, settings={"max_chunk_size": 60}) as live:
        assert live.ping_timeout is None
        with client(live, "/tts/websocket", max_queue=1) as socket:
            socket.send(context_id="a", transcript=STORY[:300], **{"continue": False})
            wait_until_still(live)  # many pings later
            assert socket.until("done")
        live.settle()


def test_answers_that_nobody_reads_do_not_pile_up(noise_folder: Path) -> None:
    with serving(noise_folder, stall_timeout=0.3) as live:
        with client(live, "/tts/websocket", max_queue=1) as socket, contextlib.suppress(ConnectionClosed, OSError, TimeoutError):
            while True:
                socket.send_raw('{"context_id": "' + "x" * 150 + '", "transcript": 1}')
        live.settle()


def test_a_frame_that_is_too_long_closes(noise_folder: Path) -> None:
    with serving(noise_folder, max_body=1024) as live, client(live, "/tts/websocket") as socket:
        socket.send_raw(" " * 2000)
        socket.rest()
        assert socket.closed[0] == 1009


# Garbage

_KEYS = """
    type text session voice context_id transcript continue flush cancel output_format id mode encoding sample_rate
    max_buffer_delay_ms add_phrase_timestamps words seed temperature max_tokens
"""
_KNOWN = "noise a b input_text_buffer.append input_text_buffer.commit input_text_buffer.clear tts_session.updated"
KEYS = st.sampled_from(_KEYS.split())
KNOWN = _KNOWN.split()
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([*KNOWN, "Hello you. "])
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=8).map(json.dumps)
RAW = st.text(max_size=20) | st.binary(max_size=20) | st.sampled_from(["__END__", '{"a": ' * 5000])
FRAMES = st.lists(OBJECTS | VALUES.map(json.dumps) | RAW, max_size=8)


class Alarm(logging.Handler):
    """Collects tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(record)


@pytest.fixture(scope="module")
def garbage_server(noise_folder: Path) -> Iterator[tuple[LiveServer, Alarm]]:
    alarm = Alarm()
    logging.getLogger().addHandler(alarm)
    with serving(noise_folder, frames=2) as live:
        yield live, alarm
    logging.getLogger().removeHandler(alarm)


@given(path=st.sampled_from(PATHS), frames=FRAMES, read=st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_frames_break_the_server(garbage_server: tuple[LiveServer, Alarm], path: str, frames: list[Any], read: bool) -> None:
    live, alarm = garbage_server
    with client(live, path) as socket, contextlib.suppress(ConnectionClosed):
        for frame in frames:
            socket.send_raw(frame)
            if read:
                with contextlib.suppress(TimeoutError):
                    socket.socket.recv(0.001)
    assert socket.closed[0] in (1000, 1006, 1008)
    assert not alarm.seen
    live.settle()


@pytest.mark.parametrize("path", PATHS)
def test_invalid_utf8_and_huge_integers_do_no_harm(garbage_server: tuple[LiveServer, Alarm], path: str) -> None:
    live, alarm = garbage_server
    with client(live, path) as socket, contextlib.suppress(ConnectionClosed):
        socket.socket.send(b"\xff\xfe", text=True)
        socket.rest()
    assert socket.closed[0] == 1007
    alarm.seen[:] = [record for record in alarm.seen if record.name != "uvicorn.error"]  # it says so itself, with a traceback
    with client(live, path) as socket, contextlib.suppress(ConnectionClosed):
        socket.send_raw('{"seed": ' + "9" * 5000 + "}")
        socket.send_raw('{"type": "x", "context_id": "\\ud83d", "transcript": "\\ud83d hello there.", "continue": false}')
    assert not alarm.seen
    live.settle()
