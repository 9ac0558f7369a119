"""The promises of `engines/base.py`, kept by every engine.

`subject` is a started engine whose streams are long (a scripted one of 400 frames, a noise model that seldom ends).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from orpheus_serving.engines.base import Engine, Sampling
from orpheus_serving.engines.scripted import ScriptedEngine
from orpheus_serving.engines.transformers import TransformersEngine
from orpheus_serving.errors import EngineError
from orpheus_serving.noise_checkpoint import NOISE_LAYOUT

LAYOUT = NOISE_LAYOUT
FRAMES = [LAYOUT.token(slot, (13 * frame + slot) % 1024) for frame in range(400) for slot in range(7)]
PROMPT = LAYOUT.prompt_ids([50, 51, 52])

Make = Callable[[], Engine]


@pytest.fixture(params=["scripted", "transformers", "transformers batched", "cuda"])
def make(request: pytest.FixtureRequest, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    if request.param == "scripted":
        return lambda: ScriptedEngine(FRAMES, layout=LAYOUT)
    if request.param == "cuda":  # its GPU is a stand-in
        import interpreted  # noqa: F401
        from row_standin import RowStandin

        from orpheus_serving.engines import cuda

        monkeypatch.setattr(cuda, "RowModel", RowStandin)
        monkeypatch.setattr(RowStandin, "seconds", 0.001)  # or a stream of 590 ids would be over before anybody can stop it
        return lambda: cuda.CudaEngine(checkpoint, LAYOUT, max_streams=3, max_length=600, memory=1000, device="cpu")
    exact = request.param == "transformers"
    return lambda: TransformersEngine(
        checkpoint, LAYOUT, device="cpu", dtype="float32", max_streams=3, max_length=600, exact=exact
    )


@pytest.fixture
async def subject(make: Make) -> AsyncIterator[Engine]:
    engine = make()
    await engine.start()
    yield engine
    await engine.stop()


async def read(engine: Engine, sampling: Sampling, name: str = "r", prompt: list[int] = PROMPT) -> list[int]:
    ids: list[int] = []
    async for batch in engine.generate(prompt, sampling, name):
        assert batch, "an empty list"
        assert LAYOUT.end_of_speech not in ids, "something came after the end of speech"
        ids += batch
    return ids


@pytest.mark.parametrize("count", [1, 6, 7, 8, 30])
async def test_a_stream_ends_after_max_tokens(subject: Engine, count: int) -> None:
    ids = await read(subject, Sampling(count, seed=3))
    assert len(ids) == count or (len(ids) < count and ids[-1] == LAYOUT.end_of_speech)


async def test_ids_come_in_slot_order(subject: Engine) -> None:
    ids = await read(subject, Sampling(140, seed=5))
    codes = [i for i in ids if i != LAYOUT.end_of_speech]
    assert [LAYOUT.slot(i) for i in codes] == [n % 7 for n in range(len(codes))]


async def test_a_list_holds_a_whole_frame(subject: Engine) -> None:
    lists = [batch async for batch in subject.generate(PROMPT, Sampling(30, seed=1), "r")]
    assert [len(batch) for batch in lists] == [7, 7, 7, 7, 2]


@pytest.mark.parametrize("lists", [0, 1, 3])
async def test_closing_ends_a_request_and_others_go_on(subject: Engine, lists: int) -> None:
    expected = await read(subject, Sampling(70, seed=1))
    other = asyncio.create_task(read(subject, Sampling(70, seed=1), "other"))
    stream = subject.generate(PROMPT, Sampling(590, seed=2), "closed")
    for _ in range(lists):
        await anext(stream)
    await stream.aclose()
    assert await other == expected
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_cancelling_the_reader_ends_the_request(subject: Engine) -> None:
    first = asyncio.Event()

    async def reader() -> None:
        async for _ in subject.generate(PROMPT, Sampling(590, seed=2), "cancelled"):
            first.set()

    task = asyncio.create_task(reader())
    await first.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert len(await read(subject, Sampling(14, seed=1))) == 14


@pytest.mark.parametrize("make", ["scripted", "transformers"], indirect=True)
async def test_overlapping_requests_say_what_they_say_alone(make: Make) -> None:
    """Prompts, lengths and settings differ, and there are more requests than rows: some wait in the queue."""
    engine = make()
    await engine.start()
    requests = [
        (
            LAYOUT.prompt_ids([40 + n] * (1 + 5 * n)),
            Sampling(35 + 21 * n, temperature=[0.6, 0.0, 1.5][n % 3], top_p=[0.8, 1.0][n % 2], top_k=[0, 40][n % 2], seed=n),
        )
        for n in range(8)
    ]
    alone = [await read(engine, sampling, str(n), prompt) for n, (prompt, sampling) in enumerate(requests)]
    together = await asyncio.gather(*(read(engine, sampling, str(n), prompt) for n, (prompt, sampling) in enumerate(requests)))
    assert together == alone
    await engine.stop()


async def test_stop_ends_everybody_with_an_error(make: Make) -> None:
    engine = make()
    await engine.start()
    streams = [engine.generate(PROMPT, Sampling(590, seed=n), str(n)) for n in range(5)]
    for stream in streams[:3]:
        await anext(stream)
    waiting = [asyncio.create_task(anext(stream)) for stream in streams[3:]]
    await asyncio.sleep(0)
    await engine.stop()
    for stream in streams[:3]:
        with pytest.raises(EngineError):
            async for _ in stream:
                pass
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, EngineError | list)
    with pytest.raises(EngineError, match="stopped"):
        await read(engine, Sampling(7))


async def test_a_request_before_start_is_an_error(make: Make) -> None:
    with pytest.raises(EngineError, match="not started"):
        await read(make(), Sampling(7))


async def test_an_engine_starts_again_after_stop(make: Make) -> None:
    engine = make()
    for _ in range(2):
        assert engine.failure
        await engine.start()
        assert not engine.failure
        assert len(await read(engine, Sampling(14, seed=1))) == 14
        await engine.stop()
