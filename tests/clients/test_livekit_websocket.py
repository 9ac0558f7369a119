"""LiveKit's plugins over a WebSocket: Baseten's and Cartesia's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from livekit.agents import APIConnectOptions, APIError
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS
from livekit.plugins import baseten, cartesia

from conftest import Served

LONGEST_STOP = 0.2  # seconds from a client's leaving to the engine's rest: a promise of the project
ONCE = APIConnectOptions(max_retry=0)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def baseten_tts(served: Served, session: aiohttp.ClientSession, voice: str = "noise") -> Any:
    return baseten.TTS(api_key="none", model_endpoint=served.ws_url + "/v1/websocket", voice=voice, http_session=session)


def cartesia_tts(served: Served, session: aiohttp.ClientSession, voice: str = "noise", **more: Any) -> Any:
    return cartesia.TTS(api_key="none", base_url=served.url, voice=voice, http_session=session, **more)


TTS = pytest.mark.parametrize("make", [baseten_tts, cartesia_tts])


async def speak(tts: Any, *deltas: str, options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> list[Any]:
    async with tts.stream(conn_options=options) as stream:
        for delta in deltas:
            stream.push_text(delta)
        stream.end_input()
        return [event async for event in stream]


def seconds(events: list[Any]) -> float:
    return sum(event.frame.duration for event in events)


@TTS
async def test_deltas_are_spoken(served: Served, session: aiohttp.ClientSession, make: Any) -> None:
    served.said()
    tts = make(served, session)
    events = await speak(tts, "Hel", "lo the", "re, friend. This is the sec", "ond sentence, and it costs 3.50.")
    await tts.aclose()
    assert "".join("".join(served.said()).split()) == "Hellothere,friend.Thisisthesecondsentence,anditcosts3.50."
    assert seconds(events) > 0.3
    assert all(event.frame.sample_rate == 24000 for event in events)


@TTS
async def test_one_after_another(served: Served, session: aiohttp.ClientSession, make: Any) -> None:
    served.said()
    tts = make(served, session)
    for number in range(3):
        assert seconds(await speak(tts, f"This is number {number}, friend.")) > 0.2
    await tts.aclose()
    assert served.said() == [f"This is number {number}, friend." for number in range(3)]


@TTS
async def test_an_interruption_stops_generation(paced: Served, session: aiohttp.ClientSession, make: Any) -> None:
    tts = make(paced, session)
    stream = tts.stream()
    stream.push_text("A long story that nobody hears to its end. And it goes on.")
    paced.ask(advance=20)
    assert (await anext(aiter(stream))).frame.duration > 0
    left = time.monotonic()
    await stream.aclose()
    await tts.aclose()  # Cartesia's plugin sends no cancel; it drops the socket, but only when its pool is used again or closed
    assert paced.until_idle() - left < LONGEST_STOP


async def test_cartesia_hears_nothing_of_what_was_interrupted(served: Served, session: aiohttp.ClientSession) -> None:
    """Its plugin says nothing about an interruption: what it does not read is not made, and the next utterance is that alone."""
    tts = cartesia_tts(served, session)
    alone = seconds(await speak(tts, "Hello there, friend."))
    stream = tts.stream()
    stream.push_text("A long story that nobody hears to its end. " * 200)
    stream.end_input()
    assert (await anext(aiter(stream))).frame.duration > 0
    await stream.aclose()
    assert seconds(await speak(tts, "Hello there, friend.")) == pytest.approx(alone, abs=0.1)
    served.until_idle()
    assert len(served.said()) < 150
    await tts.aclose()


@TTS
async def test_an_unknown_voice_is_an_error(served: Served, session: aiohttp.ClientSession, make: Any) -> None:
    tts = make(served, session, voice="nobody")
    with pytest.raises(APIError):
        await speak(tts, "Hello there, friend.", options=ONCE)
    await tts.aclose()


async def test_cartesia_at_another_rate(served: Served, session: aiohttp.ClientSession) -> None:
    tts = cartesia_tts(served, session, sample_rate=16000)
    events = await speak(tts, "Hello there, friend.")
    await tts.aclose()
    assert all(event.frame.sample_rate == 16000 for event in events)
    assert 0.2 < seconds(events) < 1
