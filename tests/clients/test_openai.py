"""openai-python against the server: every format, streaming, its retries and its errors."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np
import openai
import pytest

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
EXACT = ("opus", "flac", "wav", "pcm")
LONGER = 2048  # samples: priming and filling of an MP3 or AAC stream


@pytest.fixture(scope="module")
def client(served: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def decoded(name: str, data: bytes) -> np.ndarray:
    if name == "pcm":
        return np.frombuffer(data, "<i2")
    with av.open(io.BytesIO(data)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=24000)
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def speak(client: openai.OpenAI, **fields: Any) -> bytes:
    wanted: dict[str, Any] = {"model": "gpt-4o-mini-tts", "voice": "alloy", "input": "Hello there, friend."} | fields
    return client.audio.speech.create(**wanted, extra_body={"seed": 1}).content


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(client: openai.OpenAI, name: str) -> None:
    reference = decoded("pcm", speak(client, response_format="pcm"))
    assert len(reference) > 3 * 2048
    audio = decoded(name, speak(client, response_format=name))
    assert 0 <= len(audio) - len(reference) <= (0 if name in EXACT else LONGER)
    if name in ("pcm", "wav", "flac"):
        assert np.array_equal(audio, reference)


def test_mp3_is_the_default_and_can_be_streamed(client: openai.OpenAI) -> None:
    speech = client.audio.speech.with_streaming_response
    with speech.create(model="tts-1", voice="nova", input="Hello there, friend.", extra_body={"seed": 1}) as response:
        assert response.headers["content-type"] == "audio/mpeg"
        data = b"".join(response.iter_bytes(1024))
    assert len(decoded("mp3", data)) > 3 * 2048


def test_speed_and_instructions(client: openai.OpenAI) -> None:
    plain = decoded("wav", speak(client, response_format="wav"))
    fast = decoded("wav", speak(client, response_format="wav", speed=2.0, instructions="Cheerfully."))
    assert abs(len(fast) - len(plain) / 2) < 1500


def test_models_are_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id


def test_errors_are_the_classes_that_it_has_for_them(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        speak(client, voice="nobody")
    assert caught.value.param == "voice"
    assert caught.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


async def test_the_asynchronous_client(served: Any) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        stream = client.audio.speech.with_streaming_response
        wanted: dict[str, Any] = {"model": "tts-1", "voice": "echo", "input": "Hello.", "response_format": "pcm"}
        async with stream.create(**wanted) as response:
            data = b"".join([piece async for piece in response.iter_bytes()])
    assert len(data) > 3 * 4096
