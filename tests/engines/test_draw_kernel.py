"""The sampler's kernel, in Triton's interpreter, against the plainest reading of what it promises."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("the interpreter is for machines without a GPU", allow_module_level=True)

from orpheus_serving.engines.draw_kernel import draw
from orpheus_serving.tokens import TokenLayout

LAYOUT = TokenLayout(first_code=100, codes_per_slot=50, end_of_speech=7, prompt_before=(1,), prompt_after=(2,))
END = LAYOUT.slots * LAYOUT.codes_per_slot
WIDTH = 384
PROMPT = 10


class Batch:
    """Rows in a shuffled order of requests, each at its own point of its speech."""

    def __init__(self, rows: int, seed: int = 0, **settings: Any) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(rows, WIDTH, generator=generator) * 3
        self.generated = torch.randint(0, 40, (rows,), generator=generator, dtype=torch.int32)
        self.requests = torch.randperm(rows + 3, generator=generator)[:rows].to(torch.int32)
        self.seen = torch.zeros(rows + 3, WIDTH, dtype=torch.int8)
        count = rows + 3
        self.prompts = torch.full((count,), PROMPT, dtype=torch.int32)
        self.prefills = torch.full((count,), PROMPT, dtype=torch.int32)
        self.temperature = torch.full((count,), float(settings.get("temperature", 0.0)))
        self.top_p = torch.full((count,), float(settings.get("top_p", 1.0)))
        self.top_k = torch.full((count,), int(settings.get("top_k", 10_000)), dtype=torch.int32)
        self.penalty = torch.full((count,), float(settings.get("penalty", 1.0)))
        self.seeds = torch.arange(count, dtype=torch.int64) * 1_000_003 + int(settings.get("seeds", 0))

    def draw(self) -> list[int]:
        ids, self.sampled = draw(
            self.logits,
            self.seen,
            self.requests,
            self.generated + PROMPT,
            self.prompts,
            self.prefills,
            self.temperature,
            self.top_p,
            self.top_k,
            self.penalty,
            self.seeds,
            slots=LAYOUT.slots,
            codes_per_slot=LAYOUT.codes_per_slot,
            first_code=LAYOUT.first_code,
            end_of_speech=LAYOUT.end_of_speech,
        )
        drawn: list[int] = ids.tolist()
        return drawn

    def candidates(self, row: int) -> tuple[list[int], torch.Tensor]:
        """Ids that may follow, and their logits after the penalty."""
        slot = int(self.generated[row]) % LAYOUT.slots
        columns = [slot * LAYOUT.codes_per_slot + code for code in range(LAYOUT.codes_per_slot)]
        ids = [LAYOUT.first_code + column for column in columns]
        if slot == 0:
            columns.append(END)
            ids.append(LAYOUT.end_of_speech)
        logits = self.logits[row, columns].double()
        request = int(self.requests[row])
        said = self.seen[request, columns] != 0
        penalty = float(self.penalty[request])
        return ids, torch.where(said, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def column_of(token: int) -> int:
    return END if token == LAYOUT.end_of_speech else token - LAYOUT.first_code


def test_greedy_takes_the_best_of_the_slot_and_the_end_only_at_a_frame() -> None:
    batch = Batch(24)
    batch.logits[:, END] = 50.0
    best = []
    for row in range(24):
        ids, logits = batch.candidates(row)
        best.append(ids[int(logits.argmax())])
    assert batch.draw() == best
    assert LAYOUT.end_of_speech in best
    assert len({LAYOUT.slot(token) for token in best if token != LAYOUT.end_of_speech}) == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_any_float(dtype: torch.dtype) -> None:
    batch = Batch(8)
    batch.logits = batch.logits.to(dtype)
    expected = []
    for row in range(8):
        ids, logits = batch.candidates(row)
        expected.append(ids[int(logits.argmax())])
    assert batch.draw() == expected


def test_what_is_drawn_is_seen_from_then_on_and_penalised() -> None:
    batch = Batch(6, penalty=1e6)
    batch.generated[:] = 3
    assert int(batch.seen.sum()) == 0
    first = batch.draw()
    for row, token in enumerate(first):
        assert batch.seen[batch.requests[row], column_of(token)] == 1
    assert int(batch.seen.sum()) == 6
    expected = []
    for row in range(6):
        ids, logits = batch.candidates(row)
        expected.append(ids[int(logits.argmax())])
    second = batch.draw()
    assert second == expected
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_a_row_whose_prompt_is_not_complete_is_not_sampled_and_marks_nothing() -> None:
    batch = Batch(4)
    batch.prefills[batch.requests[1]] = 400
    batch.draw()
    assert batch.sampled.tolist() == [1, 0, 1, 1]
    assert int(batch.seen[batch.requests[1]].sum()) == 0


@pytest.mark.parametrize("top_k", [1, 2, 7, 49])
def test_top_k_draws_from_the_k_best(top_k: int) -> None:
    batch = Batch(12, temperature=2.0, top_k=top_k)
    batch.generated[:] = 1
    batch.logits[:] = batch.logits[0]
    ids, logits = batch.candidates(0)
    best = {ids[i] for i in logits.argsort(descending=True)[:top_k]}
    drawn = set()
    for _ in range(3):
        batch.seeds += 17
        drawn |= set(batch.draw())
    assert drawn <= best
    assert len(drawn) > 1 or top_k == 1


@pytest.mark.parametrize("top_p", [0.05, 0.8, 0.99])
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_top_p_draws_from_the_shortest_run_that_reaches_it(top_p: float, temperature: float) -> None:
    batch = Batch(40, temperature=temperature, top_p=top_p)
    batch.generated[:] = 7
    batch.logits[:] = batch.logits[0]
    ids, logits = batch.candidates(0)
    probabilities, order = (logits / temperature).softmax(0).sort(descending=True)
    before = probabilities.cumsum(0) - probabilities
    kept = {ids[int(i)] for i, mass in zip(order, before, strict=True) if mass < top_p}
    drawn = set(batch.draw())
    assert drawn <= kept
    likely = {ids[int(i)] for i, mass in zip(order, probabilities, strict=True) if mass >= 0.25}
    assert likely & kept <= drawn, "something of a quarter or more should come in 40 draws"


def test_top_p_works_on_what_top_k_left() -> None:
    batch = Batch(25, temperature=1.0, top_p=0.9, top_k=3)
    batch.generated[:] = 2
    batch.logits[:] = 0.0
    columns = 2 * LAYOUT.codes_per_slot
    batch.logits[:, columns : columns + 3] = torch.tensor([3.0, 2.9, 0.1])
    batch.logits[:, columns + 3 :] = 0.05
    # of the three best the first two have 0.973 of the mass; of all fifty they would have less than 0.9
    assert {token - LAYOUT.token(2, 0) for token in batch.draw()} == {0, 1}


@pytest.mark.parametrize("slot", [0, 4])
def test_draws_follow_the_distribution(slot: int) -> None:
    rows = 300
    batch = Batch(rows, temperature=0.7)
    batch.generated[:] = 14 + slot
    batch.logits[:] = -30.0
    start = slot * LAYOUT.codes_per_slot
    batch.logits[:, start : start + 4] = torch.tensor([1.0, 0.5, 0.0, -1.0])
    batch.logits[:, END] = 0.8
    ids, logits = batch.candidates(0)
    probabilities = (logits / 0.7).softmax(0)
    counts = list(map(batch.draw().count, ids))
    for count, probability in zip(counts, probabilities.tolist(), strict=True):
        deviation = (rows * probability * (1 - probability)) ** 0.5
        assert abs(count - rows * probability) <= 5 * deviation + 1


def test_a_seed_draws_the_same_in_any_company_and_another_seed_or_step_does_not() -> None:
    alone = Batch(1, temperature=1.5)
    many = Batch(9, seed=3, temperature=1.5)
    many.logits[4] = alone.logits[0]
    many.generated[4] = alone.generated[0]
    many.seeds[many.requests[4]] = alone.seeds[alone.requests[0]]
    expected = alone.draw()[0]
    assert many.draw()[4] == expected

    steps = Batch(40, temperature=1.5)
    steps.logits[:] = steps.logits[0]
    steps.generated[:] = 7 * torch.arange(40, dtype=torch.int32)
    steps.seeds[:] = 5
    assert len(set(steps.draw())) > 10
