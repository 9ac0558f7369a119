"""The self-hosted TensorRT-LLM engine: the LLM API (PyTorch backend) of TensorRT-LLM 1.2.1. It has never been run here.

    generate() -> LLM.generate_async(ids) --> worker process: paged attention, CUDA graphs, TRTLLMSampler
               <- lists of ids, a frame each <--'

NVIDIA's container of that release brings the package; no index that this project installs from has it. Every call and argument
was checked against the source of release 1.2.1 (commit 376f7e1): `llmapi/llm.py` (`LLM`, `RequestOutput`), `llmapi/llm_args.py`
(`TorchLlmArgs`, `KvCacheConfig`, `CudaGraphConfig`), `sampling_params.py`, `executor/result.py` (`CompletionOutput`, `abort`).
What is behind them was read in other revisions: `executor/proxy.py`, `_torch/pyexecutor/py_executor.py` (when a list leaves),
and the release's Triton backend, which also makes and shuts down its `LLM` in a thread beside the loop.

Token ids go in and out; there is no tokenizer, so nothing is detokenized. The first id comes alone, as soon as it is there, and
then one list every seven steps.

- KV cache: FP8. Weights: the checkpoint's own. This backend does not quantise on loading, so for FP8 weights the checkpoint has
  to come out of NVIDIA's Model Optimizer (`hf_quant_config.json` says so); a warning says when it did not.
- Paged context attention has no switch in this backend: it is what runs prompts where they are cut into chunks, as they are here.
- Sampling: the release's default sampler ignores `repetition_penalty` and `seed` without a word (TensorRT-LLM's issue 9442, pull
  requests 16485 and 17172), so this asks for the other one, `TRTLLMSampler`. A request without a seed gets a random one, since
  none would mean the same one for everybody. What a seed gives can vary with what else is in the batch.
- No constraint by slots. A logits processor could do it, at the price of a Python call a request and a step in the worker: 21,000
  a second at 256 streams. A checkpoint that was trained on frames seldom strays, and `FrameAssembler` drops what does.

Memory: `KV_SHARE` of what the weights leave free. So start the codec first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from orpheus_serving.engines.base import Sampling, check_layout, token_budget
from orpheus_serving.engines.config import read_config
from orpheus_serving.engines.readers import Readers
from orpheus_serving.engines.sampling import GREEDY_BELOW
from orpheus_serving.engines.transformers import fetch
from orpheus_serving.errors import EngineError
from orpheus_serving.tokens import TokenLayout

log = logging.getLogger(__name__)

VERSION = "1.2.1"  # the release whose source this was written against
FRAME = 7  # ids of a list
KV_SHARE = 0.9  # of the memory that is free once the weights are loaded; the rest is for the codec's and torch's workspaces
PREFILL_TOKENS = 2048  # prompt ids of one step: more would hold up everybody's next frame
GRAPH_STEP = 16  # CUDA graphs for every 16th batch size; a batch is padded to the next. Left alone, 129 would run as 256
WARM_UP_PROMPTS = (8, 60, 700)  # ids; the worker itself has warmed its kernels and graphs before `LLM()` returns


class TensorRtLlmEngine:
    """An `Engine` on TensorRT-LLM, for one NVIDIA GPU (Hopper or newer for FP8).

    max_streams: requests that are decoded at once; others wait in TensorRT-LLM's queue.
    max_length: ids of prompt and speech together.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        layout: TokenLayout,
        *,
        max_streams: int = 512,
        max_length: int = 4096,
        revision: str | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._layout = layout
        self._max_streams = max_streams
        self._max_length = max_length
        self._revision = revision
        self._vocabulary = 0
        self._llm: Any = None
        self._readers = Readers("TensorRT-LLM")

    @property
    def failure(self) -> str:
        """As in `base.py`, but for a worker process that has died: the release says so to requests only."""
        return "the engine is not started or was stopped" if self._llm is None else ""

    async def start(self) -> None:
        """Load and warm up. Loading runs in a thread, so the loop goes on. Raises CheckpointError or EngineError."""
        if self._llm is not None:
            return
        self._llm = await asyncio.to_thread(self._build)
        self._readers.open()
        try:
            for number, length in enumerate(WARM_UP_PROMPTS):
                prompt = [self._layout.prompt_before[0]] * min(length, self._max_length - 30)
                async for _ in self.generate(prompt, Sampling(2 * FRAME), f"warm-up {number}"):
                    pass
        except Exception as error:
            await self.stop()
            raise EngineError(f"{self._checkpoint}: TensorRT-LLM did not start: {error}") from error

    def _build(self) -> Any:
        """An `LLM` whose worker process has loaded the model."""
        folder = fetch(self._checkpoint, self._revision)
        config = read_config(folder, quantised=True)
        check_layout(self._layout, config.vocab_size, folder)
        self._vocabulary = config.vocab_size
        if not _has_fp8_weights(folder):
            log.warning("%s: the weights are not FP8; NVIDIA's Model Optimizer makes them so (hf_quant_config.json)", folder)
        try:
            import tensorrt_llm
            from tensorrt_llm import LLM
        except (ImportError, OSError) as error:  # OSError: a library of CUDA's or MPI's that is not there
            raise EngineError(f"engine tensorrt_llm: {error}; run in NVIDIA's container of TensorRT-LLM {VERSION}") from error
        if tensorrt_llm.__version__ != VERSION:
            log.warning("TensorRT-LLM %s is installed; this engine was written against %s", tensorrt_llm.__version__, VERSION)
        try:
            return LLM(**self._arguments(folder))
        except Exception as error:
            raise EngineError(f"{folder}: TensorRT-LLM did not start: {error}") from error

    def _arguments(self, folder: Path) -> dict[str, Any]:
        """Of `LLM`."""
        from tensorrt_llm.llmapi import CudaGraphConfig, KvCacheConfig

        most = self._max_streams
        return {
            "model": str(folder),
            "skip_tokenizer_init": True,
            "max_batch_size": most,
            "max_seq_len": self._max_length,
            "max_num_tokens": max(PREFILL_TOKENS, most),
            "enable_chunked_prefill": True,
            "kv_cache_config": KvCacheConfig(
                dtype="fp8",
                free_gpu_memory_fraction=KV_SHARE,
                enable_block_reuse=False,  # prompts begin alike for a few ids only
            ),
            "cuda_graph_config": CudaGraphConfig(
                batch_sizes=sorted({n for n in (1, 2, 4, 8, *range(GRAPH_STEP, most, GRAPH_STEP)) if n < most} | {most}),
                enable_padding=True,
            ),
            "stream_interval": FRAME,
            "sampler_type": "TRTLLMSampler",
        }

    async def stop(self) -> None:
        """End every request with EngineError, and the worker process."""
        llm, self._llm = self._llm, None
        self._readers.close()
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

    async def generate(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> AsyncGenerator[list[int], None]:
        """Stream the ids after `prompt`, mostly a frame a list. Raises EngineError before running what cannot run."""
        llm = self._llm
        if llm is None:
            raise EngineError(f"request {request_id}: the engine is not started or was stopped")
        parameters = self._parameters(prompt, sampling)
        try:
            result = llm.generate_async(list(prompt), parameters, streaming=True)
        except Exception as error:
            raise EngineError(f"request {request_id}: TensorRT-LLM refused it: {error or type(error).__name__}") from error
        try:
            while await self._readers.next(result, request_id) is not None:  # `result` then holds it
                output = result.outputs[0]
                if output.finish_reason in ("cancelled", "timeout"):
                    raise EngineError(f"request {request_id}: TensorRT-LLM ended it: {output.finish_reason}")
                ids = list(output.token_ids_diff)
                if output.finish_reason == "stop" and ids[-1:] != [self._layout.end_of_speech]:
                    ids.append(self._layout.end_of_speech)  # whether it is among the ids is the sampler's affair
                if ids:
                    yield ids
        finally:
            if self._llm is llm and not result.finished:  # `shutdown` aborts what is left, in a thread of its own
                with contextlib.suppress(Exception):  # of an engine that is gone
                    result.abort()

    def _parameters(self, prompt: Sequence[int], sampling: Sampling) -> Any:
        from tensorrt_llm import SamplingParams

        greedy = sampling.temperature < GREEDY_BELOW
        return SamplingParams(
            end_id=self._layout.end_of_speech,  # given, so that no tokenizer and no generation config is asked
            max_tokens=token_budget(prompt, sampling, max_length=self._max_length, vocabulary=self._vocabulary),
            temperature=1.0 if greedy else sampling.temperature,
            top_p=1.0 if greedy else sampling.top_p,
            top_k=1 if greedy else sampling.top_k,
            repetition_penalty=sampling.repetition_penalty,
            seed=random.getrandbits(63) if sampling.seed is None else sampling.seed,
            detokenize=False,
        )


def _has_fp8_weights(folder: Path) -> bool:
    """Whether NVIDIA's Model Optimizer wrote the checkpoint in FP8."""
    path = folder / "hf_quant_config.json"
    if not path.is_file():
        return False
    return "FP8" in str(json.loads(path.read_text()).get("quantization", {}).get("quant_algo"))
