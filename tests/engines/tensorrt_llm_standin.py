"""A stand-in for the part of TensorRT-LLM 1.2.1 that the engine touches. Names, defaults and what is refused follow that
release's source: `llmapi/llm.py`, `llmapi/llm_args.py`, `sampling_params.py`, `executor/result.py`. `install` puts it in place.
"""

from __future__ import annotations

import asyncio
import sys
import types
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict

# `TorchLlmArgs.model_fields` of the release (those of `BaseLlmArgs` among them), without what is named in `LLM.__init__`.
LLM_FIELDS = """
    allreduce_strategy attention_dp_config attn_backend backend batch_wait_max_tokens_ratio batch_wait_timeout_iters
    batch_wait_timeout_ms batched_logits_processor cache_transceiver_config checkpoint_format checkpoint_loader
    context_parallel_size cp_config cuda_graph_config decoding_config disable_overlap_scheduler enable_attention_dp
    enable_autotuner enable_chunked_prefill enable_iter_perf_stats enable_iter_req_stats enable_layerwise_nvtx_marker
    enable_lm_head_tp_in_adp enable_lora enable_min_latency env_overrides fail_fast_on_attention_window_too_large
    force_dynamic_quantization garbage_collection_gen0_threshold gather_generation_logits gpus_per_node guided_decoding_backend
    iter_stats_max_iterations kv_cache_config load_format lora_config max_batch_size max_beam_width max_input_len max_num_tokens
    max_seq_len moe_cluster_parallel_size moe_config moe_expert_parallel_size moe_tensor_parallel_size num_postprocess_workers
    nvfp4_gemm_config orchestrator_type otlp_traces_endpoint peft_cache_config perf_metrics_max_requests pipeline_parallel_size
    postprocess_tokenizer_dir pp_partition print_iter_log reasoning_parser request_stats_max_iterations return_perf_metrics
    sampler_force_async_worker sampler_type scheduler_config sparse_attention_config speculative_config stream_interval
    torch_compile_config
"""


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KvCacheConfig(StrictBaseModel):
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    host_cache_size: int | None = None
    onboard_blocks: bool = True
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    attention_dp_events_gather_period_ms: int = 5
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    max_gpu_total_bytes: int = 0
    dtype: str = "auto"
    mamba_ssm_cache_dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    tokens_per_block: int = 32


class CudaGraphConfig(StrictBaseModel):
    batch_sizes: list[int] | None = None
    max_batch_size: int = 0  # of the two, one
    enable_padding: bool = False


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: Any = None
    bad_token_ids: list[int] | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    prompt_ignore_length: int | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: list[str] | None = None
    lookahead_config: Any = None
    guided_decoding: Any = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


@dataclass(slots=True)
class CompletionOutput:
    index: int
    token_ids: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length", "timeout", "cancelled"] | None = None
    _last_token_ids_len: int = field(default=0, init=False, repr=False)

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._last_token_ids_len :]


class RequestOutput:
    """Iterates over itself, as the real one: after each step `outputs` holds all ids so far and knows which are new."""

    def __init__(self, llm: LLM, prompt: list[int], sampling_params: SamplingParams) -> None:
        self.prompt_token_ids = prompt
        self.sampling_params = sampling_params
        self.outputs = [CompletionOutput(0)]
        self.finished = False
        self.aborted = False
        self._llm = llm
        self._lists = iter(LLM.script)

    def abort(self) -> None:
        self.aborted = True

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        await self._llm.gate.acquire()
        if LLM.fail_with is not None:
            raise LLM.fail_with
        output, left = self.outputs[0], self.sampling_params.max_tokens
        output._last_token_ids_len = len(output.token_ids)
        ids = next(self._lists)[: left - len(output.token_ids)]
        ended = self.sampling_params.end_id in ids
        output.token_ids.extend(i for i in ids if LLM.says_the_end or i != self.sampling_params.end_id)
        if ended or len(output.token_ids) == left or LLM.ends_with is not None:
            output.finish_reason = LLM.ends_with or ("stop" if ended else "length")
            self.finished = True
        return self


class LLM:
    """Says the ids of `script` a list at a time, each once `gate` lets it; remembers what it was asked and told."""

    made: ClassVar[list[LLM]] = []
    script: ClassVar[list[list[int]]] = []
    fail_with: ClassVar[Exception | None] = None  # instead of the next list
    ends_with: ClassVar[Literal["timeout", "cancelled"] | None] = None  # the finish reason of the next list
    says_the_end: ClassVar[bool] = True  # whether the end id is among the ids

    def __init__(
        self,
        model: str,
        tokenizer: Any = None,
        tokenizer_mode: Literal["auto", "slow"] = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        for key in kwargs:
            if key not in LLM_FIELDS.split():
                raise ValueError(f"{type(self).__name__} got invalid argument: {key}")
        graphs = kwargs.get("cuda_graph_config")
        if graphs is not None and graphs.batch_sizes and graphs.max_batch_size:
            raise ValueError("Please don't set both cuda_graph_config.batch_sizes and cuda_graph_config.max_batch_size.")
        self.model = model
        self.skip_tokenizer_init = skip_tokenizer_init
        self.args = kwargs
        self.requests: list[RequestOutput] = []
        self.gate = asyncio.Semaphore(10**9)
        self.down = False
        LLM.made.append(self)

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        trace_headers: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        if self.down:
            raise RuntimeError("LLM is shutting down")
        asyncio.get_running_loop()  # without one the real result could not be awaited
        assert sampling_params is not None
        if sampling_params.end_id is None and self.skip_tokenizer_init:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        assert isinstance(inputs, list)
        assert isinstance(inputs[0], int)
        assert streaming
        self.requests.append(RequestOutput(self, inputs, sampling_params))
        return self.requests[-1]

    def shutdown(self) -> None:
        self.down = True


def install(patch: pytest.MonkeyPatch) -> None:
    contents: dict[str, dict[str, Any]] = {
        "tensorrt_llm": {"__version__": "1.2.1", "LLM": LLM, "SamplingParams": SamplingParams},
        "tensorrt_llm.llmapi": {"KvCacheConfig": KvCacheConfig, "CudaGraphConfig": CudaGraphConfig},
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(content)
        patch.setitem(sys.modules, name, module)
    LLM.made = []
    LLM.fail_with = None
    LLM.ends_with = None
    LLM.says_the_end = True
