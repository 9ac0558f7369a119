"""Pipecat's services over a WebSocket: Together's and Cartesia's."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSTextFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.services.together.tts import TogetherTTSService
from pipecat.services.tts_service import TextAggregationMode
from pipecat.tests.utils import run_test
from pipecat.workers.runner import WorkerRunner

from conftest import PATIENCE, Served

LONGEST_STOP = 0.2  # seconds from an interruption to the engine's rest: a promise of the project


def together(served: Served, voice: str = "noise", **more: Any) -> Any:
    settings = TogetherTTSService.Settings(voice=voice, model="canopylabs/orpheus-3b-0.1-ft")
    return TogetherTTSService(api_key="none", url=served.ws_url + "/v1/audio/speech/websocket", settings=settings, **more)


def cartesia(served: Served, voice: str = "noise", **more: Any) -> Any:
    settings = CartesiaTTSService.Settings(voice=voice)
    more = {"sample_rate": 24000} | more
    return CartesiaTTSService(api_key="none", url=served.ws_url + "/tts/websocket", settings=settings, **more)


def elevenlabs(served: Served, voice: str = "noise", **more: Any) -> Any:
    settings = ElevenLabsTTSService.Settings(voice=voice)
    return ElevenLabsTTSService(api_key="none", url=served.ws_url, sample_rate=24000, settings=settings, **more)


SERVICE = pytest.mark.parametrize("make", [together, cartesia])


def answer(*deltas: str) -> list[Frame]:
    """What a language model's answer looks like to the service."""
    return [LLMFullResponseStartFrame(), *map(LLMTextFrame, deltas), LLMFullResponseEndFrame()]


def audio(frames: Any) -> bytes:
    return b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))


def texts(frames: Any) -> str:
    return " ".join(frame.text for frame in frames if isinstance(frame, TTSTextFrame))


def errors(frames: Any) -> list[str]:
    return [frame.error for frame in frames if isinstance(frame, ErrorFrame)]


@SERVICE
async def test_a_sentence_is_spoken(served: Served, make: Any) -> None:
    served.said()
    down, up = await run_test(make(served), frames_to_send=[TTSSpeakFrame("Hello there, friend.")])
    assert not errors(up)
    assert served.said() == ["Hello there, friend."]
    assert len(audio(down)) > 10_000
    assert len(audio(down)) % 2 == 0
    assert texts(down) == "Hello there, friend.", "the words do not reach the conversation"


@SERVICE
async def test_an_answer_is_spoken_sentence_by_sentence(served: Served, make: Any) -> None:
    served.said()
    down, up = await run_test(
        make(served), frames_to_send=answer("Hel", "lo there, friend. This", " is the second", " sentence.")
    )
    assert not errors(up)
    assert " ".join(served.said()) == "Hello there, friend. This is the second sentence."
    assert texts(down) == "Hello there, friend. This is the second sentence."


async def test_elevenlabs_speaks_an_answer(served: Served) -> None:
    served.said()
    frames = answer("Hel", "lo there, friend. This", " is the second", " sentence.")
    down, up = await run_test(elevenlabs(served), frames_to_send=frames)
    assert not errors(up)
    assert " ".join(served.said()) == "Hello there, friend. This is the second sentence."
    assert len(audio(down)) > 10_000
    assert texts(down) == "Hello there, friend. This is the second sentence."


async def test_tokens_are_spoken_as_they_come(served: Served) -> None:
    served.said()
    service = cartesia(served, text_aggregation_mode=TextAggregationMode.TOKEN)
    down, up = await run_test(service, frames_to_send=answer("Hel", "lo there", ", friend. This", " is the second", " sentence."))
    assert not errors(up)
    assert " ".join(served.said()) == "Hello there, friend. This is the second sentence."
    assert len(audio(down)) > 10_000


async def test_cartesia_at_another_rate(served: Served) -> None:
    down, up = await run_test(cartesia(served, sample_rate=16000), frames_to_send=[TTSSpeakFrame("Hello there, friend.")])
    assert not errors(up)
    assert 0.2 < len(audio(down)) / 2 / 16000 < 1


@SERVICE
async def test_an_unknown_voice_is_an_error(served: Served, make: Any) -> None:
    down, up = await run_test(make(served, voice="nobody"), frames_to_send=[TTSSpeakFrame("Hello there, friend.")])
    assert not audio(down)
    assert any("the voices of" in error for error in errors(up))


class Heard(BaseObserver):
    """Tells when the first audio has come."""

    def __init__(self) -> None:
        super().__init__()
        self.audio = asyncio.Event()

    async def on_push_frame(self, data: FramePushed) -> None:
        if isinstance(data.frame, TTSAudioRawFrame):
            self.audio.set()


@SERVICE
async def test_an_interruption_stops_generation(paced: Served, make: Any) -> None:
    heard = Heard()
    interrupted = 0.0

    async def interrupt(worker: PipelineWorker) -> None:
        nonlocal interrupted
        await asyncio.to_thread(paced.until, lambda now: now["active"])
        paced.ask(advance=20)
        await asyncio.wait_for(heard.audio.wait(), PATIENCE)
        interrupted = time.monotonic()
        await worker.queue_frame(InterruptionFrame())
        stopped = await asyncio.to_thread(paced.until_idle)
        assert stopped - interrupted < LONGEST_STOP
        await worker.cancel()

    worker = PipelineWorker(Pipeline([make(paced)]), observers=[heard], cancel_on_idle_timeout=False)
    await worker.queue_frame(TTSSpeakFrame("A long story that nobody hears to its end. And it goes on."))
    runner = WorkerRunner()
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), interrupt(worker))
    assert interrupted
