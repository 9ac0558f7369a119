"""The draw, by rows and vectorised, against one that takes a row at a time and says what it does."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.sampling import Candidates, _drawn_together, draw
from orpheus_serving.tokens import TokenLayout

WIDTH = 24


Draw = Callable[[torch.Tensor, torch.Tensor | None, list[Sampling], list[float]], list[int]]


@pytest.fixture(scope="module", params=[draw, _drawn_together], ids=["by rows, as on a CPU", "together, as on a GPU"])
def any_draw(request: pytest.FixtureRequest) -> Draw:
    return request.param  # type: ignore[no-any-return]


@st.composite
def rows(draw_: st.DrawFn) -> tuple[list[float], set[int], Sampling]:
    # Logits a quarter apart and rounded settings: no two sums are so close that rounding could order them either way.
    logits = draw_(st.permutations([0.25 * n - 2 for n in range(WIDTH)]))
    seen = draw_(st.sets(st.integers(0, WIDTH - 1), max_size=8))
    sampling = Sampling(
        max_tokens=1,
        temperature=draw_(st.sampled_from([0.0, 0.3, 0.6, 1.0, 1.7])),
        top_p=draw_(st.sampled_from([0.123, 0.5, 0.8, 0.951, 1.0])),
        top_k=draw_(st.sampled_from([0, 1, 3, 10, 1000])),
        repetition_penalty=draw_(st.sampled_from([1.0, 1.13, 1.57, 0.83])),
    )
    return list(logits), seen, sampling


def reference_distribution(logits: list[float], seen: set[int], sampling: Sampling) -> list[float]:
    """Probabilities of the columns, in plain Python: penalty, temperature, top-k, top-p."""
    penalty = sampling.repetition_penalty
    scores = [(x * penalty if x < 0 else x / penalty) if c in seen else x for c, x in enumerate(logits)]
    ranked = sorted(range(len(scores)), key=lambda c: (-scores[c], c))
    if sampling.temperature == 0:
        return [float(c == ranked[0]) for c in range(len(scores))]
    ranked = ranked[: sampling.top_k or None]
    weights = {c: math.exp((scores[c] - scores[ranked[0]]) / sampling.temperature) for c in ranked}
    total = sum(weights.values())
    kept: dict[int, float] = {}
    for c in ranked:
        if sum(kept.values()) >= sampling.top_p:
            break
        kept[c] = weights[c] / total
    return [kept.get(c, 0.0) / sum(kept.values()) for c in range(len(scores))]


def drawn_distribution(draw: Draw, logits: list[float], seen: set[int], sampling: Sampling, points: int = 4000) -> list[float]:
    """What `draw` says at evenly spread uniform numbers: its distribution, up to 1 / points a column."""
    mask = torch.tensor([c in seen for c in range(len(logits))])
    columns = draw(
        torch.tensor(logits).repeat(points, 1),
        mask.repeat(points, 1),
        [sampling] * points,
        [(n + 0.5) / points for n in range(points)],
    )
    counts = torch.bincount(torch.tensor(columns), minlength=len(logits))
    return (counts / points).tolist()


@given(row=rows())
def test_the_distribution_is_the_reference_s(any_draw: Draw, row: tuple[list[float], set[int], Sampling]) -> None:
    expected = reference_distribution(*row)
    assert drawn_distribution(any_draw, *row) == pytest.approx(expected, abs=2 / 4000)


@given(row=rows())
def test_the_distribution_is_that_of_transformers(any_draw: Draw, row: tuple[list[float], set[int], Sampling]) -> None:
    logits, seen, sampling = row
    if sampling.temperature == 0:
        return
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    history = torch.tensor([sorted(seen)], dtype=torch.long)
    expected = processors(history, torch.tensor([logits])).softmax(-1)[0].tolist()
    assert drawn_distribution(any_draw, *row) == pytest.approx(expected, abs=2 / 4000)


@given(batch=st.lists(rows(), min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_a_row_draws_the_same_in_any_company(
    any_draw: Draw, batch: list[tuple[list[float], set[int], Sampling]], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(len(batch), generator=generator).tolist()
    logits = torch.tensor([row[0] for row in batch])
    seen = torch.tensor([[c in row[1] for c in range(WIDTH)] for row in batch])
    samplings = [row[2] for row in batch]
    together = any_draw(logits, seen, samplings, uniforms)
    alone = [
        any_draw(logits[n : n + 1], seen[n : n + 1], samplings[n : n + 1], uniforms[n : n + 1])[0] for n in range(len(batch))
    ]
    assert together == alone


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_what_cannot_follow_is_never_drawn(any_draw: Draw, uniform: float) -> None:
    logits = torch.full((1, 9), float("-inf"))
    logits[0, [2, 7]] = torch.tensor([-30.0, 40.0])
    for sampling in (Sampling(1, temperature=9.0, top_p=1.0), Sampling(1, temperature=0), Sampling(1, top_k=1)):
        assert any_draw(logits, torch.ones(1, 9, dtype=torch.bool), [sampling], [uniform])[0] in (2, 7)


def test_equal_logits_go_to_the_lower_column(any_draw: Draw) -> None:
    assert any_draw(torch.zeros(1, 5), torch.zeros(1, 5, dtype=torch.bool), [Sampling(1, temperature=0)], [0.9]) == [0]


def test_candidates_map_ids_to_places_and_back() -> None:
    layout = TokenLayout(first_code=10, codes_per_slot=4, slots=3, end_of_speech=7, prompt_before=(), prompt_after=())
    candidates = Candidates(torch.randn(22, 8), layout, constrained=True)
    assert (candidates.groups, candidates.width) == (3, 5)
    for token in [*range(10, 22), 7]:
        assert candidates.token(*candidates.place(token)) == token
    assert candidates.place(9) is None
    whole = Candidates(torch.randn(22, 8), layout, constrained=False)
    assert all(whole.token(*whole.place(token)) == token for token in range(22))


def test_constrained_logits_are_a_cut_of_the_whole() -> None:
    layout = TokenLayout(first_code=10, codes_per_slot=4, slots=3, end_of_speech=7, prompt_before=(), prompt_after=())
    head, hidden = torch.randn(22, 8), torch.randn(5, 8)
    groups = [2, 0, 1, 0, 2]
    logits = Candidates(head, layout, constrained=True).logits(hidden, groups)
    for row, group in enumerate(groups):
        ids = [layout.token(group, code) for code in range(4)]
        torch.testing.assert_close(logits[row, :4], (head @ hidden[row])[ids])
        if group == 0:
            torch.testing.assert_close(logits[row, 4], head[7] @ hidden[row])
        else:
            assert logits[row, 4] == float("-inf")
