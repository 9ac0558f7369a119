"""gRPC over real sockets: a grpcio client against the server's own port, on the event loop of the HTTP application."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import grpc
import numpy as np
import pytest
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from live import LiveServer, serving

from orpheus_serving.audio.formats import pcm16
from orpheus_serving.request import SpeechRequest
from orpheus_serving.server.grpc import start_grpc
from orpheus_serving.server.grpc.audio import alaw, mulaw
from orpheus_serving.server.grpc.riva_common_pb2 import ALAW, FLAC, LINEAR_PCM, MULAW, OGGOPUS
from orpheus_serving.server.grpc.riva_tts_pb2 import RivaSynthesisConfigRequest, SynthesizeSpeechRequest, SynthesizeSpeechResponse
from orpheus_serving.server.grpc.riva_tts_pb2_grpc import RivaSpeechSynthesisStub

ROOT = Path(__file__).parents[2]
NAME = "nvidia.riva.tts.RivaSpeechSynthesis"
RATE = 24_000
SOON = 0.2  # seconds within which nothing is left of a client that has gone
PATIENCE = 30.0


class Riva:
    """A gRPC server beside a live server, and a client of it."""

    def __init__(self, live: LiveServer) -> None:
        self.live = live
        self.server = live.run(start_grpc(live.service, "127.0.0.1", 0))
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.server.port}")
        self.stub = RivaSpeechSynthesisStub(self.channel)

    def stop(self) -> None:
        self.channel.close()
        self.live.run(self.server.stop(None))

    def whole(self, text: str = "Good morning.", **fields: Any) -> SynthesizeSpeechResponse:
        return self.stub.Synthesize(asked(text, **fields), timeout=PATIENCE)

    def online(self, *texts: str, **fields: Any) -> Any:
        """The call: iterate it for responses."""
        return self.stub.SynthesizeOnline(iter([asked(text, **fields) for text in texts]), timeout=PATIENCE)

    def held(self) -> bool:
        """Is anything of any stream left?"""
        live = self.live
        return bool(live.service.active or live.service.queued or live.engine.active or live.service.synthesizer.active)


def asked(text: str = "Good morning.", seed: int | None = 7, **fields: Any) -> SynthesizeSpeechRequest:
    request = SynthesizeSpeechRequest(text=text, **fields)
    if seed is not None:
        request.custom_configuration["seed"] = str(seed)
    return request


@contextmanager
def beside(live: LiveServer) -> Iterator[Riva]:
    riva = Riva(live)
    try:
        yield riva
    finally:
        riva.stop()
    live.settle()


@pytest.fixture
def riva(live_server: LiveServer) -> Iterator[Riva]:
    with beside(live_server) as riva:
        yield riva


@pytest.fixture
def own(noise_folder: Path) -> Iterator[Callable[..., Any]]:
    """Makes servers with options of their own."""

    @contextmanager
    def make(**arguments: Any) -> Iterator[Riva]:
        with serving(noise_folder, **arguments) as live, beside(live) as riva:
            yield riva

    return make


def spoken(riva: Riva, text: str = "Good morning.", **fields: Any) -> bytes:
    """PCM of the synthesizer itself, without any protocol."""

    async def collect() -> bytes:
        speech = riva.live.service.synthesizer.speak(SpeechRequest(prompt=text, seed=7, **fields))
        return b"".join([pcm16(samples) async for samples in speech])

    return riva.live.run(collect())


def failure(call: Callable[[], Any]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def detail(error: Any, kind: type[Any]) -> Any:
    """The rich error of a failed call."""
    status = Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    found = kind()
    assert status.details[0].Unpack(found)
    return found


def decoded(data: bytes) -> tuple[np.ndarray, int]:
    """Samples in -1 .. 1 and rate of a file, by FFmpeg."""
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
        resampler = av.AudioResampler("flt", "mono", frames[0].sample_rate)
        parts = [part.to_ndarray()[0] for frame in [*frames, None] for part in resampler.resample(frame)]
        return np.concatenate(parts), frames[0].sample_rate


# ---------------------------------------------------------------------------------------------------- the generated code


def test_the_generated_code_is_what_the_proto_files_make() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/build_grpc.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run python scripts/build_grpc.py\n{done.stdout}{done.stderr}"


def test_stale_generated_code_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "packages/orpheus_serving/server/grpc"
    shutil.copytree(ROOT / "packages/orpheus_serving/server/grpc", folder)
    script = shutil.copy(ROOT / "scripts/build_grpc.py", (tmp_path / "scripts").mkdir() or tmp_path / "scripts")
    proto = folder / "riva_tts.proto"
    proto.write_text(proto.read_text("utf-8").replace("string voice_name = 5", "string voice_name = 55"), "utf-8")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "riva_tts_pb2.py" in done.stdout
    assert "riva_common_pb2" not in done.stdout


# --------------------------------------------------------------------------------------------------------------- speech


def test_a_text_is_spoken_whole(riva: Riva) -> None:
    answer = riva.whole(
        "Good  morning, Dr. Who.", encoding=LINEAR_PCM, sample_rate_hz=RATE, voice_name="hiss", id={"value": "a-1"}
    )
    assert answer.audio == spoken(riva, "Good  morning, Dr. Who.", voice="hiss")
    assert answer.id.value == "a-1"
    assert answer.meta.text == "Good  morning, Dr. Who."
    assert answer.meta.processed_text == "Good morning, Dr. Who."


def test_a_text_is_spoken_while_it_is_made(own: Callable[..., Any]) -> None:
    with own(frames=20, engine={"paced": True}) as riva:
        call = riva.online("Good morning.", id={"value": "b-2"})
        riva.live.call(riva.live.engine.advance, 10)
        first = next(call)
        assert first.audio
        assert first.id.value == "b-2"
        assert riva.held()  # sound has come, and the model is not done
        riva.live.call(riva.live.engine.advance, 11)
        audio = first.audio + b"".join(answer.audio for answer in call)
        riva.live.call(riva.live.engine.advance, 21)
        assert audio == spoken(riva)
        assert call.code() is grpc.StatusCode.OK


def test_every_message_of_a_stream_is_spoken_at_once_and_in_order(own: Callable[..., Any]) -> None:
    with own() as riva:

        def texts() -> Iterator[SynthesizeSpeechRequest]:
            yield asked("One sentence")  # no full stop: whole all the same
            riva.live.until(lambda: riva.live.engine.closed and not riva.live.engine.active, "the first text was spoken")
            yield asked("", seed=None)  # nothing to say
            yield asked("And another.", seed=None)

        received = [answer.audio for answer in riva.stub.SynthesizeOnline(texts(), timeout=PATIENCE)]
        one = len(spoken(riva, "One sentence"))
        assert len(b"".join(received)) > one
        assert len(riva.live.engine.closed) == 3  # two texts, and the one to compare with


def test_a_client_that_declares_one_request_is_served_too(riva: Riva) -> None:
    method = riva.channel.unary_stream(
        f"/{NAME}/SynthesizeOnline",
        request_serializer=SynthesizeSpeechRequest.SerializeToString,
        response_deserializer=SynthesizeSpeechResponse.FromString,
    )
    assert b"".join(answer.audio for answer in method(asked(), timeout=PATIENCE)) == spoken(riva)


def test_messages_of_a_stream_are_small(own: Callable[..., Any]) -> None:
    with own(frames=60) as riva:
        sizes = [len(answer.audio) for answer in riva.online("Good morning.")]
        assert max(sizes) <= 32 * 1024
        assert all(size and size % 2 == 0 for size in sizes)


def test_without_a_rate_or_an_encoding_it_is_pcm_at_the_models_rate(riva: Riva) -> None:
    assert riva.whole().audio == spoken(riva)


@pytest.mark.parametrize(
    ("rate", "encoding", "width"), [(22_050, LINEAR_PCM, 2), (8_000, MULAW, 1), (8_000, ALAW, 1), (48_000, LINEAR_PCM, 2)]
)
def test_other_rates_are_resampled(riva: Riva, rate: int, encoding: int, width: int) -> None:
    native = len(spoken(riva)) // 2
    fields = {"sample_rate_hz": rate, "encoding": encoding}
    whole = riva.whole(**fields).audio
    assert len(whole) / width == pytest.approx(native * rate / RATE, abs=2)
    assert b"".join(answer.audio for answer in riva.online("Good morning.", **fields)) == whole


@pytest.mark.parametrize(
    ("encoding", "rate", "likeness"), [(FLAC, RATE, 0.9999), (FLAC, 16_000, 0), (OGGOPUS, RATE, 0), (OGGOPUS, 16_000, 0)]
)
def test_compressed_audio_decodes(riva: Riva, encoding: int, rate: int, likeness: float) -> None:
    native = np.frombuffer(spoken(riva), "<i2") / 32_768
    for data in (
        riva.whole(encoding=encoding, sample_rate_hz=rate).audio,
        b"".join(answer.audio for answer in riva.online("Good morning.", encoding=encoding, sample_rate_hz=rate)),
    ):
        samples, found = decoded(data)
        assert len(samples) / found == pytest.approx(len(native) / RATE, abs=0.03)
        if encoding == FLAC:
            assert found == rate
        if likeness:
            assert np.corrcoef(samples, native)[0, 1] > likeness


@pytest.mark.parametrize(("encode", "codec"), [(mulaw, "pcm_mulaw"), (alaw, "pcm_alaw")])
def test_g711_is_what_ffmpeg_reads(encode: Callable[[Any], bytes], codec: str) -> None:
    pcm = np.arange(-32_767, 32_768)
    decoder = av.CodecContext.create(codec, "r")
    decoder.sample_rate, decoder.layout = 8_000, "mono"
    heard = np.concatenate([frame.to_ndarray()[0] for frame in decoder.decode(av.Packet(encode(pcm / 32_767)))]).astype(int)
    # Sixteen steps in every octave: half a step is a thirty-second of where it is. Around zero the steps are up to 16 wide.
    assert np.all(np.abs(heard - pcm) <= np.maximum((np.abs(pcm) + 132) / 32, 8) + 1)
    assert np.all(np.diff(heard) >= 0)


def test_the_configuration_names_voices_languages_and_the_rate(riva: Riva) -> None:
    config = riva.stub.GetRivaSynthesisConfig(RivaSynthesisConfigRequest()).model_config
    assert len(config) == 1
    parameters = dict(config[0].parameters)
    assert parameters["subvoices"] == "noise:0,hiss:1"
    assert parameters["language_code"] == "en-US"
    assert parameters["sample_rate"] == str(RATE)
    assert " " not in parameters["voice_name"]
    whole_name = f"{parameters['voice_name']}.hiss"
    assert riva.whole(voice_name=whole_name, language_code="en-US").audio == spoken(riva, voice="hiss")
    assert not riva.stub.GetRivaSynthesisConfig(RivaSynthesisConfigRequest(model_name="another")).model_config


def test_what_pipecat_asks_for_when_nobody_chose_a_voice_is_the_default_voice(riva: Riva) -> None:
    assert riva.whole(voice_name="Magpie-Multilingual.EN-US.Aria", language_code="en-US").audio == spoken(riva)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("text", asked("")),
        ("text", asked("!?")),
        ("text", asked("a" * 20_001)),
        ("voice_name", asked(voice_name="nobody")),
        ("voice_name", asked(voice_name="v" * 101)),
        ("language_code", asked(language_code="de-DE")),
        ("encoding", asked(encoding=99)),
        ("sample_rate_hz", asked(sample_rate_hz=-1)),
        ("sample_rate_hz", asked(sample_rate_hz=96_000)),
        ("sample_rate_hz", asked(encoding=OGGOPUS, sample_rate_hz=22_050)),
        ("zero_shot_data", asked(zero_shot_data={"audio_prompt": b"RIFF"})),
        ("custom_dictionary", asked(custom_dictionary="NVIDIA  ɛnvɪdiːʌ")),
        ("custom_configuration.temperature", asked(custom_configuration={"temperature": "hot"})),
        ("custom_configuration.temperature", asked(custom_configuration={"temperature": "nan"})),
        ("custom_configuration.top_k", asked(custom_configuration={"top_k": "-1"})),
        ("custom_configuration.seed", asked(seed=None, custom_configuration={"seed": "1.5"})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_cannot_be_spoken_is_refused_by_the_name_of_its_field(
    riva: Riva, field: str, request_: SynthesizeSpeechRequest, streamed: bool
) -> None:
    def call() -> Any:
        if streamed:
            return list(riva.stub.SynthesizeOnline(iter([request_]), timeout=PATIENCE))
        return riva.stub.Synthesize(request_, timeout=PATIENCE)

    error = failure(call)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(f"{field}: ")
    assert detail(error, BadRequest).field_violations[0].field == field


def test_unknown_configuration_is_ignored(riva: Riva) -> None:
    assert riva.whole(custom_configuration={"exaggeration_factor": "1.5"}).audio == spoken(riva)


def test_a_stream_without_a_request_is_refused(riva: Riva) -> None:
    error = failure(lambda: list(riva.online()))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(("field", "value"), [("voice_name", "hiss"), ("sample_rate_hz", 8_000), ("custom_dictionary", "a  b")])
def test_a_stream_keeps_what_its_first_message_asked_for(riva: Riva, field: str, value: Any) -> None:
    requests = [asked(voice_name="noise"), asked("And more.", **{field: value})]
    error = failure(lambda: list(riva.stub.SynthesizeOnline(iter(requests), timeout=PATIENCE)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(f"{field}: ")


def test_a_request_that_is_too_large_is_refused(own: Callable[..., Any]) -> None:
    with own(max_body=2_000) as riva:
        error = failure(lambda: riva.whole("word " * 1_000))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert riva.whole().audio


def test_an_answer_that_would_be_too_large_is_refused_and_stops(own: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orpheus_serving.server.grpc.riva.MAX_ANSWER", 5_000)
    with own(frames=1_000) as riva:
        error = failure(lambda: riva.whole("word " * 200))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "SynthesizeOnline" in error.details()


@pytest.mark.parametrize("streamed", [False, True])
def test_past_capacity_a_call_is_refused_at_once_with_a_hint(own: Callable[..., Any], streamed: bool) -> None:
    with own(engine={"paced": True}, max_active=1, max_queued=0) as riva:
        running = riva.online("Good morning.")
        riva.live.until(lambda: riva.live.engine.active, "the first call is spoken")
        error = failure(lambda: list(riva.online("Me too.")) if streamed else riva.whole("Me too."))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        seconds = detail(error, RetryInfo).retry_delay.seconds
        assert seconds >= 1
        assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == str(1000 * seconds)
        riva.live.call(riva.live.engine.advance, 100)
        assert b"".join(answer.audio for answer in running) == spoken(riva)


# ----------------------------------------------------------------------------------------------------------------- keys


def test_with_keys_only_those_who_have_one_speak(own: Callable[..., Any]) -> None:
    with own(api_keys=frozenset({"sesame"})) as riva:
        for metadata in ((), (("authorization", "Bearer wrong"),), (("x-api-key-bin", b"sesame"),)):
            for call in (
                lambda metadata=metadata: riva.stub.Synthesize(asked(), metadata=metadata, timeout=PATIENCE),
                lambda metadata=metadata: list(riva.stub.SynthesizeOnline(iter([asked()]), metadata=metadata, timeout=PATIENCE)),
            ):
                assert failure(call).code() is grpc.StatusCode.UNAUTHENTICATED
        for metadata in (
            (("authorization", "Bearer sesame"),),
            (("x-api-key", "sesame"),),
            (("authorization", "Api-Key sesame"),),
        ):
            assert riva.stub.Synthesize(asked(), metadata=metadata, timeout=PATIENCE).audio
        assert not riva.live.engine.active


def test_probes_and_the_list_of_voices_need_no_key(own: Callable[..., Any]) -> None:
    with own(api_keys=frozenset({"sesame"})) as riva:
        assert riva.stub.GetRivaSynthesisConfig(RivaSynthesisConfigRequest()).model_config
        health = health_pb2_grpc.HealthStub(riva.channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            list(ProtoReflectionDescriptorDatabase(riva.channel).get_services())


# ------------------------------------------------------------------------------------------- clients that go, and errors


@pytest.mark.parametrize("moment", ["before the first sound", "between two sounds"])
@pytest.mark.parametrize("how", ["cancel", "deadline", "disconnect"])
def test_nothing_is_left_of_a_client_that_has_gone(own: Callable[..., Any], moment: str, how: str) -> None:
    with own(frames=200, engine={"paced": True}) as riva:
        channel = grpc.insecure_channel(f"127.0.0.1:{riva.server.port}", [("grpc.use_local_subchannel_pool", 1)])
        timeout = 1.0 if how == "deadline" else PATIENCE
        call = RivaSpeechSynthesisStub(channel).SynthesizeOnline(iter([asked()]), timeout=timeout)
        riva.live.until(lambda: riva.live.engine.active, "it is spoken")
        if moment == "between two sounds":
            riva.live.call(riva.live.engine.advance, 10)
            assert next(call).audio
        if how == "deadline":
            assert failure(lambda: list(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        elif how == "cancel":
            call.cancel()
        else:
            channel.close()
        gone = time.monotonic()
        riva.live.until(lambda: not riva.held(), "everything is free")
        assert time.monotonic() - gone < SOON
        channel.close()


def test_a_whole_answer_that_is_not_wanted_any_more_is_not_made(own: Callable[..., Any]) -> None:
    with own(engine={"paced": True}) as riva:
        call = riva.stub.Synthesize.future(asked(), timeout=PATIENCE)
        riva.live.until(lambda: riva.live.engine.active, "it is spoken")
        call.cancel()
        gone = time.monotonic()
        riva.live.until(lambda: not riva.held(), "everything is free")
        assert time.monotonic() - gone < SOON


def test_a_client_that_takes_nothing_is_given_up(own: Callable[..., Any]) -> None:
    with own(frames=300, stall_timeout=0.5) as riva:
        narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]  # what may be on its way
        with grpc.insecure_channel(f"127.0.0.1:{riva.server.port}", narrow) as channel:
            call = RivaSpeechSynthesisStub(channel).SynthesizeOnline(iter([asked("Tell me a story. " * 20)]), timeout=PATIENCE)
            first = next(call)
            riva.live.until(lambda: riva.live.engine.closed and not riva.held(), "the place is free again")
            received = bytearray(first.audio)
            error = failure(lambda: received.extend(b"".join(answer.audio for answer in call)))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "took no audio" in error.details()
        metrics = riva.live.call(riva.live.service.metrics.render).decode()
        assert 'orpheus_requests_total{outcome="stalled",protocol="grpc"} 1.0' in metrics


def test_a_client_that_neither_writes_nor_closes_its_side_is_given_up(own: Callable[..., Any]) -> None:
    with own(idle_timeout=0.3) as riva:
        never = threading.Event()

        def texts() -> Iterator[SynthesizeSpeechRequest]:
            yield asked("One text.")
            never.wait(PATIENCE)

        call = riva.stub.SynthesizeOnline(texts(), timeout=PATIENCE)
        received = bytearray()
        error = failure(lambda: [received.extend(answer.audio) for answer in call])
        never.set()
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "close your side" in error.details()
        assert bytes(received) == spoken(riva, "One text.")


def test_an_answer_has_an_id_even_if_the_request_has_none(riva: Riva) -> None:
    assert riva.whole().id.value.startswith("req_")
    assert next(riva.online("Good morning.", id={"value": "odd one"})).id.value == "odd one"


def test_a_client_that_asks_for_nothing_is_given_up(own: Callable[..., Any]) -> None:
    with own(stall_timeout=0.2) as riva:
        never = threading.Event()
        error = failure(lambda: list(riva.stub.SynthesizeOnline(iter(never.wait, True), timeout=PATIENCE)))
        never.set()
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no request came" in error.details()


def test_an_engine_that_fails_midway_is_an_error_and_never_an_end(own: Callable[..., Any]) -> None:
    with own(frames=50, engine={"fail_after": 7 * 20, "paced": True}) as riva:
        call = riva.online("Good morning.")
        riva.live.call(riva.live.engine.advance, 10)
        assert next(call).audio
        riva.live.call(riva.live.engine.advance, 100)
        error = failure(lambda: list(call))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "told to fail" in error.details()
        error = failure(riva.whole)
        assert error.code() is grpc.StatusCode.INTERNAL


# ----------------------------------------------------------------------------------------- health, reflection, the end


def test_health_follows_the_service(own: Callable[..., Any]) -> None:
    with own() as riva:
        health = health_pb2_grpc.HealthStub(riva.channel)
        states = health_pb2.HealthCheckResponse
        assert health.Check(health_pb2.HealthCheckRequest(service=NAME)).status == states.SERVING
        error = failure(lambda: health.Check(health_pb2.HealthCheckRequest(service="nothing")))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        watched = health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        assert next(watched).status == states.SERVING
        assert riva.live.run(riva.live.service.drain())
        assert next(watched).status == states.NOT_SERVING
        refused = failure(riva.whole)
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert detail(refused, RetryInfo).retry_delay.seconds


def test_reflection_describes_the_service(riva: Riva) -> None:
    database = ProtoReflectionDescriptorDatabase(riva.channel)
    assert {NAME, "grpc.health.v1.Health"} <= set(database.get_services())
    described = database.FindFileContainingSymbol(NAME)
    assert [method.name for method in described.service[0].method] == ["Synthesize", "SynthesizeOnline", "GetRivaSynthesisConfig"]


def test_a_stop_lets_running_streams_finish(own: Callable[..., Any]) -> None:
    with own(engine={"paced": True}) as riva:
        watched = health_pb2_grpc.HealthStub(riva.channel).Watch(health_pb2.HealthCheckRequest())
        next(watched)
        call = riva.online("Good morning.")
        riva.live.until(lambda: riva.live.engine.active, "it is spoken")
        drained = riva.live.call(lambda: asyncio.ensure_future(riva.live.service.drain()))
        refused = failure(lambda: riva.stub.Synthesize(asked(), timeout=PATIENCE))
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        stopped = riva.live.call(lambda: asyncio.ensure_future(riva.server.stop(PATIENCE)))
        riva.live.call(riva.live.engine.advance, 100)
        audio = b"".join(answer.audio for answer in call)
        riva.live.until(lambda: drained.done() and stopped.done(), "the server is down")
        assert audio == spoken(riva)


def test_a_stop_ends_what_does_not_finish(own: Callable[..., Any]) -> None:
    with own(engine={"paced": True}) as riva:
        call = riva.online("Good morning.")
        riva.live.until(lambda: riva.live.engine.active, "it is spoken")
        riva.live.run(riva.server.stop(0.1))
        assert failure(lambda: list(call)).code() is not grpc.StatusCode.OK
        riva.live.until(lambda: not riva.held(), "everything is free")


def test_a_port_that_is_taken_is_an_error(riva: Riva) -> None:
    with pytest.raises(OSError, match="cannot listen"):
        riva.live.run(start_grpc(riva.live.service, "127.0.0.1", riva.server.port))
