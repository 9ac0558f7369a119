"""Pipecat's OpenAI service."""

from __future__ import annotations

from typing import Any

import pytest
from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import run_test

from conftest import Served


def service(served: Served, voice: str) -> Any:
    settings = OpenAITTSService.Settings(voice=voice, model="gpt-4o-mini-tts")
    return OpenAITTSService(api_key="none", base_url=f"{served.url}/v1", settings=settings, sample_rate=24000)


@pytest.mark.parametrize("voice", ["alloy", "verse"])
async def test_a_text_is_spoken(served: Served, voice: str) -> None:
    served.said()
    frames, errors = await run_test(service(served, voice), frames_to_send=[TTSSpeakFrame("Hello there, friend.")])
    assert not [frame for frame in (*frames, *errors) if isinstance(frame, ErrorFrame)]
    audio = b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))
    assert 0.3 < len(audio) / 2 / 24000 < 0.75
    assert served.said() == ["Hello there, friend."]
