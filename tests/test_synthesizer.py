"""From a request to samples, with a scripted engine and a real (random) codec."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.codec import Codec, StreamingDecoder, load_codec
from orpheus_serving.engines.scripted import ScriptedEngine
from orpheus_serving.errors import CodecError, EngineError, InvalidRequest
from orpheus_serving.request import SpeechRequest
from orpheus_serving.settings import Settings
from orpheus_serving.synthesizer import Flushed, Spoken, Synthesizer
from orpheus_serving.text.normalise import normalise

FRAME = 2048


class Bench:
    """A started synthesizer whose engine says `frames` frames a chunk and then ends (or not)."""

    def __init__(self, folder: Path, frames: int = 6, ends: bool = True, **engine: Any) -> None:
        checkpoint = Checkpoint(folder)
        layout = checkpoint.layout
        self.most: list[int] = []  # tokens that each chunk may take
        self.paces: list[float | None] = []

        def script(prompt: Any, sampling: Any, request_id: str) -> list[int]:
            self.most.append(sampling.max_tokens)
            self.paces.append(sampling.pace)
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


async def test_an_engine_is_told_how_fast_its_ids_are_heard(bench: Bench) -> None:
    for speed in (1.0, 2.0):
        async for _ in bench.synthesizer.speak(request(), speed=speed):
            pass
    assert bench.paces == [7 * 24000 / FRAME, 2 * 7 * 24000 / FRAME]


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


def written_short(draw: random.Random) -> str:
    """Something that takes longer to say than to write."""
    number = draw.randrange(10 ** draw.randint(1, 12))
    return draw.choice(
        [
            f"{number}",
            f"{number:,}",
            f"${number:,}.{draw.randrange(100):02}",
            f"{draw.randint(1, 12)}/{draw.randint(1, 28)}/{draw.randint(1900, 2099)}",
            f"{draw.randint(2000, 2099)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}",
            f"{draw.randint(1, 23)}:{draw.randrange(60):02}",
            ".".join(str(draw.randrange(256)) for _ in range(4)),
            f"+1 ({draw.randint(200, 999)}) {draw.randint(200, 999)}-{draw.randrange(10_000):04}",
            f"{draw.randrange(1000)}%",
        ]
    )


def seconds_allowed(bench: Bench) -> float:
    most, bench.most = bench.most, []
    return sum(most) / 7 * FRAME / 24_000


@pytest.mark.parametrize("seed", range(40))
async def test_what_is_short_to_write_has_the_time_that_it_takes_to_say(bench: Bench, seed: int) -> None:
    """In a checkpoint that reads digits itself. English has 12 to 17 characters a second."""
    assert bench.synthesizer.checkpoint.text_level == "clean"
    draw = random.Random(seed)
    text = ", ".join(written_short(draw) for _ in range(draw.randint(1, 8))) + "."
    await heard(bench, request(text))
    assert seconds_allowed(bench) >= len(normalise(text, "spoken")) / 12


@pytest.mark.parametrize(
    "text",
    [
        "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u6211\u4eec\u53bb\u516c\u56ed\u8d70\u8d70\u597d\u5417" * 3,
        "\u3042\u308a\u304c\u3068\u3046\u3054\u3056\u3044\u307e\u3059\u30b3\u30fc\u30d2\u30fc" * 3,
        "\uc548\ub155\ud558\uc138\uc694\uc624\ub298\ub0a0\uc528\uac00\uc88b\ub124\uc694" * 3,
        "\u1230\u120b\u121d\u12a5\u1295\u12f0\u121d\u1295\u1290\u1205" * 4,
    ],
)
async def test_a_script_of_syllables_has_its_time(bench: Bench, text: str) -> None:
    """Of which four or five are spoken a second."""
    await heard(bench, request(text))
    assert len(text) / 4 + 1 <= seconds_allowed(bench) <= len(text) + 2


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


class Fragile(StreamingDecoder):
    """A decoder whose device can be lost."""

    lost = False

    def step(self, rows: torch.Tensor) -> torch.Tensor:
        if self.lost:
            raise RuntimeError("device lost")
        return super().step(rows)


@pytest.mark.parametrize("lists", [0, 3])
async def test_a_codec_that_dies_ends_a_speech_that_waits_for_its_engine(noise_folder: Path, lists: int) -> None:
    """Its stream is idle then, before its first frame or after some of them."""
    async with Bench(noise_folder, paced=True) as bench:
        decoder = Fragile(bench.codec.decoder.weights, 8)
        codec = Codec(decoder)
        speech = Synthesizer(bench.synthesizer.checkpoint, bench.engine, codec, Settings()).speak(request())
        await codec.start()
        reader = asyncio.ensure_future(anext(aiter(speech)))
        bench.engine.advance(lists)
        while not bench.engine.active:  # noqa: ASYNC110
            await asyncio.sleep(0)
        if lists:
            assert len(await reader)
            reader = asyncio.ensure_future(anext(aiter(speech)))
        decoder.lost = True
        codec.open().push([(0,) * 7])
        with pytest.raises(CodecError, match="device lost"):
            async with asyncio.timeout(30):
                await reader
        assert speech.outcome == "error"
        assert codec.free_slots == 8
        await codec.stop()


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


# Text that is still being written


async def deltas(parts: Iterable[str | None]) -> AsyncIterator[str | None]:
    for part in parts:
        yield part


class Pen:
    """Text whose deltas a test writes when it wants to."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[str | bool | None] = asyncio.Queue()

    def write(self, delta: str | None) -> None:
        self._queue.put_nowait(delta)

    def end(self) -> None:
        self._queue.put_nowait(True)

    async def text(self) -> AsyncIterator[str | None]:
        while not isinstance(delta := await self._queue.get(), bool):
            yield delta


async def test_written_text_at_once_sounds_like_whole_text(bench: Bench) -> None:
    whole, _ = await heard(bench, request())
    speech = bench.synthesizer.speak(request(""), deltas("Hello there, friend."))
    written = np.concatenate([samples async for samples in speech])
    assert speech.chunks == ["Hello there, friend."]
    assert speech.outcome == "complete"
    assert written.tobytes() == whole.tobytes()


async def test_a_sentence_is_spoken_before_the_next_is_written(bench: Bench) -> None:
    pen = Pen()
    speech = bench.synthesizer.speak(request(""), pen.text())
    events = speech.events()
    for delta in ("One sen", "tence here", ". And th"):
        pen.write(delta)
    heard_events: list[Any] = []
    while not isinstance(event := await anext(events), Spoken):
        heard_events.append(event)
    assert event.text == "One sentence here."
    assert event.start == 0
    assert event.end == sum(map(len, heard_events)) / 24000
    pen.write("e rest")
    pen.end()
    rest = [event async for event in events]
    assert isinstance(rest[-1], Spoken)
    assert rest[-1].text == "And the rest"
    assert rest[-1].start == event.end
    assert speech.outcome == "complete"


async def test_a_flush_speaks_half_a_sentence_and_says_when_it_has(bench: Bench) -> None:
    pen = Pen()
    speech = bench.synthesizer.speak(request(""), pen.text())
    pen.write("Half a sentence")
    pen.write(None)
    events = speech.events()
    kinds = []
    while not isinstance(event := await anext(events), Flushed):
        kinds.append(type(event))
    assert kinds[-1] is Spoken
    pen.write(None)  # nothing new: passes at once
    assert isinstance(await anext(events), Flushed)
    pen.end()
    assert [event async for event in events] == []
    assert speech.chunks == ["Half a sentence"]


@pytest.mark.parametrize("parts", [(), ("",), (" ", "!?"), (None,), ("<|eo", "t_id|>")])
async def test_written_text_without_a_word_is_silence(bench: Bench, parts: tuple[str | None, ...]) -> None:
    speech = bench.synthesizer.speak(request(""), deltas(parts))
    assert [samples async for samples in speech] == []
    assert speech.outcome == "complete"
    assert not bench.engine.started


async def test_written_text_is_read_while_nobody_listens_and_then_shares_chunks(bench: Bench) -> None:
    written = asyncio.Event()

    async def text() -> AsyncIterator[str]:
        for number in range(12):
            yield f"This is sentence {number}. "
            await asyncio.sleep(0)
        written.set()

    speech = bench.synthesizer.speak(request("", max_chunk_size=500), text())
    samples = [await anext(speech)]
    await written.wait()
    assert len(bench.engine.started) <= 2
    samples += [more async for more in speech]
    assert len(speech.chunks) <= 3, "sentences that were all there did not share a chunk"
    assert " ".join(speech.chunks) == " ".join(f"This is sentence {number}." for number in range(12))


async def test_too_much_written_text_is_refused_after_what_was_spoken(bench: Bench) -> None:
    speech = bench.synthesizer.speak(request(""), deltas(["Many words. "] * 2000))
    with pytest.raises(InvalidRequest, match="at most 20000"):
        async for _ in speech:
            pass
    assert speech.outcome == "error"


async def test_a_writer_that_fails_ends_the_speech(bench: Bench) -> None:
    async def text() -> AsyncIterator[str]:
        yield "A first sentence. And"
        raise ConnectionError("the writer left")

    speech = bench.synthesizer.speak(request(""), text())
    with pytest.raises(ConnectionError):
        async for _ in speech:
            pass
    assert speech.outcome == "error"


async def test_leaving_while_text_is_written_frees_everything(bench: Bench) -> None:
    closed = asyncio.Event()
    pen = Pen()

    async def text() -> AsyncIterator[str | None]:
        try:
            async for delta in pen.text():
                yield delta
        finally:
            closed.set()

    speech = bench.synthesizer.speak(request(""), text())
    pen.write("A first sentence. And")
    assert len(await anext(speech))
    reader = asyncio.create_task(_drain(speech))
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])
    await speech.aclose()
    assert speech.outcome == "cancelled"
    assert closed.is_set()


async def _drain(speech: Any) -> None:
    async for _ in speech:
        pass


async def test_max_tokens_holds_over_all_written_text(bench: Bench) -> None:
    text = deltas(["A first sentence. ", "A second sentence. "] * 5)
    speech = bench.synthesizer.speak(request("", max_tokens=50, max_chunk_size=40), text)
    async for _ in speech:
        pass
    assert speech.outcome == "length"
    assert speech.stats.tokens <= 50
