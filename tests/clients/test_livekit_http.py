"""LiveKit's plugins over HTTP: OpenAI's, Groq's and Baseten's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai as openai_client
import pytest
from livekit.agents import APIConnectOptions, APIStatusError
from livekit.plugins import baseten, groq, openai

from conftest import Served

LONGEST_STOP = 0.2  # seconds from a client's leaving to the engine's rest: a promise of the project
ONCE = APIConnectOptions(max_retry=0)
TEXT = "Hello there, friend."


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def from_openai(served: Served, session: aiohttp.ClientSession, **more: Any) -> Any:
    return openai.TTS(**{"api_key": "none", "base_url": f"{served.url}/v1"} | more)


def from_openai_pcm(served: Served, session: aiohttp.ClientSession, **more: Any) -> Any:
    return from_openai(served, session, response_format="pcm", **more)


def from_groq(served: Served, session: aiohttp.ClientSession, **more: Any) -> Any:
    return groq.TTS(**{"api_key": "none", "base_url": f"{served.url}/v1", "voice": "tara", "http_session": session} | more)


def from_baseten(served: Served, session: aiohttp.ClientSession, **more: Any) -> Any:
    endpoint = f"{served.url}/v1/models/model:predict"
    return baseten.TTS(**{"api_key": "none", "model_endpoint": endpoint, "voice": "tara", "http_session": session} | more)


def from_baseten_on_openai(served: Served, session: aiohttp.ClientSession, **more: Any) -> Any:
    return from_baseten(served, session, model_endpoint=f"{served.url}/v1/audio/speech", **more)


TTS = pytest.mark.parametrize("make", [from_openai, from_openai_pcm, from_groq, from_baseten, from_baseten_on_openai])


async def heard(tts: Any, text: str = TEXT, options: APIConnectOptions = ONCE) -> list[Any]:
    async with tts.synthesize(text, conn_options=options) as stream:
        return [event.frame async for event in stream]


@TTS
async def test_a_text_is_spoken(served: Served, session: aiohttp.ClientSession, make: Any) -> None:
    served.said()
    tts = make(served, session)
    frames = await heard(tts)
    await tts.aclose()
    assert served.said() == [TEXT]
    assert {frame.sample_rate for frame in frames} <= {24000, 48000}  # Groq's plugin resamples
    assert 0.3 < sum(frame.duration for frame in frames) < 0.75  # 6 frames are 0.51 s


async def test_prewarm(served: Served, session: aiohttp.ClientSession) -> None:
    tts = from_openai(served, session)
    tts.prewarm()
    assert await heard(tts)
    await tts.aclose()


@TTS
async def test_a_refusal_is_an_error_that_is_not_tried_again(served: Served, session: aiohttp.ClientSession, make: Any) -> None:
    tts = make(served, session, voice="nobody")
    with pytest.raises((APIStatusError, openai_client.APIError)) as caught:
        await heard(tts)
    assert getattr(caught.value, "status_code", None) in (400, 422)
    await tts.aclose()


@TTS
async def test_an_interruption_stops_generation(paced: Served, session: aiohttp.ClientSession, make: Any) -> None:
    tts = make(paced, session)
    paced.ask(advance=30)
    stream = tts.synthesize("A long story that nobody hears to its end.", conn_options=ONCE)
    assert (await anext(aiter(stream))).frame.duration > 0
    left = time.monotonic()
    with contextlib.suppress(Exception):
        await stream.aclose()
    assert paced.until_idle() - left < LONGEST_STOP
    await tts.aclose()
