"""Orpheus inside vLLM's engine process: a Llama whose head is the audio ids, and a sampler that knows the frame.

    hidden [rows, h] --compute_logits--> [rows, 7 * 4096 + 1, padded] --FrameSampler (draw_kernel.py)--> ids of the vocabulary

The embedding stays whole: text is read, only audio is said. vLLM's second model runner lets a model bring its own per-request
state and sampler (`get_model_state_cls`, `custom_sampler`), which is all that this needs.

Checked against vLLM 0.24.0.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.output import SamplerOutput

from orpheus_serving.engines.draw_kernel import draw
from orpheus_serving.tokens import TokenLayout

PADDING = 64  # rows of the head come in multiples of this, so that a row of logits starts on an aligned address


class OrpheusForCausalLM(LlamaForCausalLM):
    """vLLM's Llama, with logits for the audio ids in slot order and the end of speech after them.

    The layout comes in `additional_config["orpheus_layout"]`. Raises ValueError for what the sampler cannot run under.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "", **kwargs: Any) -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, **kwargs)
        if not vllm_config.use_v2_model_runner:
            raise ValueError("Orpheus needs vLLM's second model runner: unset VLLM_USE_V2_MODEL_RUNNER")
        if vllm_config.parallel_config.world_size > 1:
            raise ValueError("Orpheus runs on one GPU; serve more of them with more servers")
        self.layout = TokenLayout(**vllm_config.additional_config["orpheus_layout"])
        self.audio_head: Tensor | None = None

    def slice_head(self) -> None:
        """Copy the head's rows of the audio ids and the end of speech, once the weights are loaded."""
        layout, weight = self.layout, self.lm_head.weight.data
        codes = layout.slots * layout.codes_per_slot
        rows = -(-(codes + 1) // PADDING) * PADDING
        head = weight.new_zeros(rows, weight.shape[1])
        head[:codes] = weight[layout.first_code : layout.last_code + 1]
        head[codes] = weight[layout.end_of_speech]
        self.audio_head = head

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        assert self.audio_head is not None
        return functional.linear(hidden_states, self.audio_head)

    def get_model_state_cls(self) -> type[FrameModelState]:
        return FrameModelState


class FrameModelState(DefaultModelState):
    """Tells the sampler what a new request has said already, and puts the sampler in place."""

    sampler: FrameSampler

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        super().add_request(req_index, new_req_data)
        self.sampler.remember(req_index, new_req_data.prefill_token_ids)

    def custom_sampler(self, sampler: Any) -> tuple[FrameSampler, None]:
        model: Any = self.model
        model.slice_head()
        self.sampler = FrameSampler(sampler, model.layout, self.max_num_reqs, len(model.audio_head), self.device)
        hidden = torch.zeros(self.max_num_reqs, model.audio_head.shape[1], dtype=model.audio_head.dtype, device=self.device)
        with torch.inference_mode():
            for rows in range(1, self.max_num_reqs + 1):  # cuBLAS picks and loads a kernel by the number of rows
                model.compute_logits(hidden[:rows])
        return self.sampler, None


class FrameSampler:
    """In the place of vLLM's sampler: the same calls, one kernel, no logprobs, bans or bitmasks.

    `seen` [requests, width] int8 has the columns of ids that a request's prompt and speech hold, for the repetition penalty.
    """

    def __init__(self, sampler: Any, layout: TokenLayout, requests: int, width: int, device: torch.device) -> None:
        self.req_states = sampler.req_states
        self.sampling_states = sampler.sampling_states  # temperature, top-p, top-k, seeds
        self.penalties_state = SimpleNamespace(output_bin_counts=None)  # so the model runner counts nothing
        self._layout = layout
        self._penalty = UvaBackedTensor(requests, dtype=torch.float32)
        self._penalty.np.fill(1.0)
        self._penalty.copy_to_uva()
        self._seen = torch.zeros(requests, width, dtype=torch.int8, device=device)
        self._none_rejected = torch.zeros(requests, dtype=torch.int32, device=device)
        self._new: list[int] = []  # requests since the last step
        self._new_rows: list[int] = []  # with _new_columns: what of `seen` they have
        self._new_columns: list[int] = []

    def remember(self, request: int, tokens: list[int]) -> None:
        layout = self._layout
        self._new.append(request)
        for token in tokens:
            if layout.is_code(token):
                self._new_rows.append(request)
                self._new_columns.append(token - layout.first_code)
            elif token == layout.end_of_speech:
                self._new_rows.append(request)
                self._new_columns.append(layout.slots * layout.codes_per_slot)

    def add_request(self, req_idx: int, prompt_len: int, sampling_params: Any) -> None:
        self.sampling_states.add_request(req_idx, sampling_params)
        self._penalty.np[req_idx] = sampling_params.repetition_penalty

    def apply_staged_writes(self) -> None:
        if not self._new:
            return
        self.sampling_states.apply_staged_writes()
        self._penalty.copy_to_uva()
        device = self._seen.device
        self._seen.index_fill_(0, async_tensor_h2d(self._new, dtype=torch.int64, device=device), 0)
        if self._new_rows:
            rows = async_tensor_h2d(self._new_rows, dtype=torch.int64, device=device)
            columns = async_tensor_h2d(self._new_columns, dtype=torch.int64, device=device)
            self._seen.index_put_((rows, columns), torch.ones((), dtype=torch.int8, device=device))
        self._new, self._new_rows, self._new_columns = [], [], []

    def __call__(self, logits: Tensor, input_batch: Any) -> SamplerOutput:
        states, layout = self.sampling_states, self._layout
        ids, sampled = draw(
            logits,
            self._seen,
            input_batch.idx_mapping,
            input_batch.seq_lens,
            self.req_states.prompt_len.gpu,
            self.req_states.prefill_len.gpu,
            states.temperature.gpu,
            states.top_p.gpu,
            states.top_k.gpu,
            self._penalty.gpu,
            states.seeds.gpu,
            slots=layout.slots,
            codes_per_slot=layout.codes_per_slot,
            first_code=layout.first_code,
            end_of_speech=layout.end_of_speech,
        )
        return SamplerOutput(
            sampled_token_ids=ids.view(-1, 1),
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=sampled,
            num_rejected=self._none_rejected[: len(ids)],
        )
