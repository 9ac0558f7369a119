"""The vLLM engine against stand-ins: what it asks for, what it hands on, what ends a request."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_standin as standin

from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.vllm import RESERVE, VllmEngine
from orpheus_serving.errors import CheckpointError, EngineError
from orpheus_serving.noise_checkpoint import NOISE_LAYOUT as LAYOUT
from orpheus_serving.tokens import TokenLayout

PROMPT = LAYOUT.prompt_ids([50, 51, 52])
FRAMES = [[LAYOUT.token(slot, frame) for slot in range(7)] for frame in range(20)]


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    standin.install(monkeypatch)
    monkeypatch.setattr(standin.AsyncLLM, "script", [*FRAMES, [LAYOUT.end_of_speech]])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100 << 30, 140 << 30))


@pytest.fixture
async def engine(checkpoint: Path) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(checkpoint, LAYOUT, max_streams=4, max_length=600)
    await engine.start()
    yield engine
    await engine.stop()


def llm() -> standin.AsyncLLM:
    return standin.AsyncLLM.made[-1]


async def read(engine: VllmEngine, sampling: Sampling, name: str = "r") -> list[list[int]]:
    return [ids async for ids in engine.generate(PROMPT, sampling, name)]


async def test_lists_are_handed_on_to_the_end(engine: VllmEngine) -> None:
    assert await read(engine, Sampling(500)) == [*FRAMES, [LAYOUT.end_of_speech]]
    assert await read(engine, Sampling(10)) == [FRAMES[0], FRAMES[1][:3]]


async def test_the_request_says_what_was_asked(engine: VllmEngine) -> None:
    await read(engine, Sampling(300, temperature=0.7, top_p=0.9, top_k=40, repetition_penalty=1.3, seed=11), "full")
    prompt, parameters = llm().asked["full"]
    assert prompt == {"prompt_token_ids": PROMPT}
    assert parameters == standin.SamplingParams(
        max_tokens=300,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        repetition_penalty=1.3,
        seed=11,
        stop_token_ids=[LAYOUT.end_of_speech],
        ignore_eos=True,
        detokenize=False,
        output_kind=standin.RequestOutputKind.DELTA,
        skip_clone=True,
    )


async def test_greedy_and_the_length_are_bounded(engine: VllmEngine) -> None:
    await read(engine, Sampling(5000, temperature=1e-5), "long")
    _, parameters = llm().asked["long"]
    assert parameters.temperature == 0
    assert parameters.max_tokens == 600 - len(PROMPT)


@pytest.mark.parametrize(
    ("prompt", "sampling", "named"),
    [
        ([], Sampling(5), "prompt"),
        ([1] * 600, Sampling(5), "max_length"),
        ([10**6], Sampling(5), "vocabulary"),
        (PROMPT, Sampling(0), "max_tokens"),
    ],
)
async def test_what_cannot_run_is_refused(engine: VllmEngine, prompt: list[int], sampling: Sampling, named: str) -> None:
    with pytest.raises(EngineError, match=named):
        await anext(engine.generate(prompt, sampling, "bad"))
    assert "bad" not in llm().asked


async def test_closing_aborts(engine: VllmEngine) -> None:
    stream = engine.generate(PROMPT, Sampling(500), "closed")
    await anext(stream)
    await stream.aclose()
    assert llm().aborted == ["closed"]


async def test_cancelling_the_reader_aborts(engine: VllmEngine) -> None:
    llm().gate = asyncio.Semaphore(1)
    first = asyncio.Event()

    async def reader() -> None:
        async for _ in engine.generate(PROMPT, Sampling(500), "cancelled"):
            first.set()

    task = asyncio.create_task(reader())
    await first.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert llm().aborted == ["cancelled"]


async def test_a_reader_that_does_not_wait_hears_of_the_stop_before_anything_else(engine: VllmEngine) -> None:
    """Though the runtime would have more for it."""
    stream = engine.generate(PROMPT, Sampling(500), "stopped")
    await anext(stream)
    await engine.stop()
    with pytest.raises(EngineError, match="stopped"):
        await anext(stream)


async def test_stop_ends_those_that_wait_and_those_that_come(engine: VllmEngine) -> None:
    llm().gate = asyncio.Semaphore(1)
    stream = engine.generate(PROMPT, Sampling(500), "stopped")
    await anext(stream)
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(EngineError, match="stopped"):
        await waiting
    with pytest.raises(EngineError, match="not started"):
        await anext(engine.generate(PROMPT, Sampling(500), "late"))
    assert llm().down


@pytest.mark.parametrize("error", [ValueError("too long"), standin.EngineDeadError(), RuntimeError("x")])
async def test_a_failure_is_an_engine_error(engine: VllmEngine, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standin.AsyncLLM, "fail_with", error)
    with pytest.raises(EngineError, match="request failing"):
        await read(engine, Sampling(500), "failing")
    monkeypatch.setattr(standin.AsyncLLM, "fail_with", None)
    assert await read(engine, Sampling(7), "next") == [FRAMES[0]]


async def test_it_starts_again(checkpoint: Path) -> None:
    engine = VllmEngine(checkpoint, LAYOUT, max_streams=2, max_length=600)
    for _ in range(2):
        await engine.start()
        assert await read(engine, Sampling(7)) == [FRAMES[0]]
        await engine.stop()


async def test_a_process_that_has_died_is_known_and_replaced(engine: VllmEngine) -> None:
    assert not engine.failure
    dead = llm()
    dead.errored = True
    assert "died" in engine.failure
    with pytest.raises(EngineError, match="request late: vLLM has died"):
        await read(engine, Sampling(7), "late")
    await engine.start()
    assert dead.down
    assert not engine.failure
    assert await read(engine, Sampling(7)) == [FRAMES[0]]


async def test_the_loop_turns_while_vllm_loads(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, loading, turned = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def load(args: standin.AsyncEngineArgs) -> standin.AsyncLLM:
        loop.call_soon_threadsafe(loading.set)
        assert turned.wait(10), "the loop stood still"
        return standin.AsyncLLM(args)

    monkeypatch.setattr(standin.AsyncLLM, "from_engine_args", load)
    engine = VllmEngine(checkpoint, LAYOUT, max_streams=2, max_length=600)
    starting = asyncio.create_task(engine.start())
    await loading.wait()
    turned.set()
    await starting
    assert await read(engine, Sampling(7)) == [FRAMES[0]]
    await engine.stop()


async def test_warm_up_fills_every_row_before_start_returns(engine: VllmEngine) -> None:
    names = [name for name in llm().asked if name.startswith("warm-up")]
    assert len(names) >= 4
    lengths = {len(llm().asked[name][0]["prompt_token_ids"]) for name in names}
    assert min(lengths) < 20
    assert max(lengths) > 500
    assert {llm().asked[name][1].seed is None for name in names} == {True, False}


async def test_the_constrained_model_and_its_memory(engine: VllmEngine) -> None:
    args = llm().args
    assert args.hf_overrides == {"architectures": ["OrpheusForCausalLM", "LlamaForCausalLM"]}
    layout = args.additional_config["orpheus_layout"]
    assert TokenLayout(**layout) == LAYOUT
    assert standin.ModelRegistry.models == {"OrpheusForCausalLM": "orpheus_serving.engines.vllm_model:OrpheusForCausalLM"}
    assert args.gpu_memory_utilization == pytest.approx(((100 << 30) - RESERVE) / (140 << 30))
    assert (args.quantization, args.kv_cache_dtype) == ("fp8", "fp8")
    assert args.max_cudagraph_capture_size == 1024 <= args.max_num_batched_tokens  # vLLM cuts it to the latter
    for name in (args.worker_extension_cls, args.scheduler_cls):
        module, _, member = str(name).rpartition(".")
        assert hasattr(importlib.import_module(module), member)


async def test_unconstrained_is_stock(checkpoint: Path) -> None:
    engine = VllmEngine(checkpoint, LAYOUT, max_streams=2, max_length=600, constrained=False, weights="bf16", kv_cache="bf16")
    await engine.start()
    await engine.stop()
    args = llm().args
    assert not args.hf_overrides
    assert not args.worker_extension_cls
    assert (args.quantization, args.kv_cache_dtype) == (None, "auto")


async def test_a_full_gpu_and_a_wrong_layout_are_named(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="vocabulary"):
        await VllmEngine(checkpoint, TokenLayout()).start()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 140 << 30))
    with pytest.raises(EngineError, match="free"):
        await VllmEngine(checkpoint, LAYOUT).start()


def output(request: str, ids: list[int], reason: str | None = None) -> Any:
    return types.SimpleNamespace(request_id=request, new_token_ids=ids, finish_reason=reason)


def batch(*outputs: Any) -> dict[int, Any]:
    return {0: types.SimpleNamespace(outputs=list(outputs), finished_requests=None, scheduler_stats=None)}


def test_the_scheduler_lets_out_frames_and_ends() -> None:
    from orpheus_serving.engines.vllm_scheduler import FrameScheduler

    scheduler = FrameScheduler()
    sent: dict[str, list[list[int]]] = {"a": [], "b": []}
    for step in range(30):
        outputs = [output("a", [step])] if step < 17 else []
        outputs += [output("b", [100 + step], "stop" if step == 9 else None)] if step < 10 else []
        for released in scheduler.update_from_output(None, batch(*outputs)).values():
            assert released.outputs, "an empty message"
            for one in released.outputs:
                sent[one.request_id].append(one.new_token_ids)
    assert sent == {"a": [list(range(7)), list(range(7, 14))], "b": [list(range(100, 107)), [107, 108, 109]]}


def test_the_scheduler_forgets_what_was_aborted() -> None:
    from orpheus_serving.engines.vllm_scheduler import FrameScheduler

    scheduler = FrameScheduler()
    scheduler.update_from_output(None, batch(output("a", [1, 2, 3])))
    scheduler.finish_requests(["a"], "aborted")
    assert scheduler.update_from_output(None, batch(output("a", [4], "stop")))[0].outputs[0].new_token_ids == [4]


def test_what_a_step_finishes_is_told_though_nothing_is_said() -> None:
    from orpheus_serving.engines.vllm_scheduler import FrameScheduler

    told = batch(output("a", [1]))
    told[0].finished_requests = {"b"}
    assert FrameScheduler().update_from_output(None, told)[0].finished_requests == {"b"}
