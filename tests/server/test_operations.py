"""Probes, metrics, logs, traces, draining: what whoever runs the server sees of it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.server
import io
import json
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from live import PATIENCE, LiveServer, serving
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from process import Process
from test_grpc import Riva, asked, beside
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from orpheus_serving import codec
from orpheus_serving.codec import StreamingDecoder
from orpheus_serving.server import logs
from orpheus_serving.server.grpc.riva_tts_pb2 import SynthesizeSpeechRequest
from orpheus_serving.server.grpc.riva_tts_pb2_grpc import RivaSpeechSynthesisStub
from orpheus_serving.server.logs import JsonFormatter
from orpheus_serving.server.serve import allow_files

BODY = {"input": "The secret word is xylophone.", "response_format": "pcm", "seed": 1}


def speak(live: LiveServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{live.url}/v1/audio/speech", json=BODY | fields)


def value(metrics: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    wanted = {f'{k}="{v}"' for k, v in labels.items()}
    total = 0.0
    for line in metrics.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if match and match[1] == name and wanted <= set((match[2] or "").split(",")):
            total += float(match[3])
    return total


def test_probes(live_server: LiveServer) -> None:
    assert httpx.get(f"{live_server.url}/health/live").json() == {"status": "live"}
    for path in ("/health", "/health/ready"):
        ready = httpx.get(f"{live_server.url}{path}")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")


def test_metrics_count_what_was_spoken(noise_folder: Path) -> None:
    with serving(noise_folder, frames=6) as live:
        answer = speak(live)
        assert speak(live, voice="nobody").status_code == 400
        live.settle()
        text = httpx.get(f"{live.url}/metrics").text
        seconds = len(answer.content) / 2 / 24000
        assert value(text, "orpheus_requests_total", protocol="openai", outcome="complete") == 1
        assert value(text, "orpheus_requests_total", protocol="openai", outcome="invalid") == 1
        assert value(text, "orpheus_tokens_total") == 43
        assert value(text, "orpheus_dropped_tokens_total") == 0
        assert value(text, "orpheus_audio_seconds_total") == pytest.approx(seconds)
        assert value(text, "orpheus_codec_batch_frames_sum") == 6
        assert value(text, "orpheus_time_to_first_byte_seconds_count") == 1
        assert value(text, "orpheus_time_to_first_speech_seconds_count") == 1
        assert value(text, "orpheus_chunk_lateness_seconds_count") >= 2
        first_byte = value(text, "orpheus_time_to_first_byte_seconds_sum")
        assert first_byte <= value(text, "orpheus_time_to_first_speech_seconds_sum") <= first_byte + seconds
        assert value(text, "orpheus_active_streams") == value(text, "orpheus_queued_streams") == 0


def test_the_clock_stands_while_a_client_writes(noise_folder: Path) -> None:
    """A client that thinks for a second before its first words end, and longer than they last before the next ones."""
    thinks = 1.0
    with serving(noise_folder, frames=3) as live, connect(f"{live.ws_url}/tts/websocket") as ws:

        def write(transcript: str, more: bool = True) -> None:
            message = {"context_id": "a", "transcript": transcript, "continue": more, "max_buffer_delay_ms": 5_000}
            ws.send(json.dumps(message | {"add_phrase_timestamps": True}))

        def hear(kind: str) -> None:
            while json.loads(ws.recv(PATIENCE))["type"] != kind:
                pass

        write("Hello")
        live.until(lambda: live.service.active, "the speech waits for its text")
        time.sleep(thinks)
        last_words = time.monotonic()
        write(" there, friend. And")
        hear("chunk")
        answered = time.monotonic() - last_words
        hear("phrase_timestamps")
        time.sleep(thinks)
        write(" good bye.", more=False)
        hear("done")
        live.settle()
        text = live.call(live.service.metrics.render).decode()
    assert value(text, "orpheus_time_to_first_byte_seconds_count") == 1
    assert value(text, "orpheus_time_to_first_byte_seconds_sum") < answered + thinks / 2
    assert value(text, "orpheus_time_to_first_speech_seconds_sum") < answered + thinks / 2 + 0.25
    assert value(text, "orpheus_chunk_lateness_seconds_count") >= 1
    assert value(text, "orpheus_chunk_lateness_seconds_sum") < (thinks - 0.25) / 2


def test_who_hears_it_slower_runs_dry_later(noise_folder: Path) -> None:
    """Half a second of samples plays for two at a quarter of the speed; the rest comes after one."""
    with serving(noise_folder, frames=12, engine={"paced": True}) as live, ThreadPoolExecutor(1) as client:
        answer = client.submit(speak, live, speed=0.25)
        live.until(lambda: live.engine.active, "it is spoken")
        live.call(live.engine.advance, 6)
        live.until(
            lambda: value(live.service.metrics.render().decode(), "orpheus_time_to_first_byte_seconds_count"), "it is heard"
        )
        time.sleep(1)
        live.call(live.engine.advance, 20)
        assert answer.result(PATIENCE).status_code == 200
        text = live.call(live.service.metrics.render).decode()
    assert value(text, "orpheus_chunk_lateness_seconds_count") >= 1
    assert value(text, "orpheus_chunk_lateness_seconds_sum") < 0.2


def test_gauges_show_what_runs(noise_folder: Path) -> None:
    with serving(noise_folder, frames=8, engine={"paced": True}) as live:
        live.call(live.engine.advance, 4)
        with httpx.stream("POST", f"{live.url}/v1/audio/speech", json=BODY):
            assert value(httpx.get(f"{live.url}/metrics").text, "orpheus_active_streams") == 1
        live.settle()
        text = httpx.get(f"{live.url}/metrics").text
        assert value(text, "orpheus_requests_total", outcome="cancelled") == 1
        assert value(text, "orpheus_active_streams") == 0


@contextlib.contextmanager
def logged() -> Iterator[io.StringIO]:
    """Everything that is logged meanwhile, as the server writes it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(lambda record: not record.name.startswith("http"))  # the test's own client
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def test_logs_name_requests_and_never_their_text(noise_folder: Path) -> None:
    with logged() as stream, serving(noise_folder) as live:
        ident = speak(live).headers["x-request-id"]
        speak(live, voice="nobody")
        httpx.get(f"{live.url}/v1/models?api_key=hidden")
        httpx.get(f"{live.url}/health")
        live.settle()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    mine = [line for line in lines if line.get("request_id") == ident]
    assert [line["message"] for line in mine] == ["speech complete", "request"]
    spoken, request = mine
    assert (spoken["protocol"], spoken["outcome"], spoken["characters"]) == ("openai", "complete", len(BODY["input"]))
    assert (request["method"], request["path"], request["status"]) == ("POST", "/v1/audio/speech", 200)
    assert request["bytes"] > 3 * 4096
    assert "xylophone" not in stream.getvalue()
    assert "hidden" not in stream.getvalue()
    assert "/health" not in stream.getvalue()


@pytest.mark.parametrize("engine", [{"fail_after": 7}, {"script": lambda *_: []}])
def test_failures_are_logged_without_text_too(noise_folder: Path, engine: dict[str, Any]) -> None:
    with logged() as stream, serving(noise_folder, frames=0, engine=engine) as live:
        assert speak(live).status_code == 502
        live.settle()
    assert '"outcome": "error"' in stream.getvalue()
    assert "xylophone" not in stream.getvalue()


@pytest.mark.parametrize(
    "requests",
    [
        [asked("Good morning.", voice_name="noise"), asked("And more.", voice_name="hiss")],
        [asked("Good morning."), asked("word " * 100)],
        [asked("!?"), asked("...")],
    ],
)
def test_a_fault_of_the_client_midway_is_no_error_of_the_server(noise_folder: Path, requests: list[Any]) -> None:
    with logged() as stream, serving(noise_folder, settings={"max_text": 100}) as live, beside(live) as riva:
        with pytest.raises(grpc.RpcError) as refused:
            list(riva.stub.SynthesizeOnline(iter(requests), timeout=PATIENCE))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        live.settle()
        text = live.call(live.service.metrics.render).decode()
    assert value(text, "orpheus_requests_total", outcome="invalid") == value(text, "orpheus_requests_total") == 1
    levels = {line["message"]: line["level"] for line in map(json.loads, stream.getvalue().splitlines())}
    assert levels["speech invalid"] == "info"


def test_text_is_logged_if_asked(noise_folder: Path) -> None:
    with logged() as stream, serving(noise_folder, log_text=True) as live:
        speak(live)
        with connect(f"{live.ws_url}/tts/websocket") as ws:
            ws.send(json.dumps({"context_id": "a", "transcript": BODY["input"]}))
            while not json.loads(ws.recv(PATIENCE))["done"]:
                pass
        live.settle()
    spoken = [fields for fields in map(json.loads, stream.getvalue().splitlines()) if fields["message"] == "speech complete"]
    assert [fields["text"] for fields in spoken] == [BODY["input"]] * 2
    assert [fields["characters"] for fields in spoken] == [len(BODY["input"])] * 2


def test_the_formatter_writes_one_line_whatever_is_in_it() -> None:
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "two\nlines %s", ("\u2028",), None)
    record.fields = {"odd": {1, 2}}
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == "two\nlines \u2028"
    assert logs.request_id.get() is None


def test_a_trace_has_a_span_of_every_speech(noise_folder: Path) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    trace = "0af7651916cd43dd8448eb211c80319c"
    with serving(noise_folder) as live:
        live.service._tracer = provider.get_tracer("test")
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        httpx.post(f"{live.url}/v1/audio/speech", json=BODY, headers=headers)
        live.settle()
    (span,) = memory.get_finished_spans()
    assert span.name == "speech openai"
    assert f"{span.context.trace_id:032x}" == trace
    assert span.attributes["speech.outcome"] == "complete"
    assert "xylophone" not in str(span.attributes)


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes traces as OTLP over HTTP. `received`: the requests, decoded."""

    received: list[Any]

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        self.received.append(trace_service_pb2.ExportTraceServiceRequest.FromString(raw))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Where to send traces, and what has been received there."""
    received: list[Any] = []
    handler = type("Handler", (Collector,), {"received": received})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
        server.shutdown()


def test_what_leaves_the_process_has_request_ids_and_nothing_that_is_secret(
    noise_folder: Path, collector: tuple[str, list[Any]]
) -> None:
    """The whole server, its log and a collector of traces: no word that is spoken, no key, in any of them."""
    endpoint, received = collector
    environment = {"ORPHEUS_SERVER_OTEL_ENDPOINT": endpoint, "ORPHEUS_SERVER_API_KEYS": "hidden"}
    trace = "0af7651916cd43dd8448eb211c80319c"
    with Process.serve(noise_folder, "--grpc-port", "0", **environment) as server:
        grpc_port = server.until("listening for gRPC")["port"]
        url = server.url()
        headers = {"Authorization": "Bearer hidden", "X-Request-Id": "my-request-7"}
        with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE) as client:
            while client.get("/health/ready").status_code != 200:
                pass
            assert client.post("/v1/audio/speech", json=BODY | {"max_tokens": 100}).status_code == 200
            assert client.post("/v1/audio/speech", json=BODY | {"voice": "nobody"}).status_code == 400
        socket_url = url.replace("http", "ws") + "/tts/websocket?api_key=hidden"
        with connect(socket_url, additional_headers={"X-Request-Id": "my-request-8"}) as ws:
            message = {"context_id": "a", "transcript": BODY["input"], "max_tokens": 50}
            ws.send(json.dumps(message))
            while not json.loads(ws.recv(PATIENCE))["done"]:
                pass
        metadata = (
            ("authorization", "Bearer hidden"),
            ("x-request-id", "my-request-9"),
            ("traceparent", f"00-{trace}-b7ad6b7169203331-01"),
        )
        asked = SynthesizeSpeechRequest(text=BODY["input"], custom_configuration={"max_tokens": "50"})
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            answer = RivaSpeechSynthesisStub(channel).Synthesize(asked, metadata=metadata, timeout=PATIENCE)
        assert answer.id.value == "my-request-9"
        server.terminate()
        assert server.end() == 0
    scopes = [scope for request in received for resource in request.resource_spans for scope in resource.scope_spans]
    spans = [span for scope in scopes for span in scope.spans]
    shown = {span.name: {pair.key: pair.value for pair in span.attributes} for span in spans if span.status.code == 0}
    assert sorted(span.name for span in spans) == ["speech grpc", "speech openai", "speech openai", "speech websocket"]
    assert shown["speech openai"]["speech.request_id"].string_value == "my-request-7"
    assert shown["speech websocket"]["speech.request_id"].string_value == "my-request-8"
    assert shown["speech websocket"]["speech.outcome"].string_value == "length"
    assert shown["speech grpc"]["speech.request_id"].string_value == "my-request-9"
    assert [span.name for span in spans if span.trace_id.hex() == trace] == ["speech grpc"]
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in spans)
    resources = {pair.key: pair.value.string_value for pair in received[0].resource_spans[0].resource.attributes}
    assert resources["service.name"] == "orpheus-serving"
    (upgrade,) = [fields for fields in map(json.loads, server.lines) if fields.get("path") == "/tts/websocket"]
    assert upgrade["request_id"] == "my-request-8"
    assert upgrade["bytes"] > 1000
    for secret in ("xylophone", "hidden"):
        assert secret not in str(received)
        assert secret not in "".join(server.lines)


def test_draining_lets_streams_finish_and_takes_no_new_ones(noise_folder: Path) -> None:
    with serving(noise_folder, frames=8, engine={"paced": True}) as live:
        live.call(live.engine.advance, 4)
        with httpx.stream("POST", f"{live.url}/v1/audio/speech", json=BODY) as running:
            drained = asyncio.run_coroutine_threadsafe(live.service.drain(), live.loop)
            live.until(lambda: live.service.state == "draining")
            assert httpx.get(f"{live.url}/health/ready").status_code == 503
            assert httpx.get(f"{live.url}/v1/models/model").status_code == 503
            assert httpx.get(f"{live.url}/health/live").status_code == 200
            refused = speak(live)
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            assert not drained.done()
            live.call(live.engine.advance, 20)
            assert len(running.read()) > 4 * 2048
        assert drained.result(PATIENCE) is True
        live.settle()


def test_draining_gives_up_after_its_timeout(noise_folder: Path) -> None:
    with serving(noise_folder, frames=8, engine={"paced": True}, drain_timeout=0.1) as live:
        live.call(live.engine.advance, 4)
        with httpx.stream("POST", f"{live.url}/v1/audio/speech", json=BODY):
            assert live.run(live.service.drain()) is False


def not_serving(live: LiveServer, riva: Riva) -> None:
    """Every probe says no, that of the process too, so that somebody restarts it; and so does a request."""
    ready = httpx.get(f"{live.url}/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "failed")
    assert httpx.get(f"{live.url}/v1/models/model").status_code == 503
    health = health_pb2_grpc.HealthStub(riva.channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert httpx.get(f"{live.url}/health/live").status_code == 503
    assert speak(live).status_code == 503


def test_an_engine_that_has_died_is_not_ready(noise_folder: Path) -> None:
    with serving(noise_folder) as live, beside(live) as riva:
        assert httpx.get(f"{live.url}/health/ready").status_code == 200
        live.engine.failure = "the GPU fell off the bus"
        not_serving(live, riva)


def test_a_codec_that_has_died_is_not_ready(noise_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = threading.Event()

    class Fragile(StreamingDecoder):
        def step(self, rows: Any) -> Any:
            if lost.is_set():
                raise RuntimeError("the GPU fell off the bus")
            return super().step(rows)

    monkeypatch.setattr(codec, "StreamingDecoder", Fragile)
    with serving(noise_folder) as live, beside(live) as riva:
        assert speak(live).status_code == 200
        lost.set()
        assert speak(live).status_code == 502
        not_serving(live, riva)


def test_sigterm_ends_the_process_when_its_streams_have(noise_folder: Path) -> None:
    with Process.serve(noise_folder) as server:
        url = server.url()
        with httpx.Client(base_url=url, timeout=30) as client:
            while client.get("/health/ready").status_code != 200:
                pass
            body = BODY | {"input": "One short sentence here. " * 40, "max_tokens": 300}
            with client.stream("POST", "/v1/audio/speech", json=body) as response:
                pieces = response.iter_raw()
                heard = len(next(pieces))
                server.terminate()
                server.until("draining")
                heard += sum(map(len, pieces))  # raises if the body were cut off
            assert heard > 24000
        assert server.end() == 0, "".join(server.lines)
    assert '"drained"' in "".join(server.lines)


def test_while_the_model_loads_the_process_answers_and_can_be_ended(noise_folder: Path) -> None:
    """Alive, not ready, and requests are told to come back. A thread that loads ends at the second signal."""
    script = Path(__file__).parent / "real_time.py"
    with Process([sys.executable, str(script), str(noise_folder), "6", "1", "forever"]) as server:
        url = server.url()
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            for _ in range(3):
                assert client.get("/health/live").json() == {"status": "live"}
                waiting = client.get("/health/ready")
                assert (waiting.status_code, waiting.json()["status"]) == (503, "starting")
            for path in ("/v1/audio/speech", "/v1/models/model:predict"):
                refused = client.post(path, json={"prompt": "Hello."})
                assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            assert client.get("/").status_code == client.get("/v1/audio/voices").status_code == 200
        with pytest.raises(InvalidStatus) as upgrade, connect(url.replace("http", "ws") + "/tts/websocket"):
            pass
        assert upgrade.value.response.status_code == 503
        server.terminate()
        server.until("the model is still being loaded; the process ends when that is over, or at a second signal")
        server.terminate()
        assert server.end() == 1


def test_a_server_for_everybody_refuses_to_start_without_keys(noise_folder: Path) -> None:
    server = Process.serve(noise_folder, "--host", "0.0.0.0")
    assert server.end() == 1
    assert "ORPHEUS_SERVER_API_KEYS" in "".join(server.lines)


def test_connections_are_not_bounded_by_the_usual_limit_on_files() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        allow_files(600)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (600, before[1])
        allow_files(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 600, "never lower"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_port_that_is_taken_is_said_in_one_line(noise_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        server = Process.serve(noise_folder, "--grpc-port", port, ORPHEUS_SERVER_STAL_TIMEOUT="5")
        assert server.end() == 1
    assert f"cannot listen on 127.0.0.1:{port}" in server.lines[-1]
    assert "Traceback" not in "".join(server.lines)
    assert "ORPHEUS_SERVER_STAL_TIMEOUT" in server.lines[0], "a misspelt setting should be told"


def test_a_model_that_cannot_be_loaded_ends_the_process(noise_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in noise_folder.iterdir():
        if path.name != "model.safetensors":
            (broken / path.name).symlink_to(path)
    (broken / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    server = Process.serve(broken)
    assert server.end() == 1
    assert "could not be loaded" in "".join(server.lines)
