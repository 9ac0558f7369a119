"""The model's head and sampler inside vLLM's model runner (a stand-in), with the kernel in Triton's interpreter."""

from __future__ import annotations

import os
import types
from typing import Any

import numpy as np
import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU", allow_module_level=True)

import dataclasses

import vllm_standin as standin

from orpheus_serving.tokens import TokenLayout

LAYOUT = TokenLayout(first_code=100, codes_per_slot=20, end_of_speech=7, prompt_before=(1,), prompt_after=(2,))
VOCABULARY, HIDDEN, REQUESTS = 300, 16, 5


class Runner:
    """What vLLM's second model runner does around model and sampler, in as few lines as that takes."""

    def __init__(self) -> None:
        from orpheus_serving.engines.vllm_model import OrpheusForCausalLM

        torch.manual_seed(1)
        config = types.SimpleNamespace(
            hidden=HIDDEN,
            vocabulary=VOCABULARY,
            max_num_seqs=REQUESTS,
            use_v2_model_runner=True,
            parallel_config=types.SimpleNamespace(world_size=1),
            additional_config={"orpheus_layout": dataclasses.asdict(LAYOUT)},
        )
        self.model = OrpheusForCausalLM(vllm_config=config)
        self.state: Any = self.model.get_model_state_cls()(config, self.model, None, torch.device("cpu"))
        lengths = (standin.UvaBackedTensor(REQUESTS, torch.int32) for _ in range(2))
        self.requests = types.SimpleNamespace(prompt_len=next(lengths), prefill_len=next(lengths))
        base = types.SimpleNamespace(
            req_states=self.requests, sampling_states=standin.SamplingStates(REQUESTS, VOCABULARY), penalties_state=None
        )
        self.sampler, rejection = self.state.custom_sampler(base)
        assert rejection is None

    def add(self, request: int, prompt: list[int], said: list[int], parameters: standin.SamplingParams) -> None:
        self.requests.prompt_len.np[request] = len(prompt)
        self.requests.prefill_len.np[request] = len(prompt) + len(said)
        self.requests.prompt_len.copy_to_uva()
        self.requests.prefill_len.copy_to_uva()
        self.state.add_request(request, types.SimpleNamespace(prefill_token_ids=[*prompt, *said]))
        self.sampler.add_request(request, len(prompt), parameters)

    def step(self, rows: list[tuple[int, int]], hidden: torch.Tensor) -> list[int]:
        """(request, length of its sequence) of each row -> ids."""
        self.sampler.apply_staged_writes()
        with torch.inference_mode():
            logits = self.model.compute_logits(hidden)
            answer = self.sampler(
                logits,
                types.SimpleNamespace(
                    idx_mapping=torch.tensor([request for request, _ in rows], dtype=torch.int32),
                    idx_mapping_np=np.array([request for request, _ in rows]),
                    seq_lens=torch.tensor([length for _, length in rows] + [0, 0], dtype=torch.int32),  # padded, as there
                ),
            )
        assert answer.num_rejected.tolist() == [0] * len(rows)
        self.sampled = answer.num_sampled.tolist()
        ids: list[int] = answer.sampled_token_ids[:, 0].tolist()
        return ids


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    standin.install(monkeypatch)
    return Runner()


def greedy(penalty: float = 1.0) -> standin.SamplingParams:
    return standin.SamplingParams(temperature=0.0, repetition_penalty=penalty)


def best(runner: Runner, hidden: torch.Tensor, generated: int, seen: set[int], penalty: float) -> int:
    """The plain model's greedy id among those that may follow."""
    logits = (runner.model.lm_head.weight @ hidden).detach()
    slot = generated % 7
    allowed = [LAYOUT.token(slot, code) for code in range(20)] + ([LAYOUT.end_of_speech] if slot == 0 else [])

    def penalised(token: int) -> float:
        value = float(logits[token])
        if token not in seen:
            return value
        return value / penalty if value > 0 else value * penalty

    return max(allowed, key=penalised)


def test_logits_are_the_plain_heads_at_the_audio_ids(runner: Runner) -> None:
    hidden = torch.randn(3, HIDDEN)
    logits = runner.model.compute_logits(hidden)
    plain = hidden @ runner.model.lm_head.weight.T
    torch.testing.assert_close(logits[:, :140], plain[:, LAYOUT.first_code : LAYOUT.last_code + 1])
    torch.testing.assert_close(logits[:, 140], plain[:, LAYOUT.end_of_speech])
    assert logits.shape[1] % 64 == 0


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_greedy_speech_of_requests_that_join_and_leave(runner: Runner, penalty: float) -> None:
    prompts = {0: [1, 110, 2], 3: [1, 5, 5, 5, 2], 4: [1, 2]}
    said: dict[int, list[int]] = {request: [] for request in prompts}
    running: list[int] = []
    for step in range(20):
        for request, at in ((3, 0), (0, 2), (4, 5)):
            if at == step:
                runner.add(request, prompts[request], [], greedy(penalty))
                running.append(request)
        if step == 12:  # preempted and taken up again: all it has said is computed anew
            runner.add(3, prompts[3], said[3], greedy(penalty))
        running.reverse()
        hidden = torch.randn(len(running), HIDDEN)
        expected = [best(runner, h, len(said[r]), {*prompts[r], *said[r]}, penalty) for r, h in zip(running, hidden, strict=True)]
        ids = runner.step([(r, len(prompts[r]) + len(said[r])) for r in running], hidden)
        assert ids == expected
        for request, token in zip(running, ids, strict=True):
            said[request].append(token)


def test_a_new_request_in_an_old_row_has_seen_nothing(runner: Runner) -> None:
    hidden = torch.randn(1, HIDDEN)
    first = []
    for _ in range(2):
        runner.add(2, [1, 2], [], greedy(1e6))
        first.append(runner.step([(2, 2)], hidden))
    assert first[0] == first[1]
    assert runner.step([(2, 2)], hidden) != first[0]


def test_a_prompt_in_parts_is_not_sampled_before_its_end(runner: Runner) -> None:
    runner.add(1, [1] * 30, [], greedy())
    runner.step([(1, 16)], torch.randn(1, HIDDEN))
    assert runner.sampled == [0]
    runner.step([(1, 30)], torch.randn(1, HIDDEN))
    assert runner.sampled == [1]


def test_what_it_cannot_run_under_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    standin.install(monkeypatch)
    from orpheus_serving.engines.vllm_model import OrpheusForCausalLM

    config = types.SimpleNamespace(
        hidden=4,
        vocabulary=8,
        use_v2_model_runner=False,
        parallel_config=types.SimpleNamespace(world_size=1),
        additional_config={},
    )
    with pytest.raises(ValueError, match="VLLM_USE_V2_MODEL_RUNNER"):
        OrpheusForCausalLM(vllm_config=config)
    config.use_v2_model_runner, config.parallel_config.world_size = True, 2
    with pytest.raises(ValueError, match="one GPU"):
        OrpheusForCausalLM(vllm_config=config)
