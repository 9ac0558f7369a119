"""The load generator against the real server: what it counts is what happened."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from live import LiveServer
from ws_client import recording

from orpheus_serving.bench.load import run_load
from orpheus_serving.bench.plan import Arrival, Load, Target
from orpheus_serving.cli import main

QUICK = ["--seconds", "1.5", "--ramp", "0.5", "--processes", "2", "--texts", "short"]


def speech_url(live: LiveServer) -> str:
    return f"{live.url}/v1/audio/speech"


def test_levels_end_in_a_table_a_file_and_a_page(
    live_server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "result.json", tmp_path / "report.html"
    command = ["bench", "--url", speech_url(live_server), "--levels", "1", "3", *QUICK]
    assert main([*command, "--gpu-price", "2.5", "--out", str(out), "--html", str(page)]) == 0
    result = json.loads(out.read_text())
    assert [level["level"] for level in result["levels"]] == [1, 3]
    for level in result["levels"]:
        assert level["requests"] > 0
        assert level["errors"] == {}
        assert 0 < level["ttfb_ms"]["p50"] <= level["ttfb_ms"]["p99"]
        assert level["ttfb_ms"]["p50"] <= level["first_speech_ms"]["p50"]
        assert level["audio_s"] == pytest.approx(6 * 2048 / 24_000, abs=0.01)  # what the engine's script says
        assert level["audio_s_per_s"] > 0
        assert level["cost_per_hour_of_speech"] > 0
        assert level["client"]["fresh_share"] == 0
        assert level["client"]["lag_ms"]["p99"] is not None
    assert {"date", "commit", "hardware", "versions", "command"} <= set(result)
    assert len(capsys.readouterr().out.strip().splitlines()) == 3
    assert page.read_text().startswith("<!doctype html>")


def test_the_native_protocol_gives_the_same_audio_as_http(
    live_server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ways side by side, as a peer would be measured, with a voice that a request names."""
    out = tmp_path / "result.json"
    urls = [
        "--url",
        speech_url(live_server),
        "--url",
        f"{live_server.ws_url}/tts/websocket",
        "--label",
        "post",
        "--label",
        "socket",
    ]
    assert main(["bench", *urls, "--voice", "hiss", "--levels", "2", *QUICK, "--out", str(out)]) == 0
    post, socket = json.loads(out.read_text())["levels"]
    assert (post["label"], post["transport"], socket["label"], socket["transport"]) == ("post", "http", "socket", "websocket")
    assert post["errors"] == socket["errors"] == {}
    assert post["audio_s"] == socket["audio_s"] > 0
    assert socket["requests"] > 0
    assert socket["client"]["fresh_share"] == 0
    assert "socket" in capsys.readouterr().out


def test_a_trace_is_replayed_and_what_comes_in_the_ramp_is_not_counted(live_server: LiveServer, tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "result.json"
    moments = [0.1, 0.2, 1.0, 1.0, 1.2, 1.4]
    trace.write_text("\n".join(json.dumps({"at": at, "text": f"Number {i}.", "voice": "noise"}) for i, at in enumerate(moments)))
    for url in (speech_url(live_server), f"{live_server.ws_url}/tts/websocket"):
        command = ["bench", "--url", url, "--trace", str(trace), "--levels", "2", "--ramp", "0.4", "--processes", "2"]
        assert main([*command, "--out", str(out)]) == 0
        (level,) = json.loads(out.read_text())["levels"]
        assert level["requests"] == 4  # at twice the pace the ramp hides what comes before 0.8 s
        assert level["errors"] == {}
        assert level["arrivals"] == "trace"
        assert 3.5 <= level["audio_s_per_s"] * level["seconds"] / level["audio_s"] <= 6.5  # 4, and what the ramp left over


def test_the_search_records_every_try_and_ends_in_poisson(
    live_server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    limits = ["--ttfb-limit", "60000", "--real-time-limit", "1"]  # which every level keeps
    command = ["bench", "--url", speech_url(live_server), "--search", "--levels", "1", "--most", "2", "--then-poisson", "100"]
    assert main([*command, *limits, *QUICK, "--out", str(out), "--html", str(tmp_path / "report.html")]) == 0
    result = json.loads(out.read_text())
    poisson = result["levels"][2]
    assert poisson["utterance"] == result["levels"][1]["audio_s"], "what a Poisson level means is not recorded"
    assert result["settings"]["load"]["utterance"] == poisson["utterance"], "drawing the page has changed the result"
    assert [(level["level"], level["arrivals"]) for level in result["levels"]] == [(1, "closed"), (2, "closed"), (2, "poisson")]
    assert result["searches"] == [{"label": "server", "arrivals": "closed", "highest": 2, "from": 1, "most": 2}]
    assert all(level["holds"] for level in result["levels"][:2])
    assert main([*command, "--ttfb-limit", "0.001", *QUICK, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["searches"][0]["highest"] == 0
    assert [level["level"] for level in result["levels"]] == [1]
    assert "TTFB p95" in result["levels"][0]["misses"][0]


def test_a_level_has_the_same_texts_whichever_levels_are_before_it(noise_folder: Path) -> None:
    load = ["--arrivals", "poisson", "--utterance", "0.5", "--seconds", "1", "--ramp", "0", "--processes", "1"]
    with recording(noise_folder) as (live, prompts):
        command = ["bench", "--url", speech_url(live), *load, "--levels"]
        assert main([*command, "3"]) == 0
        alone = prompts.take()
        assert main([*command, "1", "3"]) == 0
        after_another = prompts.take()
    assert alone[0] == after_another[0] == "Hello there."  # that somebody is there
    assert alone[1] in after_another


def test_a_wrong_address_or_key_is_said_before_the_load(live_server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    for url, said in (
        (f"{live_server.url}/v1/nothing", "status 404"),
        (f"{live_server.ws_url}/v1/nothing", "status 4"),
        ("http://127.0.0.1:9/v1/audio/speech", "http://127.0.0.1:9"),
        ("ws://127.0.0.1:9/tts/websocket", "ws://127.0.0.1:9"),
    ):
        assert main(["bench", "--url", url]) == 1
        error = capsys.readouterr().err
        assert "--url: " in error
        assert said in error
    assert main(["bench", "--url", speech_url(live_server), "--voice", "nobody"]) == 1
    assert "no voice 'nobody'" in capsys.readouterr().err
    assert main(["bench", "--url", f"{live_server.ws_url}/tts/websocket", "--voice", "nobody"]) == 1
    assert "no voice 'nobody'" in capsys.readouterr().err
    assert main(["bench", "--url", speech_url(live_server), "--body", '{"response_format": "mp3"}']) == 1
    assert "answered with audio/mpeg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--levels", "0"], "--levels: must be above 0"),
        (["--levels", "1.5"], "--levels: streams come in whole numbers"),
        (["--levels", "many"], "--levels: must be a number"),
        (["--seconds", "-1"], "--seconds: must be above 0"),
        (["--seconds", "nan"], "--seconds: must be above 0"),
        (["--ramp", "-1"], "--ramp: must be 0 or more"),
        (["--processes", "0"], "--processes: must be a whole number from 1"),
        (["--body", "[]"], "--body: must be a JSON object"),
        (["--body", "{"], "--body: is not JSON"),
        (["--real-time-limit", "101"], "--real-time-limit: must be a percentage"),
        (["--url", "127.0.0.1:8000"], "--url: must begin with http://"),
        (["--url", "http://a/", "--label", "a", "--label", "b"], "--label: 1 different names are needed"),
        (["--url", "http://a/", "--url", "http://a/"], "--label: 2 different names are needed"),
        (["--trace", "missing.jsonl"], "--trace: missing.jsonl"),
        (["--trace", "TRACE"], "--ramp: no request of the trace comes after 10 s"),
        (["--trace", "TRACE", "--search"], "--search: works with"),
        (["--trace", "TRACE", "--arrivals", "poisson"], "--arrivals: a --trace says itself"),
        (["--then-poisson", "80"], "--then-poisson: goes with --search"),
        (["--out", "missing/result.json"], "--out: must be a file in a folder that exists"),
        (["--html", "."], "--html: must be a file"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 1, "text": "Hello"}')
    arguments = [str(trace) if argument == "TRACE" else argument for argument in arguments]
    try:
        status = main(["bench", *arguments])
    except SystemExit as left:  # argparse's own way
        status = left.code
    assert status in (1, 2)
    assert said in capsys.readouterr().err


# ------------------------------------------------------------------------------------- a server that is not ours, and odd


@contextmanager
def odd_server(answer: Any) -> Iterator[str]:
    """An HTTP server in a thread; `answer(writer)` is awaited for every POST, after its body has come. Yields its address."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = next((line for line in head.split(b"\r\n") if line.startswith(b"content-length:")), b": 0")
                await reader.readexactly(int(length.split(b":")[1]))
                if head.startswith(b"post"):
                    await answer(writer)
                else:
                    writer.write(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # it has left, or the test is over
        finally:
            writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/speak"
    finally:

        async def end() -> None:
            server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def whole(kind: str, content: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


SPOKEN = b"\x00\x00\x00\x20" * 1200  # 0.1 s


def test_slow_answers_delay_no_arrival_and_count_from_it() -> None:
    """Every request has to have come before the first is answered: a client that waited for answers would never be done."""
    moments = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    came: list[Any] = []
    all_came = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        if len(came) == len(moments):
            all_came.set()
        await all_came.wait()
        writer.write(whole("audio/pcm", SPOKEN))

    with odd_server(answer) as url:
        trace = tuple(Arrival(at, "Hello.") for at in moments)
        load = Load(1, "trace", seconds=60, ramp=0, processes=2, trace=trace)
        measured = run_load(Target(url, timeout=20), load)
    outcomes = sorted((o for seen in measured.seen for o in seen.outcomes), key=lambda o: o.due)
    assert [o.due for o in outcomes] == moments
    assert [o.error for o in outcomes] == [None] * len(moments)
    for outcome in outcomes:
        assert outcome.ttfb is not None
        assert outcome.ttfb >= moments[-1] - outcome.due  # nothing was answered before the last had come
    assert sum(len(seen.outcomes) > 0 for seen in measured.seen) == 2  # both processes had their share


def test_a_body_cut_short_a_silent_one_and_a_wrong_one_are_errors() -> None:
    answers = [
        whole("audio/pcm", SPOKEN),
        b"HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\nContent-Length: 9000\r\n\r\n" + SPOKEN,
        whole("audio/pcm", b""),
        whole("application/json", b'{"error": "no"}'),
        b"HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nbusy",
        whole("audio/pcm", SPOKEN[:-1]),
    ]
    left = list(answers)

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0))
        if len(answers) - len(left) == 2:
            raise ConnectionError  # in the middle of the body

    with odd_server(answer) as url:
        trace = tuple(Arrival(0.2 * i, "Hello.") for i in range(len(answers)))
        measured = run_load(Target(url), Load(1, "trace", seconds=60, ramp=0, processes=1, trace=trace))
    (seen,) = measured.seen
    assert [o.error for o in sorted(seen.outcomes, key=lambda o: o.due)] == [
        None,
        "RemoteProtocolError",
        "no audio",
        "answered with application/json",
        "status 429",
        "half a sample at the end",
    ]
    assert seen.details["status 429"] == "busy"


def test_a_server_that_never_answers_is_given_up_and_makes_the_command_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After the first look: the load then finds no answer at all."""
    looked: list[bool] = []

    async def answer(writer: asyncio.StreamWriter) -> None:
        if looked:
            await asyncio.Event().wait()
        looked.append(True)
        writer.write(whole("audio/pcm", SPOKEN))

    with odd_server(answer) as url:
        load = ["--levels", "2", "--timeout", "1", "--processes", "1", "--seconds", "0.5", "--ramp", "0"]
        assert main(["bench", "--url", url, *load]) == 1
    said = capsys.readouterr()
    assert "no request was answered: server at 2" in said.err
    assert "x timeout" in said.err
