"""What the embedded engine promises beyond `base.py`: rows, the queue, seeds, contained failures."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.llama import LlamaDecoder
from orpheus_serving.engines.transformers import HUB_IGNORED, HUB_PATTERNS, TransformersEngine
from orpheus_serving.errors import CheckpointError, EngineError
from orpheus_serving.noise_checkpoint import NOISE_LAYOUT as LAYOUT
from orpheus_serving.noise_checkpoint import build_noise_lm

PROMPT = LAYOUT.prompt_ids([50, 51, 52])
LENGTH = 300


def engine_of(checkpoint: str | Path, **options: Any) -> TransformersEngine:
    return TransformersEngine(checkpoint, LAYOUT, **{"device": "cpu", "max_streams": 2, "max_length": LENGTH} | options)


@pytest.fixture
async def engine(checkpoint: Path) -> AsyncIterator[TransformersEngine]:
    engine = engine_of(checkpoint)
    await engine.start()
    yield engine
    await engine.stop()


async def read(engine: TransformersEngine, sampling: Sampling, name: str = "r", prompt: list[int] = PROMPT) -> list[int]:
    return [i async for batch in engine.generate(prompt, sampling, name) for i in batch]


class Steps:
    """Holds the engine's worker before every decode step until a test lets it go on, and records who runs.

    A step is what the decoder gets to see: `lengths` has the ids so far of each busy row.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lengths: list[list[int]] = []
        self._reached = threading.Semaphore(0)
        self._allowed = threading.Semaphore(0)
        self._free = False
        decode = LlamaDecoder.decode

        def held(decoder: LlamaDecoder, rows: list[int], tokens: list[int], lengths: list[int]) -> torch.Tensor:
            self.lengths.append(list(lengths))
            self._reached.release()
            if not self._free:
                self._allowed.acquire()
            return decode(decoder, rows, tokens, lengths)

        monkeypatch.setattr(LlamaDecoder, "decode", held)

    async def reached(self) -> list[int]:
        """Wait until the worker stands before a step that was not seen yet; its lengths."""
        await asyncio.to_thread(self._reached.acquire)
        return self.lengths[-1]

    def allow(self) -> None:
        self._allowed.release()

    def free(self) -> None:
        self._free = True
        self._allowed.release()


@pytest.fixture
def steps(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


async def test_a_seed_repeats_and_seeds_differ(engine: TransformersEngine) -> None:
    first = await read(engine, Sampling(40, seed=1))
    assert await read(engine, Sampling(40, seed=1)) == first
    assert await read(engine, Sampling(40, seed=2)) != first
    assert await read(engine, Sampling(40)) != await read(engine, Sampling(40))


async def test_the_end_of_speech_is_said_and_comes_last(tmp_path: Path) -> None:
    """With 15 codes a slot, random weights end about every sixteenth frame."""
    layout = dataclasses.replace(LAYOUT, codes_per_slot=15)
    engine = TransformersEngine(build_noise_lm(tmp_path, layout=layout), layout, device="cpu", max_length=LENGTH)
    await engine.start()
    streams = await asyncio.gather(*(read(engine, Sampling(250, temperature=1.5, top_p=1, seed=n)) for n in range(16)))
    await engine.stop()
    ended = [ids for ids in streams if layout.end_of_speech in ids]
    assert ended
    for ids in ended:
        assert len(ids) % 7 == 1
        assert ids.index(layout.end_of_speech) == len(ids) - 1


async def test_unconstrained_ids_come_from_the_whole_vocabulary(checkpoint: Path) -> None:
    engine = engine_of(checkpoint, constrained=False)
    await engine.start()
    ids = await read(engine, Sampling(200, temperature=2.0, top_p=1, seed=1))
    await engine.stop()
    assert any(not LAYOUT.is_code(i) for i in ids)
    assert [LAYOUT.slot(i) for i in ids[:70]] != [n % 7 for n in range(70)]


async def test_ids_of_the_prompt_count_as_repeated(engine: TransformersEngine) -> None:
    """The id that greedy decoding says first is not said if the prompt has it and repetition is forbidden."""
    greedy = Sampling(1, temperature=0, repetition_penalty=1.0)
    [first] = await read(engine, greedy, prompt=PROMPT)
    prompt = [first, *PROMPT]
    [again] = await read(engine, greedy, prompt=prompt)
    [other] = await read(engine, Sampling(1, temperature=0, repetition_penalty=1e6), prompt=[again, *prompt])
    assert other not in (first, again)


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([5] * LENGTH, Sampling(5), f"{LENGTH} ids.*max_length = {LENGTH}"),
        ([], Sampling(5), "0 ids"),
        ([5, 10**6], Sampling(5), "1000000.*outside the vocabulary"),
        ([-1], Sampling(5), "outside the vocabulary"),
        (PROMPT, Sampling(0), "max_tokens"),
    ],
)
async def test_what_cannot_run_is_refused(
    engine: TransformersEngine, prompt: list[int], sampling: Sampling, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        await read(engine, sampling, prompt=prompt)


async def test_a_stream_ends_where_its_row_does(engine: TransformersEngine) -> None:
    ids = await read(engine, Sampling(10**6, temperature=0, repetition_penalty=1.3))
    assert len(ids) == LENGTH - len(PROMPT) or ids[-1] == LAYOUT.end_of_speech
    assert len(await read(engine, Sampling(50), prompt=[5] * (LENGTH - 1))) == 1


async def test_requests_beyond_the_rows_wait_in_order(engine: TransformersEngine, steps: Steps) -> None:
    done: list[str] = []

    async def speak(name: str, count: int) -> None:
        await read(engine, Sampling(count, seed=1), name)
        done.append(name)

    tasks = []
    for name in "abcdef":
        tasks.append(asyncio.create_task(speak(name, 5)))
        await asyncio.sleep(0)
    steps.free()
    await asyncio.gather(*tasks)
    assert done == list("abcdef")
    assert all(len(lengths) <= 2 for lengths in steps.lengths)


async def test_a_stream_joins_and_leaves_between_two_steps(engine: TransformersEngine, steps: Steps) -> None:
    first = asyncio.create_task(read(engine, Sampling(6, seed=1)))
    assert len(await steps.reached()) == 1
    second = asyncio.create_task(read(engine, Sampling(3, seed=2)))
    await asyncio.sleep(0)
    steps.allow()
    assert len(await steps.reached()) == 2
    steps.free()
    assert (len(await first), len(await second)) == (6, 3)
    assert len(steps.lengths[-1]) == 1


async def test_on_a_cpu_who_is_ahead_of_his_listener_waits_for_who_is_not(engine: TransformersEngine, steps: Steps) -> None:
    """Each id of the first is heard for hours."""
    ahead = asyncio.create_task(read(engine, Sampling(60, seed=1, pace=0.0001), "ahead"))
    await steps.reached()
    newcomer = asyncio.create_task(read(engine, Sampling(30, seed=2), "newcomer", prompt=[*PROMPT, 50]))
    while not engine._waiting:  # noqa: ASYNC110 - it has asked
        await asyncio.sleep(0)
    steps.free()
    assert len(await newcomer) == 30
    assert len(await ahead) == 60
    first, *others = steps.lengths
    assert first == [len(PROMPT) + 1]
    assert others[:29] == [[len(PROMPT) + 1 + n] for n in range(1, 30)]
    assert others[29:] == [[len(PROMPT) + n] for n in range(2, 60)]


async def test_a_closed_request_is_out_of_the_next_step(engine: TransformersEngine, steps: Steps) -> None:
    stay = asyncio.create_task(read(engine, Sampling(30, seed=1)))
    await steps.reached()
    leave = asyncio.create_task(read(engine, Sampling(250, seed=2)))
    await asyncio.sleep(0)
    steps.allow()
    assert len(await steps.reached()) == 2
    leave.cancel()
    await asyncio.wait([leave])
    steps.allow()
    assert len(await steps.reached()) == 1
    steps.free()
    assert len(await stay) == 30


async def test_a_request_closed_in_the_queue_never_runs(engine: TransformersEngine, steps: Steps) -> None:
    running = [asyncio.create_task(read(engine, Sampling(8, seed=n))) for n in range(2)]
    await steps.reached()
    queued = asyncio.create_task(read(engine, Sampling(250, seed=2), prompt=[5] * 200))
    await asyncio.sleep(0)
    queued.cancel()
    await asyncio.wait([queued])
    steps.free()
    assert [len(ids) for ids in await asyncio.gather(*running)] == [8, 8]
    assert len(await read(engine, Sampling(3, seed=1))) == 3
    assert all(max(lengths) < 200 for lengths in steps.lengths)


async def test_a_step_that_fails_fails_its_requests_and_no_others(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await read(engine, Sampling(30, seed=1))
    decode = LlamaDecoder.decode
    failures = iter([False, False, True])

    def failing(decoder: LlamaDecoder, rows: list[int], tokens: list[int], lengths: list[int]) -> torch.Tensor:
        if next(failures, False):
            raise RuntimeError("out of luck")
        return decode(decoder, rows, tokens, lengths)

    monkeypatch.setattr(LlamaDecoder, "decode", failing)
    outcomes = await asyncio.gather(*(read(engine, Sampling(30, seed=1), str(n)) for n in range(4)), return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, EngineError)]
    assert 1 <= len(failed) <= 2
    assert all("out of luck" in str(error) and isinstance(error.__cause__, RuntimeError) for error in failed)
    assert [outcome for outcome in outcomes if outcome not in failed] == [expected] * (4 - len(failed))


async def test_a_prompt_that_fails_fails_alone(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await read(engine, Sampling(60, seed=1))
    prefill = LlamaDecoder.prefill

    def failing(decoder: LlamaDecoder, row: int, tokens: list[int]) -> torch.Tensor:
        if len(tokens) == 1:
            raise MemoryError("this prompt")
        return prefill(decoder, row, tokens)

    monkeypatch.setattr(LlamaDecoder, "prefill", failing)
    good = asyncio.create_task(read(engine, Sampling(60, seed=1)))
    with pytest.raises(EngineError, match="this prompt"):
        await read(engine, Sampling(5), prompt=[5])
    assert await good == expected


async def test_a_device_that_answers_no_more_ends_the_engine(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(LlamaDecoder, "decode", broken)
        patch.setattr("orpheus_serving.engines.transformers.torch.ones", broken)
        with pytest.raises(EngineError, match="device lost"):
            await read(engine, Sampling(30, seed=1))
        with pytest.raises(EngineError, match="does not answer"):
            await read(engine, Sampling(30, seed=1))
    await engine.stop()
    await engine.start()
    assert len(await read(engine, Sampling(7, seed=1))) == 7


async def test_an_idle_engine_sleeps(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a request the worker looks for work a bounded number of times, however long nothing comes."""
    await read(engine, Sampling(7, seed=1))
    looked = 0
    has_work = engine._has_work

    def counting() -> bool:
        nonlocal looked
        looked += 1
        return has_work()

    monkeypatch.setattr(engine, "_has_work", counting)
    for _ in range(2000):
        await asyncio.sleep(0)
    assert looked <= 1  # the look after the last step may still have been under way
    assert len(await read(engine, Sampling(7, seed=1))) == 7


def test_a_closed_event_loop_does_not_stop_the_engine(checkpoint: Path) -> None:
    """A loop that goes away with requests open costs those requests alone."""
    engine = engine_of(checkpoint)

    async def leave_open() -> None:
        await engine.start()
        stream = engine.generate(PROMPT, Sampling(200, seed=1), "open")
        await anext(stream)

    asyncio.run(leave_open())

    async def use() -> int:
        count = len(await read(engine, Sampling(21, seed=1)))
        await engine.stop()
        return count

    assert asyncio.run(use()) == 21


@pytest.mark.parametrize(
    "options", [{"max_streams": 0}, {"max_length": 1}, {"dtype": "int8", "device": "cuda"}, {"dtype": "nonsense"}]
)
def test_settings_that_make_no_sense_are_refused(checkpoint: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        engine_of(checkpoint, **options)


async def test_of_a_hub_repository_only_what_is_needed_is_fetched(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(checkpoint)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    engine = engine_of("someone/some-voice", revision="abc")
    await engine.start()
    await engine.stop()
    assert asked == {
        "repository": "someone/some-voice",
        "revision": "abc",
        "allow_patterns": list(HUB_PATTERNS),
        "ignore_patterns": list(HUB_IGNORED),
    }

    from huggingface_hub.utils import filter_repo_objects

    files = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "tokenizer.json",
        "optimizer.bin",
        "optimizer.safetensors",
    ]
    files += ["pytorch_model.bin", "checkpoint-9/model.safetensors", "README.md"]
    kept = list(filter_repo_objects(files, allow_patterns=list(HUB_PATTERNS), ignore_patterns=list(HUB_IGNORED)))
    assert kept == files[:3]


async def test_a_name_that_is_no_checkpoint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> str:
        raise OSError("no such repository")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(CheckpointError, match=r"someone/nothing.*no such repository"):
        await engine_of("someone/nothing").start()
