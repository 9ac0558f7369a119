"""The GPU engine's host side: who gets rows, places and pages, and when. The GPU's side is a stand-in that checks every row.

The kernels have tests of their own (test_cuda_kernels.py), and the model as a whole is compared in test_cuda_model.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import interpreted  # noqa: F401  first: the engine imports its kernels
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_standin import RowStandin, said

from orpheus_serving.engines import cuda
from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.cuda import PROMPT_ROWS, CudaEngine
from orpheus_serving.engines.cuda_kernels import PAGE
from orpheus_serving.errors import CheckpointError, EngineError
from orpheus_serving.noise_checkpoint import NOISE_LAYOUT as LAYOUT

LENGTH = 1024


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "RowModel", RowStandin)
    RowStandin.made.clear()


@contextlib.asynccontextmanager
async def started(checkpoint: Path, max_streams: int = 3, pages: int = 100) -> AsyncIterator[CudaEngine]:
    engine = CudaEngine(checkpoint, LAYOUT, max_streams=max_streams, max_length=LENGTH, memory=pages + 1, device="cpu")
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def model() -> RowStandin:
    return RowStandin.made[-1]


def expected(prompt: list[int], seed: int, budget: int) -> list[int]:
    ids = []
    for token in islice(said(LAYOUT, prompt, seed), budget):
        ids.append(token)
        if token == LAYOUT.end_of_speech:
            break
    return ids


async def read(
    engine: CudaEngine, prompt: list[int], seed: int, budget: int, name: str = "r", lists: int | None = None
) -> list[int]:
    ids: list[int] = []
    async with contextlib.aclosing(engine.generate(prompt, Sampling(budget, seed=seed), name)) as stream:
        if lists == 0:
            return ids
        async for part in stream:
            assert len(part) == LAYOUT.slots or part[-1] == LAYOUT.end_of_speech or len(ids) + len(part) == budget
            ids += part
            lists = None if lists is None else lists - 1
            if lists == 0:
                break
    return ids


def prompt_of(length: int, ends: bool) -> list[int]:
    return [5 if ends else 4, *(10 + n % 50 for n in range(length - 1))]


async def everything_is_free(engine: CudaEngine, max_streams: int, pages: int) -> None:
    """Once the worker has seen that everybody left. A last request makes sure that it has looked."""
    await read(engine, prompt_of(3, ends=False), 0, 1)
    while engine._has_work():  # noqa: ASYNC110 - the worker tells nobody
        await asyncio.sleep(0)
    assert sorted(engine._free_places) == list(range(max_streams))
    assert sorted(engine._free_pages) == list(range(1, pages + 1))


Request = tuple[int, bool, int, int, int | None]
REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 700),  # ids of the prompt
        st.booleans(),  # does it end by itself
        st.integers(0, 1000),  # seed
        st.integers(1, 300),  # max_tokens
        st.none() | st.integers(0, 4),  # leave after so many lists
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS, max_streams=st.integers(1, 5), pages=st.integers(16, 40))
def test_everybody_hears_what_he_asked_for_and_leaves_nothing_behind(
    checkpoint: Path, requests: list[Request], max_streams: int, pages: int
) -> None:
    async def run() -> None:
        async with started(checkpoint, max_streams, pages) as engine:
            prompts = [prompt_of(length, ends) for length, ends, *_ in requests]
            heard = await asyncio.gather(
                *(
                    read(engine, prompt, seed, budget, f"r{n}", lists)
                    for n, (prompt, (_, _, seed, budget, lists)) in enumerate(zip(prompts, requests, strict=True))
                )
            )
            for ids, prompt, (_, _, seed, budget, lists) in zip(heard, prompts, requests, strict=True):
                whole = expected(prompt, seed, budget)
                assert ids == (whole if lists is None else whole[: lists * LAYOUT.slots])
            await everything_is_free(engine, max_streams, model().pages - 1)

    asyncio.run(run())


async def test_a_long_prompt_takes_several_steps_and_holds_nobody_up(checkpoint: Path) -> None:
    async with started(checkpoint) as engine:
        short = asyncio.create_task(read(engine, prompt_of(4, ends=False), 1, 70))
        await read(engine, prompt_of(3 * PROMPT_ROWS + 5, ends=False), 2, 7)
        assert await short == expected(prompt_of(4, ends=False), 1, 70)
        assert model().largest <= PROMPT_ROWS + 2


async def test_those_ahead_of_their_listeners_leave_the_steps_to_a_newcomer(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One id of theirs is heard for hours, so from their second step on nothing of theirs is missing."""
    monkeypatch.setattr(cuda, "FEW", 2)
    budget = 70

    async def ask(seed: int, length: int, pace: float | None) -> None:
        prompt, ids = prompt_of(length, ends=False), []
        async for part in engine.generate(prompt, Sampling(budget, seed=seed, pace=pace), f"r{seed}"):
            ids += part
        assert ids == expected(prompt, seed, budget)

    async with started(checkpoint, max_streams=6) as engine:
        begun = len(model().sent)
        model().gate.clear()
        asked = [asyncio.create_task(ask(seed, 4, 0.0001)) for seed in range(5)]
        asked.append(asyncio.create_task(ask(5, 3, None)))
        while len(engine._waiting) + len(engine._reading) < 6:  # noqa: ASYNC110 - they have all asked
            await asyncio.sleep(0)
        model().gate.set()
        await asyncio.gather(*asked)
        newcomer = next(place for place, state in model().places.items() if len(state.prompt) == 3)
        steps = [set(step) for step in model().sent[begun:] if len(step) == len(set(step))]  # those without a prompt
    beside = [step - {newcomer} for step in steps if newcomer in step]
    assert len(beside) == budget - 1
    assert {len(others) for others in beside} == {1}
    shares = [sum(place in others for others in beside) for place in range(6) if place != newcomer]
    assert max(shares) - min(shares) <= 1, "who has least is next"
    assert max(map(len, steps)) == 5, "nobody is held back once he is gone"


async def test_hundreds_of_listeners_are_kept_in_time_by_steps_of_some_rows(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock of the stand-in's steps, which take 2 ms and 0.1 ms a row: 40 rows would be 1.7 times what is needed."""
    streams, pace, few, budget, newcomers = 40, 100.0, 4, 700, 25
    clock = 0.0
    ends: list[float] = []

    class Clocked(RowStandin):
        def step(self, places: Sequence[int], positions: Sequence[int], tokens: Sequence[int]) -> Any:
            nonlocal clock
            clock += 0.002 + 0.0001 * len(places)
            ends.append(clock)
            return super().step(places, positions, tokens)

    monkeypatch.setattr(cuda, "RowModel", Clocked)
    monkeypatch.setattr(cuda, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(cuda, "FEW", few)

    async def ask(seed: int) -> None:
        prompt, ids = prompt_of(4, ends=False), []
        async for part in engine.generate(prompt, Sampling(budget, seed=seed, pace=pace), f"r{seed}"):
            ids += part
        assert ids == expected(prompt, seed, budget)

    async with started(checkpoint, max_streams=streams, pages=streams * 12) as engine:
        begun = len(ends)
        model().gate.clear()
        asked = [asyncio.create_task(ask(seed)) for seed in range(streams)]
        asked += [asyncio.create_task(ask(streams + seed)) for seed in range(newcomers)]  # each when a place is free
        while len(engine._waiting) + len(engine._reading) < streams + newcomers:  # noqa: ASYNC110 - they have all asked
            await asyncio.sleep(0)
        model().gate.set()
        await asyncio.gather(*asked)
        steps = list(zip(ends[begun:], model().sent[begun:], strict=True))
    drawn: dict[int, list[float]] = {}  # when each of a place's ids came, stream after stream
    for end, places in steps:
        for place in set(places):
            if places.count(place) == 1 or place not in drawn or len(drawn[place]) % budget == 0:
                drawn.setdefault(place, []).append(end)
    assert sum(map(len, drawn.values())) == (streams + newcomers) * budget
    for times in drawn.values():
        for at in range(0, len(times), budget):
            first = times[at + 21]
            late = [time - first - (n - 21) / pace for n, time in enumerate(times[at : at + budget]) if n > 21]
            assert max(late) < 0.1
    settled = [len(places) for end, places in steps if 3 < end < 5]
    assert max(settled) < 0.75 * streams
    assert min(settled) >= few


async def test_who_waits_for_pages_is_served_in_turn(checkpoint: Path) -> None:
    """The second needs all pages; the third, who would fit beside the first, does not overtake it."""
    done = []

    async def request(name: str, length: int, budget: int) -> None:
        await read(engine, prompt_of(length, ends=False), 0, budget, name)
        done.append(name)

    async with started(checkpoint, pages=8) as engine:
        model().gate.clear()
        tasks = [
            asyncio.create_task(request(name, length, budget))
            for name, length, budget in (("first", PAGE, PAGE), ("second", 7 * PAGE, PAGE), ("third", 10, 7))
        ]
        while len(engine._waiting) + len(engine._reading) < 3:  # noqa: ASYNC110 - they have all asked
            await asyncio.sleep(0)
        model().gate.set()
        await asyncio.gather(*tasks)
    assert done == ["first", "second", "third"]


async def test_what_never_fits_is_refused_at_once(checkpoint: Path) -> None:
    async with started(checkpoint, pages=4) as engine:
        with pytest.raises(
            EngineError, match="more than the whole cache of 256; shorten the text or give the engine more memory"
        ):
            await read(engine, prompt_of(200, ends=False), 0, 100)
        assert len(await read(engine, prompt_of(200, ends=False), 0, 56)) == 56


async def test_a_gpu_that_fails_ends_everybody_with_its_reason(checkpoint: Path) -> None:
    async with started(checkpoint) as engine:
        model().fail_at = 9
        calls = [read(engine, prompt_of(5 + n, ends=False), n, 200, f"r{n}") for n in range(5)]  # two of them wait
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(answer) for answer in answers] == [
            f"request r{n}: the engine failed: the GPU fell off the bus" for n in range(5)
        ]
        with pytest.raises(EngineError, match="request late: the engine failed: the GPU fell off the bus"):
            await read(engine, prompt_of(5, ends=False), 0, 7, "late")
        assert engine.failure == "the engine failed: the GPU fell off the bus"
        await engine.start()  # anew
        assert not engine.failure
        assert await read(engine, prompt_of(5, ends=False), 3, 14) == expected(prompt_of(5, ends=False), 3, 14)


async def test_a_request_that_comes_while_the_gpu_fails_hears_so(checkpoint: Path) -> None:
    """It finds the engine well, and when it is in the line the worker is gone."""

    class Prompt(list[int]):
        def __iter__(self) -> Iterator[int]:
            model().gate.set()
            for thread in threading.enumerate():
                if thread.name == "engine":
                    thread.join(30)
            return super().__iter__()

    async with started(checkpoint) as engine:
        model().fail_at = model().steps + 1
        model().gate.clear()
        running = asyncio.create_task(read(engine, prompt_of(5, ends=False), 0, 7))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="request late: the engine failed: the GPU fell off the bus"):
            await asyncio.wait_for(read(engine, Prompt([4, 10, 11]), 0, 7, "late"), 30)
        with pytest.raises(EngineError, match="fell off"):
            await running


async def test_a_step_that_cannot_be_read_ends_those_whose_last_it_was_too(checkpoint: Path) -> None:
    """They have no more rows to come, and so stand in no other list of the engine."""
    async with started(checkpoint) as engine:
        model().unreadable = model().steps + 3
        with pytest.raises(EngineError, match="request r: the engine failed: the GPU fell off the bus"):
            await asyncio.wait_for(read(engine, prompt_of(5, ends=False), 0, 3), 30)


async def test_it_can_be_stopped_midway_and_started_again(checkpoint: Path) -> None:
    async with started(checkpoint) as engine:
        model().gate.clear()
        running = asyncio.create_task(read(engine, prompt_of(5, ends=False), 0, 1000))
        stopping = asyncio.create_task(engine.stop())
        while not engine._stopping:  # noqa: ASYNC110 - the step that is under way is let go once the stop is asked for
            await asyncio.sleep(0)
        model().gate.set()
        await stopping
        with pytest.raises(EngineError, match="the engine was stopped"):
            await running
        await engine.start()
        assert await read(engine, prompt_of(5, ends=False), 3, 14) == expected(prompt_of(5, ends=False), 3, 14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: CudaEngine(folder, LAYOUT, memory=1, device="cpu"), r"0\.0 GB .* a page takes .* lower max_streams"),
        (lambda folder: CudaEngine(folder, LAYOUT, memory=-(2 << 30), device="cpu"), r" 0\.0 GB"),
        (lambda folder: CudaEngine(folder / "nowhere", LAYOUT, memory=100, device="cpu"), "nowhere"),
    ],
)
async def test_a_start_that_cannot_work_says_why(checkpoint: Path, make: Callable[[Path], CudaEngine], message: str) -> None:
    engine = make(checkpoint)
    with pytest.raises((CheckpointError, EngineError), match=message):
        await engine.start()
    with pytest.raises(EngineError, match="not started"):
        await read(engine, prompt_of(5, ends=False), 0, 7)
