"""From a request to samples, with a scripted engine and a real (random) codec."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.codec import Codec, load_codec
from orpheus_serving.engines.scripted import ScriptedEngine
from orpheus_serving.errors import EngineError, InvalidRequest
from orpheus_serving.request import SpeechRequest
from orpheus_serving.settings import Settings
from orpheus_serving.synthesizer import Synthesizer

FRAME = 2048


class Bench:
    """A started synthesizer whose engine says `frames` frames a chunk and then ends (or not)."""

    def __init__(self, folder: Path, frames: int = 6, ends: bool = True, **engine: Any) -> None:
        checkpoint = Checkpoint(folder)
        layout = checkpoint.layout

        def script(prompt: Any, sampling: Any, request_id: str) -> list[int]:
            draw = random.Random(sampling.seed)
            ids = [layout.token(slot, draw.randrange(1024)) for _ in range(frames) for slot in range(7)]
            return [*ids, layout.end_of_speech] if ends else ids * 100

        self.engine = ScriptedEngine(script, layout=layout, list_size=7, **engine)
        self.codec: Codec = load_codec(folder / "codec", max_streams=8)
        self.synthesizer = Synthesizer(checkpoint, self.engine, self.codec, Settings())

    async def __aenter__(self) -> Bench:
        await self.synthesizer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert not self.synthesizer.active
        assert not self.engine.active
        assert self.codec.free_slots == 8
        await self.synthesizer.stop()


@pytest.fixture
async def bench(noise_folder: Path) -> AsyncIterator[Bench]:
    async with Bench(noise_folder) as bench:
        yield bench


def request(prompt: str = "Hello there, friend.", **more: Any) -> SpeechRequest:
    return SpeechRequest.parse({"prompt": prompt, "seed": 1} | more)


async def heard(bench: Bench, wanted: SpeechRequest) -> tuple[np.ndarray, Any]:
    speech = bench.synthesizer.speak(wanted)
    return np.concatenate([samples async for samples in speech]), speech


async def test_every_frame_is_heard_and_the_edges_are_silent(bench: Bench) -> None:
    audio, speech = await heard(bench, request())
    assert speech.outcome == "complete"
    assert (speech.stats.frames, speech.stats.dropped_tokens, speech.stats.chunks) == (6, 0, 1)
    assert 6 * FRAME - 0.5 * 24000 <= len(audio) <= 6 * FRAME
    assert abs(audio[0]) < 1e-3
    assert abs(audio[-1]) < 1e-3
    assert np.abs(audio).max() > 0.1


async def test_long_text_is_spoken_in_chunks_without_a_step_at_the_joins(bench: Bench) -> None:
    audio, speech = await heard(bench, request("One short sentence here. " * 12, max_chunk_size=60))
    assert len(speech.chunks) > 3
    assert speech.stats.chunks == len(speech.chunks)
    assert speech.stats.frames == 6 * len(speech.chunks)
    assert speech.outcome == "complete"
    assert len(audio) > (6 * FRAME - 12000) * len(speech.chunks)


async def test_the_same_seed_gives_the_same_samples(bench: Bench) -> None:
    first, _ = await heard(bench, request())
    again, _ = await heard(bench, request())
    other, _ = await heard(bench, request(seed=2))
    assert first.tobytes() == again.tobytes() != other.tobytes()


async def test_max_tokens_cuts_and_says_so(bench: Bench) -> None:
    audio, speech = await heard(bench, request(max_tokens=21))
    assert speech.outcome == "length"
    assert speech.stats.tokens == 21
    assert len(audio) <= 3 * FRAME


async def test_a_model_that_never_ends_is_stopped_in_proportion_to_the_text(noise_folder: Path) -> None:
    async with Bench(noise_folder, ends=False) as bench:
        _, speech = await heard(bench, request("Yes please."))
        assert speech.outcome == "length"
        assert speech.stats.samples < 5 * 24000


async def test_closing_midway_frees_everything(noise_folder: Path) -> None:
    async with Bench(noise_folder, frames=20, paced=True) as bench:
        speech = bench.synthesizer.speak(request("One short sentence here. " * 12, max_chunk_size=60))
        iterator = aiter(speech)
        first = asyncio.ensure_future(anext(iterator))
        bench.engine.advance(6)
        assert len(await first)
        await speech.aclose()
        assert speech.outcome == "cancelled"
        assert not bench.engine.active


async def test_no_more_than_one_chunk_is_generated_ahead(bench: Bench) -> None:
    speech = bench.synthesizer.speak(request("One short sentence here. " * 12, max_chunk_size=60))
    assert len(await anext(aiter(speech)))
    for _ in range(200):  # every chance to run ahead
        await asyncio.sleep(0)
    assert len(bench.engine.started) <= 2
    await speech.aclose()


async def test_an_engine_that_fails_midway_raises_after_its_sound(noise_folder: Path) -> None:
    async with Bench(noise_folder, frames=20, fail_after=70) as bench:
        speech = bench.synthesizer.speak(request())
        with pytest.raises(EngineError):
            async for _ in speech:
                pass
        assert speech.outcome == "error"


@pytest.mark.parametrize("prompt", ["", "  ", "😀🎉", "<|eot_id|>", "\x00", "!?!"])
def test_nothing_to_say_is_refused(noise_folder: Path, prompt: str) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        Bench(noise_folder).synthesizer.speak(request(prompt))


def test_an_unknown_voice_names_the_known_ones(noise_folder: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"voice.*noise, hiss"):
        Bench(noise_folder).synthesizer.speak(request(voice="tara"))


def test_too_much_text_is_refused(noise_folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="at most 20000"):
        Bench(noise_folder).synthesizer.speak(request("many words " * 10_000))
