"""The GPU engine: vLLM 0.24 in a process of its own, with Orpheus as a model that says audio only.

    generate() -> AsyncLLM --> engine process: FrameScheduler -> OrpheusForCausalLM -> FrameSampler
               <- lists of ids, a frame each <--'

Token ids go in and out; nothing is tokenized or detokenized. The weights and the KV cache are FP8 unless told otherwise. The
model's part is in `vllm_model.py` (head, slots), `draw_kernel.py` (the sampler's kernel) and `vllm_scheduler.py` (frames).
With `constrained=False` the model is vLLM's own Llama and the sampler vLLM's own, over the whole vocabulary.

Memory: whatever is free when the engine starts, less a reserve, is the engine's. So start the codec first.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
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

VERSION = "0.24.0"  # the release whose insides `vllm_model.py` and `vllm_scheduler.py` were written against
RESERVE = 3 << 30  # bytes of the GPU that stay free: this process' context, the codec's workspaces
PREFILL_TOKENS = 2048  # prompt ids of one step: more would hold up everybody's next frame
GRAPH_TOKENS = 1024  # ids of the largest step that runs as CUDA graphs: 256 streams beside a dozen prompts
WARM_UP_PROMPTS = (8, 60, 200, 700)  # ids; short and long, so that every kernel of a prefill has run


class VllmEngine:
    """An `Engine` on vLLM, for one NVIDIA GPU (Hopper or newer for FP8).

    max_streams: requests that are decoded at once; others wait in vLLM's queue.
    max_length: ids of prompt and speech together.
    constrained: the sliced head and the slot-wise sampler; else stock vLLM.
    weights: "fp8" quantises on loading, "bf16" does not. kv_cache: likewise.
    memory: bytes of the GPU for the engine. None: all that is free at `start` less a reserve.
    eager: no CUDA graphs and no compiling; for small models in tests.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        layout: TokenLayout,
        *,
        max_streams: int = 512,
        max_length: int = 4096,
        constrained: bool = True,
        revision: str | None = None,
        weights: str = "fp8",
        kv_cache: str = "fp8",
        memory: int | None = None,
        eager: bool = False,
    ) -> None:
        for name, value in (("weights", weights), ("kv_cache", kv_cache)):
            if value not in ("fp8", "bf16"):
                raise ValueError(f"{name}: {value!r} is neither fp8 nor bf16")
        self._checkpoint = checkpoint
        self._layout = layout
        self._max_streams = max_streams
        self._max_length = max_length
        self._constrained = constrained
        self._revision = revision
        self._weights = weights
        self._kv_cache = kv_cache
        self._memory = memory
        self._eager = eager
        self._vocabulary = 0
        self._llm: Any = None
        self._readers = Readers("vLLM")

    @property
    def failure(self) -> str:
        """As in `base.py`. vLLM knows when its process has died, and when its own task on the event loop has ended."""
        if self._llm is None:
            return "the engine is not started or was stopped"
        return "vLLM has died; the log says why" if self._llm.errored else ""

    async def start(self) -> None:
        """Load and warm up. Loading runs in a thread, so the loop goes on. Raises CheckpointError or EngineError."""
        if self._llm is not None:
            if not self.failure:
                return
            await self.stop()  # what is left of one that has died
        self._llm = await asyncio.to_thread(self._build)  # cancelled meanwhile, vLLM ends its process when it is collected
        self._readers.open()
        try:
            await self._warm_up()
        except Exception as error:
            await self.stop()
            raise EngineError(f"{self._checkpoint}: vLLM did not start: {error}") from error

    def _build(self) -> Any:
        """An `AsyncLLM`, whose process has loaded the model. In a thread it finds no loop, and so starts its tasks in that of the
        first request.
        """
        folder = fetch(self._checkpoint, self._revision)
        config = read_config(folder)
        check_layout(self._layout, config.vocab_size, folder)
        self._vocabulary = config.vocab_size
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        try:
            import vllm
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise EngineError(f"engine vllm: {error}; install requirements/vllm.txt") from error
        if vllm.__version__ != VERSION:
            log.warning("vLLM %s is installed; this engine was written against %s", vllm.__version__, VERSION)
        try:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**self._arguments(folder)))
        except Exception as error:
            raise EngineError(f"{folder}: vLLM did not start: {error}") from error

    async def stop(self) -> None:
        """End every request with EngineError, and the engine's process."""
        llm, self._llm = self._llm, None
        self._readers.close()
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

    async def generate(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> AsyncGenerator[list[int], None]:
        """Stream the ids after `prompt`, a frame a list. Raises EngineError before running what cannot run."""
        if self.failure:
            raise EngineError(f"request {request_id}: {self.failure}")
        parameters = self._parameters(prompt, sampling)
        outputs = self._llm.generate({"prompt_token_ids": list(prompt)}, parameters, request_id)
        try:
            while (output := await self._readers.next(outputs, request_id)) is not None:
                if ids := list(output.outputs[0].token_ids):
                    yield ids
        finally:
            with contextlib.suppress(Exception):  # of a request that has failed, or an engine that is gone
                await outputs.aclose()  # aborts what is not finished

    def _parameters(self, prompt: Sequence[int], sampling: Sampling) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=token_budget(prompt, sampling, max_length=self._max_length, vocabulary=self._vocabulary),
            temperature=0.0 if sampling.temperature < GREEDY_BELOW else sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            repetition_penalty=sampling.repetition_penalty,
            seed=sampling.seed,
            stop_token_ids=[self._layout.end_of_speech],
            ignore_eos=True,  # the end of speech is the stop id, whatever the checkpoint calls its end
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,
        )

    def _arguments(self, folder: Path) -> dict[str, Any]:
        """Of vLLM's `AsyncEngineArgs`."""
        arguments: dict[str, Any] = {
            "model": str(folder),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # no sampling defaults from the checkpoint: every request names its own
            "dtype": "bfloat16",
            "quantization": "fp8" if self._weights == "fp8" else None,
            "kv_cache_dtype": "fp8" if self._kv_cache == "fp8" else "auto",
            "max_model_len": self._max_length,
            "max_num_seqs": self._max_streams,
            "max_num_batched_tokens": max(PREFILL_TOKENS, self._max_streams),
            "max_cudagraph_capture_size": max(GRAPH_TOKENS, self._max_streams),
            "gpu_memory_utilization": self._utilization(),
            "enable_prefix_caching": False,  # prompts begin alike for a few ids only
            "scheduler_cls": "orpheus_serving.engines.vllm_scheduler.FrameScheduler",
            "enforce_eager": self._eager,
            "disable_log_stats": True,
            "enable_log_requests": False,
        }
        if self._eager:
            del arguments["max_cudagraph_capture_size"]
        if self._constrained:
            from orpheus_serving.engines import vllm_registration

            vllm_registration.register()
            arguments |= {
                # The second name makes vLLM choose its second model runner, which the sampler needs.
                "hf_overrides": {"architectures": ["OrpheusForCausalLM", "LlamaForCausalLM"]},
                "additional_config": {"orpheus_layout": dataclasses.asdict(self._layout)},
                "worker_extension_cls": "orpheus_serving.engines.vllm_registration.Registered",
            }
        return arguments

    def _utilization(self) -> float:
        """The share of the whole GPU that vLLM may fill."""
        import torch

        free, total = torch.cuda.mem_get_info()
        wanted = free - RESERVE if self._memory is None else min(self._memory, free)
        if wanted < total // 50:
            raise EngineError(f"the GPU has {free / 2**30:.1f} GiB free, which is too little to start in")
        return min(wanted / total, 0.95)

    async def _warm_up(self) -> None:
        """Real requests: one alone, prompts of several lengths, then as many at once as there may be, in two sizes."""
        start = self._layout.prompt_before[0]

        async def speak(number: int, length: int, tokens: int) -> None:
            sampling = Sampling(tokens, seed=number if number % 2 else None, top_k=40 if number % 3 == 0 else 0)
            async for _ in self.generate([start] * length, sampling, f"warm-up {number}"):
                pass

        number = 0
        for length in WARM_UP_PROMPTS:
            await speak(number, min(length, self._max_length - 30), 14)
            number += 1
        for _ in range(1 if self._eager else 2):
            await asyncio.gather(*(speak(number + n, min(60, self._max_length - 30), 28) for n in range(self._max_streams)))
            number += self._max_streams
