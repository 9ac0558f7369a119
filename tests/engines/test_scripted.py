"""The scripted engine's controls; the promises of every engine are tested in test_promises.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.scripted import ScriptedEngine
from orpheus_serving.errors import EngineError
from orpheus_serving.tokens import TokenLayout

END = TokenLayout().end_of_speech


async def read(engine: ScriptedEngine, count: int = 100, name: str = "r") -> list[list[int]]:
    return [batch async for batch in engine.generate([1, 2], Sampling(count), name)]


async def test_scripts_are_ids_a_mapping_or_a_function() -> None:
    def script(prompt: Sequence[int], sampling: Sampling, request_id: str) -> Iterator[int]:
        yield from (*prompt, sampling.max_tokens, len(request_id))

    for engine, expected in (
        (ScriptedEngine([5, 6]), [[5, 6]]),
        (ScriptedEngine({"r": [7]}), [[7]]),
        (ScriptedEngine(script), [[1, 2, 100, 1]]),
    ):
        await engine.start()
        assert await read(engine) == expected
        assert await read(engine) == expected


async def test_list_size_end_of_speech_and_max_tokens() -> None:
    engine = ScriptedEngine([1, 2, 3, 4, END, 9], list_size=2)
    await engine.start()
    assert await read(engine) == [[1, 2], [3, 4], [END]]
    assert await read(engine, 3) == [[1, 2], [3]]


async def test_a_paced_engine_waits_for_the_test() -> None:
    engine = ScriptedEngine(range(21), paced=True)
    await engine.start()
    stream = engine.generate([1], Sampling(100), "a")
    turn = asyncio.ensure_future(anext(stream))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not turn.done()
    assert (engine.started, engine.active, engine.closed) == (["a"], {"a"}, [])
    engine.advance()
    assert await turn == list(range(7))
    turn = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    turn.cancel()
    await asyncio.wait([turn])
    assert (engine.active, engine.closed) == (set(), ["a"])
    engine.advance(3)
    assert len(await read(engine, name="b")) == 3
    assert engine.closed == ["a", "b"]


async def test_a_turn_given_to_a_cancelled_request_is_not_lost() -> None:
    engine = ScriptedEngine(range(7), paced=True)
    await engine.start()
    first, second = (asyncio.create_task(read(engine, name=name)) for name in "ab")
    for _ in range(5):
        await asyncio.sleep(0)
    first.cancel()
    engine.advance()
    assert await second == [list(range(7))]


@pytest.mark.parametrize("after", [0, 3, 7, 10])
async def test_a_failure_comes_after_as_many_ids(after: int) -> None:
    engine = ScriptedEngine(range(50), fail_after=after)
    await engine.start()
    ids: list[int] = []

    async def keep() -> None:
        async for batch in engine.generate([1], Sampling(100), "r"):
            ids.extend(batch)

    with pytest.raises(EngineError, match=f"after {after} ids"):
        await keep()
    assert ids == list(range(after))
    assert engine.closed == ["r"]


async def test_a_script_that_raises_fails_its_request_alone() -> None:
    def script(prompt: Sequence[int], sampling: Sampling, request_id: str) -> Iterator[int]:
        yield 1
        if request_id == "bad":
            raise ValueError("a bad script")
        yield 2

    engine = ScriptedEngine(script)
    await engine.start()
    good, bad = await asyncio.gather(read(engine, name="good"), read(engine, name="bad"), return_exceptions=True)
    assert good == [[1, 2]]
    assert isinstance(bad, EngineError)
    assert "a bad script" in str(bad)


async def test_stop_wakes_a_paced_request() -> None:
    engine = ScriptedEngine(range(7), paced=True)
    await engine.start()
    task = asyncio.create_task(read(engine))
    await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(EngineError, match="stopped"):
        await task
