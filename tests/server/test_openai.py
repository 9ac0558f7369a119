"""POST /v1/audio/speech and what stands around it, over the wire."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from live import LiveServer, serving
from test_formats import LONGER, decoded, same_sound

from orpheus_serving.audio.encoders import FORMATS
from orpheus_serving.server.voices import OPENAI_VOICES, voice_aliases

CONTENT_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
LOSSLESS = ("pcm", "wav", "flac")


def speak(live: LiveServer, **fields: Any) -> httpx.Response:
    body = {"model": "tts-1", "input": "Hello there, friend.", "voice": "noise", "seed": 1} | fields
    return httpx.post(f"{live.url}/v1/audio/speech", json={k: v for k, v in body.items() if v is not ...})


def pcm(response: httpx.Response) -> np.ndarray:
    assert response.status_code == 200, response.text
    assert len(response.content) % 2 == 0
    return np.frombuffer(response.content, "<i2").astype(np.float32) / 32767


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_the_pcm_of_the_same_seed(live_server: LiveServer, name: str) -> None:
    reference = pcm(speak(live_server, response_format="pcm"))
    assert len(reference) > 3 * 2048
    response = speak(live_server, response_format=name)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(CONTENT_TYPES[name])
    audio = decoded(name, response.content)
    assert 0 <= len(audio) - len(reference) <= LONGER[name]
    if name in LOSSLESS:
        assert np.abs(audio - reference).max() < 2 / 32767
    else:  # noise is the hardest that there is for a lossy codec: that it is the same noise is still plain
        assert same_sound(audio, reference, LONGER[name]) > 0.7
        assert same_sound(audio, pcm(speak(live_server, response_format="pcm", seed=2)), LONGER[name]) < 0.4


def test_mp3_is_what_nobody_asked_for(live_server: LiveServer) -> None:
    assert speak(live_server).headers["content-type"] == "audio/mpeg"
    assert speak(live_server, response_format=None).headers["content-type"] == "audio/mpeg"


def test_prompt_stands_for_input_and_brings_the_format_of_the_truss(live_server: LiveServer) -> None:
    wanted = speak(live_server, response_format="pcm").content
    assert speak(live_server, input=..., prompt="Hello there, friend.").content == wanted
    assert (
        speak(live_server, input=..., prompt="Hello there, friend.", response_format="mp3").headers["content-type"]
        == "audio/mpeg"
    )


def test_sound_is_sent_while_the_model_still_speaks(noise_folder: Path) -> None:
    with serving(noise_folder, frames=8, engine={"paced": True}) as live:
        live.call(live.engine.advance, 5)
        with httpx.stream("POST", f"{live.url}/v1/audio/speech", json={"input": "Hello.", "response_format": "pcm"}) as response:
            chunks = response.iter_raw()
            assert len(next(chunks))
            assert live.call(lambda: set(live.engine.active))
            live.call(live.engine.advance, 20)
            assert sum(map(len, chunks)) > 4 * 2048
        live.settle()


def test_a_voice_can_be_a_name_an_object_or_absent(live_server: LiveServer) -> None:
    by_name = speak(live_server, voice="noise", response_format="pcm").content
    assert speak(live_server, voice={"id": "noise"}, response_format="pcm").content == by_name
    assert speak(live_server, voice="NOISE", response_format="pcm").content == by_name
    assert speak(live_server, voice=..., response_format="pcm").content == by_name


@pytest.mark.parametrize("voice", OPENAI_VOICES)
def test_openai_names_are_voices_of_the_checkpoint(live_server: LiveServer, voice: str) -> None:
    assert speak(live_server, voice=voice, response_format="pcm").status_code == 200


def test_aliases_are_spread_over_women_and_men_and_never_shadow_a_voice() -> None:
    orpheus = voice_aliases(("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe"))
    assert set(orpheus) == set(OPENAI_VOICES)
    assert set(orpheus.values()) == {"tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe"}
    assert orpheus["nova"] in ("tara", "leah", "jess", "mia", "zoe")
    assert orpheus["onyx"] in ("leo", "dan", "zac")
    assert voice_aliases(("ava", "ben"))["echo"] == "ben"
    assert "alloy" not in voice_aliases(("Alloy", "other"))
    assert set(voice_aliases(("x", "y")).values()) == {"x", "y"}
    assert voice_aliases(()) == {}


@pytest.mark.parametrize("speed", [0.25, 0.5, 2.0, 4.0])
def test_speed_changes_the_length(live_server: LiveServer, speed: float) -> None:
    plain = pcm(speak(live_server, response_format="pcm"))
    audio = pcm(speak(live_server, response_format="pcm", speed=speed))
    assert len(audio) / 24000 == pytest.approx(len(plain) / 24000 / speed, abs=0.05 + 0.025 / speed)


def test_an_engine_is_told_of_the_speed(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    paces = []
    engine = live_server.service.synthesizer.engine
    generate = engine.generate

    def listening(prompt: Any, sampling: Any, request_id: str) -> Any:
        paces.append(sampling.pace)
        return generate(prompt, sampling, request_id)

    monkeypatch.setattr(engine, "generate", listening)
    for speed in (1, 2):
        assert speak(live_server, response_format="pcm", speed=speed).status_code == 200
    assert paces[1] == 2 * paces[0]


def test_speed_1_changes_nothing(live_server: LiveServer) -> None:
    plain = speak(live_server, response_format="pcm").content
    assert speak(live_server, response_format="pcm", speed=1).content == plain


def test_our_own_fields_reach_the_model(live_server: LiveServer) -> None:
    assert len(pcm(speak(live_server, response_format="pcm", max_tokens=21))) <= 3 * 2048
    assert speak(live_server, seed=5).headers["x-seed"] == "5"


def test_server_sent_events_hold_the_same_file(live_server: LiveServer) -> None:
    wanted = speak(live_server, response_format="wav").content
    response = speak(live_server, response_format="wav", stream_format="sse")
    assert response.headers["content-type"] == "text/event-stream"
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    events = [json.loads(block.removeprefix("data: ")) for block in blocks]
    *deltas, done = events
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == wanted
    assert done["type"] == "speech.audio.done"
    usage = done["usage"]
    assert usage["output_tokens"] == 6 * 7 + 1
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]


def test_unknown_fields_and_nulls_are_accepted(live_server: LiveServer) -> None:
    response = speak(live_server, language="en", foo={"bar": [1]}, instructions="Whisper.", speed=None, stream_format=None)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ...}, "input"),
        ({"input": ""}, "input"),
        ({"input": 7}, "input"),
        ({"input": "?!"}, "input"),
        ({"input": ..., "prompt": "?!"}, "input"),
        ({"voice": "nobody"}, "voice"),
        ({"voice": {"name": "x"}}, "voice"),
        ({"response_format": "midi"}, "response_format"),
        ({"speed": 0.2}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"stream_format": "ws"}, "stream_format"),
        ({"temperature": -1}, "temperature"),
        ({"seed": -1}, "seed"),
    ],
)
def test_refusals_have_the_shape_of_openai(live_server: LiveServer, fields: dict[str, Any], param: str) -> None:
    response = speak(live_server, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_object_is_a_400(live_server: LiveServer, raw: bytes) -> None:
    response = httpx.post(f"{live_server.url}/v1/audio/speech", content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert "body" in error["message"]


def test_what_does_not_say_that_it_is_json_is_told_so(live_server: LiveServer) -> None:
    response = httpx.post(f"{live_server.url}/v1/audio/speech", data={"input": "Hello."})
    assert response.status_code == 400
    assert "Content-Type: application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/websocket", "/tts/websocket", "/v1/text-to-speech/noise/multi-stream-input"])
def test_a_websocket_without_an_upgrade_is_told_so(live_server: LiveServer, path: str) -> None:
    response = httpx.get(live_server.url + path)
    assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")
    assert "WebSocket" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "text", ["\x00\x01\x02", "\\ud800", "a\\ud800b", "\u202e", "<custom_token_5>", "Hi \U0001f600", "a" * 3000]
)
def test_hostile_text_is_refused_or_spoken(live_server: LiveServer, text: str) -> None:
    raw = json.dumps({"input": text}).replace("\\\\ud800", "\\ud800")
    response = httpx.post(f"{live_server.url}/v1/audio/speech", content=raw, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400)


def test_errors_elsewhere_have_the_same_shape(live_server: LiveServer) -> None:
    for response in (httpx.get(f"{live_server.url}/v1/nothing"), httpx.get(f"{live_server.url}/v1/audio/speech")):
        assert response.status_code in (404, 405)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_every_answer_has_a_request_id(live_server: LiveServer) -> None:
    own = httpx.get(f"{live_server.url}/v1/models", headers={"X-Request-Id": "abc-1"})
    assert own.headers["x-request-id"] == "abc-1"
    first, second = (httpx.get(f"{live_server.url}/v1/nothing").headers["x-request-id"] for _ in range(2))
    assert first != second
    hostile = httpx.get(f"{live_server.url}/v1/models", headers={"X-Request-Id": 'a"b{} c'})
    assert hostile.headers["x-request-id"].startswith("req_")


def test_lists(live_server: LiveServer) -> None:
    models = httpx.get(f"{live_server.url}/v1/models").json()
    assert models["object"] == "list"
    ident = models["data"][0]["id"]
    assert httpx.get(f"{live_server.url}/v1/models/{ident}").json()["id"] == ident
    assert httpx.get(f"{live_server.url}/v1/models/gpt-5").status_code == 404
    assert httpx.get(f"{live_server.url}/v1/audio/models").json()["models"][0]["id"] == ident
    voices = httpx.get(f"{live_server.url}/v1/audio/voices").json()["voices"]
    assert [voice["id"] for voice in voices] == ["noise", "hiss", *live_server.service.aliases]
    assert all(voice["name"] for voice in voices)
    assert httpx.get(f"{live_server.url}/v1/").status_code == 200


def test_a_failure_before_the_first_sound_is_a_status(noise_folder: Path) -> None:
    with serving(noise_folder, engine={"fail_after": 7}) as live:
        response = speak(live)
        assert response.status_code == 502
        assert response.json()["error"]["type"] == "server_error"
        live.settle()


def test_an_end_without_a_sound_is_a_status(noise_folder: Path) -> None:
    with serving(noise_folder, frames=0) as live:
        response = speak(live)
        assert response.status_code == 502
        live.settle()


@pytest.mark.parametrize("fields", [{"response_format": "pcm"}, {}, {"stream_format": "sse"}])
def test_a_failure_midway_breaks_the_connection(noise_folder: Path, fields: dict[str, Any]) -> None:
    with serving(noise_folder, frames=20, engine={"paced": True, "fail_after": 70}) as live:
        live.call(live.engine.advance, 6)
        body = {"input": "Hello there."} | fields
        with httpx.stream("POST", f"{live.url}/v1/audio/speech", json=body) as response:
            assert response.status_code == 200
            live.call(live.engine.advance, 10)
            with pytest.raises(httpx.RemoteProtocolError):
                response.read()
        live.settle()
