"""Briton's text into ids: the parser against a whole-text reference, and the engine against a runtime in the test."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import StreamingResponse

from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.briton import MAX_DIGITS, PREFIX, BritonEngine, CustomTokenParser
from orpheus_serving.errors import EngineError
from orpheus_serving.tokens import TokenLayout

LAYOUT = TokenLayout()
WHOLE = re.compile(r"<custom_token_(0|[1-9][0-9]{0,6})>")


def token(number: int) -> str:
    return f"<custom_token_{number}>"


def frames(count: int) -> list[int]:
    return [LAYOUT.token(slot, (31 * frame + slot) % 4096) for frame in range(count) for slot in range(7)]


def text_of(ids: Sequence[int]) -> str:
    return "".join(token(i - 128256) for i in ids)


# --- the parser

pieces_of_text = st.lists(
    st.one_of(
        st.integers(0, 10**MAX_DIGITS - 1).map(token),
        st.sampled_from(
            ["<", ">", "<<", PREFIX, PREFIX + "1", PREFIX + ">", PREFIX + "007>", PREFIX + "12345678>", "<custom_", " "]
        ),
        st.text(alphabet="<>custom_token0123456789 é\n٣", max_size=24),
    ),
    max_size=12,
).map("".join)


@given(pieces_of_text, st.data())
def test_any_cut_of_any_text_gives_the_tokens_of_the_whole(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    parser = CustomTokenParser()
    numbers = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        numbers += parser.feed(text[start:end])
    parser.finish()
    assert numbers == [int(n) for n in WHOLE.findall(text)]
    assert parser.stray == len(WHOLE.sub("", text).replace(" ", ""))


@given(st.lists(st.integers(0, 28_683), max_size=30))
def test_a_token_comes_out_with_its_last_character(numbers: list[int]) -> None:
    parser = CustomTokenParser()
    for number in numbers:
        for character in token(number)[:-1]:
            assert parser.feed(character) == []
        assert parser.feed(">") == [number]
    parser.finish()
    assert parser.stray == 0


def test_work_grows_with_the_text_and_not_faster() -> None:
    """Characters looked at, counted on the strings themselves: no clock."""

    class Counted(str):
        looked = 0

        def __radd__(self, tail: str) -> str:
            Counted.looked += len(tail) + len(self)
            return tail + str(self)

    looked = []
    for count in (100, 1_000):
        Counted.looked = 0
        parser = CustomTokenParser()
        for character in PREFIX + "1" * (18 * count):
            parser.feed(Counted(character))
        looked.append(Counted.looked)
    assert looked[1] < 11 * looked[0]


# --- the engine

Answer = Callable[[Request], AsyncGenerator[str | bytes, None]]


class Runtime:
    """The injected engine: answers with chunks of text; `answer` may wait, fail, or look at the request."""

    def __init__(self, answer: Callable[[Request], AsyncGenerator[str | bytes, None]], wrap: Callable[[Any], Any] = lambda a: a):
        self.answer = answer
        self.wrap = wrap
        self.inputs: list[dict[str, Any]] = []
        self.open = 0

    async def predict(self, model_input: dict[str, Any], request: Request) -> Any:
        self.inputs.append(model_input)
        return self.wrap(self._stream(request))

    async def _stream(self, request: Request) -> AsyncGenerator[str | bytes, None]:
        self.open += 1
        answer = self.answer(request)
        try:
            async for text in answer:
                yield text
        finally:
            await answer.aclose()
            self.open -= 1


def says(*chunks: str | bytes) -> Answer:
    async def answer(request: Request) -> AsyncGenerator[str | bytes, None]:
        for chunk in chunks:
            await asyncio.sleep(0)
            yield chunk

    return answer


async def started(runtime: Any, layout: TokenLayout = LAYOUT, **more: Any) -> BritonEngine:
    engine = BritonEngine(runtime, layout, lambda ids: "|".join(map(str, ids)), **more)
    await engine.start()
    return engine


async def read(engine: BritonEngine, sampling: Sampling, name: str = "r") -> list[int]:
    lists = [ids async for ids in engine.generate([1, 2], sampling, name)]
    assert all(lists), "an empty list"
    return [i for ids in lists for i in ids]


@pytest.mark.parametrize("wrap", [lambda a: a, StreamingResponse], ids=["generator", "response"])
async def test_an_answer_that_ended_by_itself_gets_its_end_of_speech(wrap: Callable[[Any], Any]) -> None:
    ids = frames(3)
    text = text_of(ids)
    engine = await started(Runtime(says(text[:5], text[5:40], text[40:]), wrap))
    assert await read(engine, Sampling(100)) == [*ids, LAYOUT.end_of_speech]


async def test_bytes_are_text_too() -> None:
    engine = await started(Runtime(says(text_of(frames(1)).encode())))
    assert await read(engine, Sampling(100)) == [*frames(1), LAYOUT.end_of_speech]


async def test_a_cut_answer_gets_no_end() -> None:
    ids = frames(2)
    runtime = Runtime(says(text_of(ids)))
    assert await read(await started(runtime), Sampling(14)) == ids


async def test_an_answer_that_the_runtime_cuts_at_its_own_length_gets_no_end() -> None:
    """It lowers `max_tokens` to what its length leaves, and says nothing of it."""
    ids = frames(2)

    class Short(Runtime):
        async def predict(self, model_input: dict[str, Any], request: Request) -> Any:
            before = 1 + len(model_input["prompt"].split("|"))  # its tokenizer adds a begin of text
            said = ids[: min(model_input["max_tokens"], 17 - before)]
            self.answer = says(text_of(said))
            return await super().predict(model_input, request)

    runtime = Short(says())
    engine = await started(runtime, max_length=17)
    assert await read(engine, Sampling(100)) == ids
    assert await read(engine, Sampling(9)) == ids[:9]
    assert [sent["max_tokens"] for sent in runtime.inputs] == [14, 9]
    assert await read(await started(Short(says()), max_length=18), Sampling(100)) == [*ids, LAYOUT.end_of_speech]


async def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    runtime = Runtime(says())
    with pytest.raises(EngineError, match=r"2 ids leaves no room .*max_seq_len"):
        await read(await started(runtime, max_length=3), Sampling(100))
    assert not runtime.inputs


async def test_a_runtime_that_says_more_than_it_was_asked_for_is_cut_and_closed() -> None:
    runtime = Runtime(says(text_of(frames(2)), text_of(frames(5))))
    assert await read(await started(runtime), Sampling(10)) == frames(2)[:10]
    assert runtime.open == 0


async def test_an_end_that_is_spoken_ends_the_stream() -> None:
    runtime = Runtime(says(text_of(frames(1)) + token(2) + text_of(frames(1)), text_of(frames(9))))
    assert await read(await started(runtime), Sampling(100)) == [*frames(1), LAYOUT.end_of_speech]
    assert runtime.open == 0


async def test_strays_are_counted_and_never_make_a_cut_look_like_an_end() -> None:
    engine = await started(Runtime(says("Sure! " + text_of(frames(1)), " " + text_of(frames(1)) + "<custom_tok")))
    assert await read(engine, Sampling(20)) == frames(1) * 2  # 14 ids and 16 characters: may well have been 20 tokens
    assert engine.stray == len("Sure!<custom_tok")
    assert await read(engine, Sampling(31)) == [*frames(1), *frames(1), LAYOUT.end_of_speech]


async def test_every_call_has_a_dict_of_its_own() -> None:
    runtime = Runtime(says(token(10)))
    engine = await started(runtime)
    await read(engine, Sampling(50, seed=7), "first")
    runtime.inputs[0]["prompt"] = "scribbled over"
    await read(engine, Sampling(60, temperature=0, top_k=40), "second")
    await read(engine, Sampling(60, temperature=1e-5), "third")
    first, second, third = runtime.inputs
    assert first == {
        "prompt": "scribbled over",
        "max_tokens": 50,
        "temperature": 0.6,
        "top_p": 0.8,
        "top_k": 0,
        "repetition_penalty": 1.1,
        "end_id": LAYOUT.end_of_speech,
        "request_id": "first",
        "seed": 7,
    }
    assert second["prompt"] == "1|2"
    assert "seed" not in second
    assert second["top_k"] == 1, "greedy"
    assert second["temperature"] == third["temperature"] == 1
    assert third["top_k"] == 1, "so cold that it is greedy, as in every engine"


async def test_a_layout_with_other_offsets() -> None:
    layout = TokenLayout(first_code=1010, codes_per_slot=16, end_of_speech=1002, prompt_before=(1,), prompt_after=(2,))
    engine = await started(Runtime(says(token(10) + token(25))), layout)
    assert await read(engine, Sampling(9)) == [1010, 1025, 1002]
    engine = await started(Runtime(says(token(0))), layout, first_custom_id=1010)
    assert await read(engine, Sampling(9)) == [1010, 1002]


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_leaving_closes_the_runtimes_stream_at_once(how: str) -> None:
    told: list[bool] = []

    async def endless(request: Request) -> AsyncGenerator[str, None]:
        try:
            yield text_of(frames(1))
            await asyncio.Event().wait()
        finally:
            told.append(await request.is_disconnected())

    runtime = Runtime(endless)
    engine = await started(runtime)
    stream = engine.generate([1], Sampling(100), "r")
    assert await anext(stream) == frames(1)
    if how == "close":
        await stream.aclose()
    else:
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert runtime.open == 0
    assert told == [how == "close"]  # a cancelled runtime knows already


async def test_the_request_of_a_running_call_is_connected() -> None:
    told: list[bool] = []

    async def answer(request: Request) -> AsyncGenerator[str, None]:
        told.append(await request.is_disconnected())
        yield token(10)

    await read(await started(Runtime(answer)), Sampling(9))
    assert told == [False]


async def test_a_failure_is_an_engine_error_and_others_go_on() -> None:
    async def answer(request: Request) -> AsyncGenerator[str, None]:
        yield text_of(frames(1))
        if len(runtime.inputs) == 1:
            raise ConnectionError("the executor died")

    runtime = Runtime(answer)
    engine = await started(runtime)
    with pytest.raises(EngineError, match=r"request r: .*executor died"):
        await read(engine, Sampling(100))
    assert await read(engine, Sampling(100)) == [*frames(1), LAYOUT.end_of_speech]


async def test_an_answer_that_is_no_stream_names_the_tag() -> None:
    engine = await started(Runtime(says(), wrap=lambda a: {"text": "whole"}))
    with pytest.raises(EngineError, match="force-legacy-api"):
        await read(engine, Sampling(100))


async def test_it_is_well_between_start_and_stop() -> None:
    engine = BritonEngine(Runtime(says()), LAYOUT, str)
    for _ in range(2):
        with pytest.raises(EngineError, match="not started"):
            await read(engine, Sampling(100))
        assert engine.failure
        await engine.start()
        assert not engine.failure
        await engine.stop()


async def test_stop_ends_everybody_with_an_error() -> None:
    async def endless(request: Request) -> AsyncGenerator[str, None]:
        yield text_of(frames(1))
        await asyncio.Event().wait()

    runtime = Runtime(endless)
    engine = await started(runtime)
    waiting = asyncio.create_task(read(engine, Sampling(100), "waiting"))
    paused = engine.generate([1], Sampling(100), "paused")
    await anext(paused)
    for _ in range(10):  # `waiting` reads its first list and waits for a second one
        await asyncio.sleep(0)
    assert runtime.open == 2
    await engine.stop()
    with pytest.raises(EngineError, match="stopped"):
        await waiting
    assert waiting.cancelling() == 0
    with pytest.raises(EngineError, match="stopped"):
        await anext(paused)
    with pytest.raises(EngineError, match="stopped"):
        await read(engine, Sampling(100))
    assert runtime.open == 0
