"""NVIDIA's Riva client, offline and online, and Pipecat's service that is built on it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import riva.client
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from pipecat.frames.frames import (
    ErrorFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
)
from pipecat.services.nvidia.tts import NvidiaTTSService, NvidiaTTSSynthesisMode
from pipecat.tests.utils import run_test
from riva.client.proto import riva_audio_pb2, riva_common_pb2, riva_tts_pb2

from conftest import PATIENCE, Served

NAME = "nvidia.riva.tts.RivaSpeechSynthesis"
RATE = 24_000
LONGEST_STOP = 0.2  # seconds from a cancelled call to the engine's rest: a promise of the project
SEED = {"seed": "7"}


@pytest.fixture
def tts(served: Served) -> Iterator[riva.client.SpeechSynthesisService]:
    auth = riva.client.Auth(uri=served.grpc)
    yield riva.client.SpeechSynthesisService(auth)
    auth.channel.close()


def spoken(served: Served, text: str, **more: Any) -> bytes:
    """PCM of the same request by another protocol."""
    body = json.dumps({"prompt": text, "seed": 7, **more}).encode()
    request = urllib.request.Request(f"{served.url}/v1/models/model:predict", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return answer.read()


# ------------------------------------------------------------------------------------------------------------- the wire


def fields(message: DescriptorProto) -> dict[str, Any]:
    """What decides about the bytes of a message: the numbers, types and labels of its fields, and the same of those inside it."""
    own = {f.name: (f.number, f.type, f.label, f.type_name) for f in message.field}
    return {message.name: own} | {f"{message.name}.{key}": value for n in message.nested_type for key, value in fields(n).items()}


def described(file: FileDescriptorProto) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]:
    messages = {key: value for message in file.message_type for key, value in fields(message).items()}
    enums: dict[str, EnumDescriptorProto] = {e.name: {v.name: v.number for v in e.value} for e in file.enum_type}
    methods = {
        f"{service.name}.{m.name}": (m.input_type, m.output_type, m.client_streaming, m.server_streaming)
        for service in file.service
        for m in service.method
    }
    return file.package, messages, enums, methods


def own_description(module: Any) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]:
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return described(file)


def test_the_server_describes_itself_as_the_client_does(served: Served) -> None:
    with grpc.insecure_channel(served.grpc) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert described(database.FindFileContainingSymbol(NAME)) == own_description(riva_tts_pb2)
        package, messages, enums, _ = described(database.FindFileContainingSymbol("nvidia.riva.AudioEncoding"))
    assert (package, messages) == own_description(riva_common_pb2)[:2]
    assert (package, enums) == own_description(riva_audio_pb2)[::2]


# ----------------------------------------------------------------------------------------------------------- the client


def test_it_lists_voices(served: Served, tts: riva.client.SpeechSynthesisService) -> None:
    """As the client's own command line does it."""
    voices = {}
    for config in tts.stub.GetRivaSynthesisConfig(riva_tts_pb2.RivaSynthesisConfigRequest()).model_config:
        names = [voice.split(":")[0] for voice in config.parameters["subvoices"].split(",")]
        voices[config.parameters["language_code"]] = [f"{config.parameters['voice_name']}.{name}" for name in names]
    assert [name.rpartition(".")[2] for name in voices["en-US"]] == ["noise", "hiss", "tara"]
    answer = tts.synthesize("Hello there.", voices["en-US"][1], sample_rate_hz=RATE, custom_configuration=SEED)
    assert answer.audio == spoken(served, "Hello there.", voice="hiss")


def test_it_speaks_offline(served: Served, tts: riva.client.SpeechSynthesisService) -> None:
    answer = tts.synthesize("Hello there.", "hiss", sample_rate_hz=RATE, custom_configuration=SEED)
    assert answer.audio == spoken(served, "Hello there.", voice="hiss")
    assert answer.meta.text == "Hello there."
    served.until_idle()


def test_it_speaks_with_nothing_but_a_text(served: Served, tts: riva.client.SpeechSynthesisService) -> None:
    native = len(spoken(served, "Hello there.")) // 2
    audio = tts.synthesize("Hello there.").audio  # 22,050 Hz
    assert len(audio) / 2 == pytest.approx(native * 22_050 / RATE, abs=2)
    future = tts.synthesize("Hello there.", future=True)
    assert len(future.result(PATIENCE).audio) == len(audio)


def test_it_speaks_online(served: Served, tts: riva.client.SpeechSynthesisService) -> None:
    served.said()
    answers = list(tts.synthesize_online("Hello there.", "hiss", sample_rate_hz=RATE, custom_configuration=SEED))
    assert served.said() == ["Hello there."]
    assert len(answers) > 1
    assert b"".join(answer.audio for answer in answers) == spoken(served, "Hello there.", voice="hiss")


def test_it_speaks_several_texts_in_order(served: Served, tts: riva.client.SpeechSynthesisService) -> None:
    served.said()
    audio = b"".join(
        answer.audio for answer in tts.synthesize_online(["Hello there.", "How are you today?"], sample_rate_hz=RATE)
    )
    assert served.said() == ["Hello there.", "How are you today?"]
    assert len(audio) > 10_000
    served.until_idle()


@pytest.mark.parametrize("encoding", [riva_audio_pb2.FLAC, riva_audio_pb2.OGGOPUS])
def test_it_gets_compressed_audio(tts: riva.client.SpeechSynthesisService, encoding: int) -> None:
    audio = tts.synthesize("Hello there.", encoding=encoding, sample_rate_hz=16_000).audio
    assert audio[:4] == {riva_audio_pb2.FLAC: b"fLaC", riva_audio_pb2.OGGOPUS: b"OggS"}[encoding]


def test_it_is_told_what_is_wrong(tts: riva.client.SpeechSynthesisService) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        tts.synthesize("Hello there.", "nobody")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith("voice_name: ")


def test_cancelling_stops_the_model(paced: Served) -> None:
    auth = riva.client.Auth(uri=paced.grpc)
    call: Any = riva.client.SpeechSynthesisService(auth).synthesize_online("Hello there.", sample_rate_hz=RATE)
    paced.until(lambda now: now["active"])
    paced.ask(advance=10)
    assert next(call).audio
    call.cancel()
    cancelled = time.monotonic()
    assert paced.until_idle() - cancelled < LONGEST_STOP
    auth.channel.close()


# -------------------------------------------------------------------------------------------------------------- Pipecat


def nvidia(served: Served, **settings: Any) -> NvidiaTTSService:
    settings = {"voice": "hiss"} | settings
    return NvidiaTTSService(server=served.grpc, use_ssl=False, sample_rate=RATE, settings=NvidiaTTSService.Settings(**settings))


def audio(frames: Any) -> bytes:
    return b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))


MODES = pytest.mark.parametrize("mode", list(NvidiaTTSSynthesisMode))


@MODES
async def test_pipecat_speaks(served: Served, mode: NvidiaTTSSynthesisMode) -> None:
    served.said()
    down, up = await run_test(nvidia(served, synthesis_mode=mode), frames_to_send=[TTSSpeakFrame("Hello there, friend.")])
    assert not [frame.error for frame in up if isinstance(frame, ErrorFrame)]
    assert served.said() == ["Hello there, friend."]
    assert len(audio(down)) > 10_000
    served.until_idle()


@MODES
async def test_pipecat_speaks_an_answer_sentence_by_sentence(served: Served, mode: NvidiaTTSSynthesisMode) -> None:
    served.said()
    deltas = ["Hel", "lo there, fri", "end. How", " are you", " today?"]
    frames = [LLMFullResponseStartFrame(), *map(LLMTextFrame, deltas), LLMFullResponseEndFrame()]
    down, up = await run_test(nvidia(served, synthesis_mode=mode), frames_to_send=frames)
    assert not [frame.error for frame in up if isinstance(frame, ErrorFrame)]
    assert served.said() == ["Hello there, friend.", "How are you today?"]
    assert len(audio(down)) > 20_000
    served.until_idle()


async def test_pipecat_speaks_where_nobody_chose_a_voice(served: Served) -> None:
    service = NvidiaTTSService(server=served.grpc, use_ssl=False)
    down, up = await run_test(service, frames_to_send=[TTSSpeakFrame("Hello there, friend.")])
    assert not [frame.error for frame in up if isinstance(frame, ErrorFrame)]
    assert len(audio(down)) > 10_000


async def test_pipecat_is_told_of_a_wrong_voice(served: Served) -> None:
    down, up = await run_test(nvidia(served, voice="nobody"), frames_to_send=[TTSSpeakFrame("Hello there, friend.")])
    assert any("voice_name" in frame.error for frame in up if isinstance(frame, ErrorFrame))
    assert not audio(down)
