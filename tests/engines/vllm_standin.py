"""Stand-ins for the parts of vLLM 0.24 that the engine touches, for machines that cannot hold vLLM.

Signatures, defaults and return shapes follow that release's source. `install` puts them where the real modules would be.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_clone: bool = False


@dataclass
class AsyncEngineArgs:
    model: str
    skip_tokenizer_init: bool = False
    generation_config: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_cudagraph_capture_size: int | None = None
    gpu_memory_utilization: float = 0.92
    enable_prefix_caching: bool | None = None
    scheduler_cls: str | None = None
    enforce_eager: bool = False
    disable_log_stats: bool = False
    enable_log_requests: bool = False
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    additional_config: dict[str, Any] = field(default_factory=dict)
    worker_extension_cls: str = ""


class EngineDeadError(Exception):
    pass


class AsyncLLM:
    """Says the ids of `script` a list at a time, each once `gate` lets it; remembers what it was asked and told."""

    made: ClassVar[list[AsyncLLM]] = []
    script: ClassVar[list[list[int]]] = []
    fail_with: ClassVar[Exception | None] = None

    def __init__(self, args: AsyncEngineArgs) -> None:
        self.args = args
        self.asked: dict[str, tuple[Any, SamplingParams]] = {}
        self.aborted: list[str] = []
        self.gate = asyncio.Semaphore(10**9)
        self.down = False
        self.errored = False
        AsyncLLM.made.append(self)

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs) -> AsyncLLM:
        return cls(engine_args)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[Any, None]:
        self.asked[request_id] = (prompt, sampling_params)
        try:
            left = sampling_params.max_tokens
            for ids in self.script:
                await self.gate.acquire()
                if self.fail_with is not None and not request_id.startswith("warm-up"):
                    raise self.fail_with
                ids, left = ids[:left], left - len(ids)
                ended = ids[-1] in sampling_params.stop_token_ids
                yield types.SimpleNamespace(
                    outputs=[types.SimpleNamespace(token_ids=ids)], finished=ended or left <= 0, request_id=request_id
                )
                if ended or left <= 0:
                    return
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request_id)
            raise

    def shutdown(self, timeout: float | None = None) -> None:
        self.down = True


class ModelRegistry:
    models: ClassVar[dict[str, str]] = {}

    @classmethod
    def get_supported_archs(cls) -> Any:
        return cls.models.keys()

    @classmethod
    def register_model(cls, model_arch: str, model_cls: str) -> None:
        cls.models[model_arch] = model_cls


class LlamaForCausalLM(nn.Module):
    """Only the head: what comes before it is vLLM's own."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.lm_head = nn.Linear(vllm_config.hidden, vllm_config.vocabulary, bias=False)


class DefaultModelState:
    def __init__(self, vllm_config: Any, model: nn.Module, encoder_cache: Any, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.max_num_reqs = vllm_config.max_num_seqs

    def add_request(self, req_index: int, new_req_data: Any) -> None: ...


class UvaBackedTensor:
    """Changes to `np` show in `gpu` after `copy_to_uva`, not before."""

    def __init__(self, size: int, dtype: torch.dtype, max_concurrency: int | None = None) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np: np.ndarray[Any, Any] = self.cpu.numpy()
        self.gpu = self.copy_to_uva()

    def copy_to_uva(self, n: int | None = None) -> torch.Tensor:
        self.gpu = self.cpu.clone()
        return self.gpu


class SamplingStates:
    def __init__(self, max_num_reqs: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.temperature = UvaBackedTensor(max_num_reqs, torch.float32)
        self.top_k = UvaBackedTensor(max_num_reqs, torch.int32)
        self.top_p = UvaBackedTensor(max_num_reqs, torch.float32)
        self.seeds = UvaBackedTensor(max_num_reqs, torch.int64)

    def add_request(self, req_idx: int, sampling_params: Any) -> None:
        self.temperature.np[req_idx] = sampling_params.temperature
        self.top_p.np[req_idx] = sampling_params.top_p
        self.top_k.np[req_idx] = sampling_params.top_k if 0 < sampling_params.top_k <= self.vocab_size else self.vocab_size
        self.seeds.np[req_idx] = sampling_params.seed or 0

    def apply_staged_writes(self) -> None:
        for tensor in (self.temperature, self.top_k, self.top_p, self.seeds):
            tensor.copy_to_uva()


def async_tensor_h2d(data: list[int], device: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(data, dtype=dtype, device=device)


@dataclass
class SamplerOutput:
    sampled_token_ids: torch.Tensor
    logprobs_tensors: Any
    num_nans: torch.Tensor | None
    num_sampled: torch.Tensor | None
    num_rejected: torch.Tensor | None = None


class AsyncScheduler:
    """Hands on the outputs that a test gives it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        batches: dict[int, Any] = model_runner_output
        return batches

    def finish_requests(self, request_ids: Any, finished_status: Any) -> list[tuple[str, int]]:
        return [(request_id, 0) for request_id in request_ids]


MODULES: dict[str, dict[str, Any]] = {
    "vllm": {
        "__version__": "0.24.0",
        "AsyncEngineArgs": AsyncEngineArgs,
        "SamplingParams": SamplingParams,
        "ModelRegistry": ModelRegistry,
    },
    "vllm.config": {"VllmConfig": object},
    "vllm.sampling_params": {"RequestOutputKind": RequestOutputKind},
    "vllm.model_executor": {},
    "vllm.model_executor.models": {},
    "vllm.model_executor.models.llama": {"LlamaForCausalLM": LlamaForCausalLM},
    "vllm.utils": {},
    "vllm.utils.torch_utils": {"async_tensor_h2d": async_tensor_h2d},
    "vllm.v1": {},
    "vllm.v1.core": {},
    "vllm.v1.core.sched": {},
    "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": AsyncScheduler},
    "vllm.v1.engine": {},
    "vllm.v1.engine.async_llm": {"AsyncLLM": AsyncLLM},
    "vllm.v1.worker": {},
    "vllm.v1.worker.gpu": {},
    "vllm.v1.worker.gpu.buffer_utils": {"UvaBackedTensor": UvaBackedTensor},
    "vllm.v1.worker.gpu.model_states": {},
    "vllm.v1.worker.gpu.model_states.default": {"DefaultModelState": DefaultModelState},
    "vllm.v1.worker.gpu.sample": {},
    "vllm.v1.worker.gpu.sample.output": {"SamplerOutput": SamplerOutput},
}
OURS = ("vllm_model", "vllm_scheduler", "vllm_registration")


def install(patch: pytest.MonkeyPatch) -> None:
    for name, content in MODULES.items():
        module = types.ModuleType(name)
        module.__path__ = []  # type: ignore[attr-defined]
        vars(module).update(content)
        patch.setitem(sys.modules, name, module)
    for name in OURS:  # imported anew, against the stand-ins, and forgotten afterwards
        patch.delitem(sys.modules, f"orpheus_serving.engines.{name}", raising=False)
    ModelRegistry.models = {}
    AsyncLLM.made = []
    AsyncLLM.fail_with = None
