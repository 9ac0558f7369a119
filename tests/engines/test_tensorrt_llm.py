"""The TensorRT-LLM engine against a stand-in with the release's signatures: what it asks for, what it hands on, what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import tensorrt_llm_standin as standin

from orpheus_serving.build import GPU_STREAMS, build, noise_checkpoint
from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.tensorrt_llm import WARM_UP_PROMPTS, TensorRtLlmEngine
from orpheus_serving.errors import CheckpointError, EngineError
from orpheus_serving.noise_checkpoint import NOISE_LAYOUT as LAYOUT
from orpheus_serving.settings import Settings
from orpheus_serving.tokens import TokenLayout

PROMPT = LAYOUT.prompt_ids([50, 51, 52])
FRAMES = [[LAYOUT.token(slot, frame) for slot in range(7)] for frame in range(20)]
END = [LAYOUT.end_of_speech]


@pytest.fixture(autouse=True)
def tensorrt_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    standin.install(monkeypatch)
    monkeypatch.setattr(standin.LLM, "script", [*FRAMES, END])


@pytest.fixture
async def engine(checkpoint: Path) -> AsyncIterator[TensorRtLlmEngine]:
    engine = TensorRtLlmEngine(checkpoint, LAYOUT, max_streams=40, max_length=600)
    await engine.start()
    yield engine
    await engine.stop()


def llm() -> standin.LLM:
    return standin.LLM.made[-1]


async def read(engine: TensorRtLlmEngine, sampling: Sampling, name: str = "r") -> list[list[int]]:
    return [ids async for ids in engine.generate(PROMPT, sampling, name)]


async def test_lists_are_handed_on_to_the_end(engine: TensorRtLlmEngine) -> None:
    assert await read(engine, Sampling(500)) == [*FRAMES, END]
    assert await read(engine, Sampling(10)) == [FRAMES[0], FRAMES[1][:3]]
    assert not any(request.aborted for request in llm().requests)


async def test_the_end_of_speech_is_said_even_if_the_sampler_keeps_it(
    engine: TensorRtLlmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standin.LLM, "says_the_end", False)
    assert await read(engine, Sampling(500)) == [*FRAMES, END]
    assert await read(engine, Sampling(10)) == [FRAMES[0], FRAMES[1][:3]]


async def test_the_engine_is_set_up_for_frames_in_fp8(engine: TensorRtLlmEngine, checkpoint: Path) -> None:
    assert (llm().model, llm().skip_tokenizer_init) == (str(checkpoint), True)
    args = llm().args
    kv, graphs = args.pop("kv_cache_config"), args.pop("cuda_graph_config")
    assert args == {
        "max_batch_size": 40,
        "max_seq_len": 600,
        "max_num_tokens": 2048,
        "enable_chunked_prefill": True,
        "stream_interval": 7,
        "sampler_type": "TRTLLMSampler",
    }
    assert kv == standin.KvCacheConfig(dtype="fp8", enable_block_reuse=False, free_gpu_memory_fraction=0.9)
    assert graphs == standin.CudaGraphConfig(batch_sizes=[1, 2, 4, 8, 16, 32, 40], enable_padding=True)


@pytest.mark.parametrize("streams", [1, 4, 512])
async def test_every_batch_has_a_graph(checkpoint: Path, streams: int) -> None:
    engine = TensorRtLlmEngine(checkpoint, LAYOUT, max_streams=streams, max_length=600)
    await engine.start()
    await engine.stop()
    sizes = llm().args["cuda_graph_config"].batch_sizes
    assert sizes[0] == 1
    assert sizes[-1] == streams


@pytest.mark.parametrize("unknown", ["max_model_len", "quantization", "kv_cache_dtype"])
async def test_an_argument_that_the_release_does_not_have_fails(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, unknown: str
) -> None:
    real = TensorRtLlmEngine._arguments
    monkeypatch.setattr(TensorRtLlmEngine, "_arguments", lambda self, folder: real(self, folder) | {unknown: 1})
    with pytest.raises(EngineError, match=f"invalid argument: {unknown}"):
        await TensorRtLlmEngine(checkpoint, LAYOUT, max_length=600).start()


@pytest.mark.parametrize(
    "config", [lambda: standin.KvCacheConfig(dtypes="fp8"), lambda: standin.CudaGraphConfig(sizes=[1])], ids=["kv", "graphs"]
)
def test_the_stand_in_is_as_strict_as_the_release(config: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        config()


async def test_the_request_says_what_was_asked(engine: TensorRtLlmEngine) -> None:
    await read(engine, Sampling(300, temperature=0.7, top_p=0.9, top_k=40, repetition_penalty=1.3, seed=11))
    request = llm().requests[-1]
    assert request.prompt_token_ids == PROMPT
    assert request.sampling_params == standin.SamplingParams(
        end_id=LAYOUT.end_of_speech,
        max_tokens=300,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        repetition_penalty=1.3,
        seed=11,
        detokenize=False,
    )


async def test_greedy_and_the_length_are_bounded(engine: TensorRtLlmEngine) -> None:
    await read(engine, Sampling(5000, temperature=1e-5, top_p=0.5, top_k=9))
    parameters = llm().requests[-1].sampling_params
    assert (parameters.temperature, parameters.top_p, parameters.top_k) == (1.0, 1.0, 1)
    assert parameters.max_tokens == 600 - len(PROMPT)


async def test_requests_without_a_seed_get_one_each(engine: TensorRtLlmEngine) -> None:
    for _ in range(2):
        await read(engine, Sampling(7))
    seeds = [request.sampling_params.seed for request in llm().requests[-2:]]
    assert None not in seeds
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize(
    ("prompt", "sampling", "named"),
    [
        ([], Sampling(5), "prompt"),
        ([1] * 600, Sampling(5), "max_length"),
        ([10**6], Sampling(5), "vocabulary"),
        (PROMPT, Sampling(0), "max_tokens"),
    ],
)
async def test_what_cannot_run_is_refused(engine: TensorRtLlmEngine, prompt: list[int], sampling: Sampling, named: str) -> None:
    before = len(llm().requests)
    with pytest.raises(EngineError, match=named):
        await anext(engine.generate(prompt, sampling, "bad"))
    assert len(llm().requests) == before


async def test_closing_aborts(engine: TensorRtLlmEngine) -> None:
    stream = engine.generate(PROMPT, Sampling(500), "closed")
    await anext(stream)
    await stream.aclose()
    assert llm().requests[-1].aborted


async def test_cancelling_the_reader_aborts(engine: TensorRtLlmEngine) -> None:
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
    assert llm().requests[-1].aborted


async def test_a_reader_that_does_not_wait_hears_of_the_stop_before_anything_else(engine: TensorRtLlmEngine) -> None:
    """Though the runtime would have more for it."""
    stream = engine.generate(PROMPT, Sampling(500), "stopped")
    await anext(stream)
    await engine.stop()
    with pytest.raises(EngineError, match="stopped"):
        await anext(stream)


async def test_stop_ends_those_that_wait_and_those_that_come(engine: TensorRtLlmEngine) -> None:
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


@pytest.mark.parametrize("error", [ValueError("too long"), RuntimeError("x")])
async def test_a_failure_is_an_engine_error(engine: TensorRtLlmEngine, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standin.LLM, "fail_with", error)
    with pytest.raises(EngineError, match="request failing"):
        await read(engine, Sampling(500), "failing")
    monkeypatch.setattr(standin.LLM, "fail_with", None)
    assert await read(engine, Sampling(7), "next") == [FRAMES[0]]


@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
async def test_an_end_that_nobody_asked_for_is_an_engine_error(
    engine: TensorRtLlmEngine, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standin.LLM, "ends_with", reason)
    with pytest.raises(EngineError, match=reason):
        await read(engine, Sampling(500))


async def test_a_worker_that_is_down_refuses(engine: TensorRtLlmEngine) -> None:
    llm().down = True
    with pytest.raises(EngineError, match="shutting down"):
        await read(engine, Sampling(7))


async def test_it_starts_again(checkpoint: Path) -> None:
    engine = TensorRtLlmEngine(checkpoint, LAYOUT, max_streams=2, max_length=600)
    for _ in range(2):
        assert engine.failure
        await engine.start()
        assert not engine.failure
        assert await read(engine, Sampling(7)) == [FRAMES[0]]
        await engine.stop()


async def test_the_loop_turns_while_it_loads(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, loading, turned = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    class Slow(standin.LLM):
        def __init__(self, **kwargs: Any) -> None:
            loop.call_soon_threadsafe(loading.set)
            assert turned.wait(10), "the loop stood still"
            super().__init__(**kwargs)

    monkeypatch.setattr(sys.modules["tensorrt_llm"], "LLM", Slow)
    engine = TensorRtLlmEngine(checkpoint, LAYOUT, max_streams=2, max_length=600)
    starting = asyncio.create_task(engine.start())
    await loading.wait()
    turned.set()
    await starting
    assert len(llm().requests) == len(WARM_UP_PROMPTS)
    await engine.stop()


async def test_the_setting_makes_it() -> None:
    synthesizer = build(Settings(checkpoint=str(noise_checkpoint()), engine="tensorrt_llm", device="cpu", max_length=600))
    assert isinstance(synthesizer.engine, TensorRtLlmEngine)
    await synthesizer.engine.start()
    await synthesizer.engine.stop()
    assert (llm().args["max_batch_size"], llm().args["max_seq_len"]) == (GPU_STREAMS, 600)


async def test_what_is_missing_is_named(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="vocabulary"):
        await TensorRtLlmEngine(checkpoint, TokenLayout()).start()
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(EngineError, match=r"container of TensorRT-LLM 1\.2\.1"):
        await TensorRtLlmEngine(checkpoint, LAYOUT).start()


async def test_what_the_model_optimizer_writes_is_taken(checkpoint: Path, tmp_path: Path) -> None:
    """It says so in two places: a file of its own, and a field of config.json."""
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    config = json.loads((folder / "config.json").read_text())
    quantised = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"type": "float", "num_bits": 8}}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}))
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    engine = TensorRtLlmEngine(folder, LAYOUT, max_streams=2, max_length=600)
    await engine.start()
    assert await read(engine, Sampling(7)) == [FRAMES[0]]
    await engine.stop()


@pytest.mark.parametrize(("algorithm", "warned"), [(None, True), ("W4A16_AWQ", True), ("FP8", False)])
async def test_weights_that_are_not_fp8_are_named(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, algorithm: str | None, warned: bool
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    if algorithm:
        (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": algorithm}}))
    engine = TensorRtLlmEngine(folder, LAYOUT, max_streams=2, max_length=600)
    with caplog.at_level(logging.WARNING):
        await engine.start()
    await engine.stop()
    assert ("not FP8" in caplog.text) == warned
