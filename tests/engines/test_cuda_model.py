"""The rows of `RowModel` against the plain decoder in float32, on a model of two layers in Triton's interpreter.

FP8 is coarse, so numbers are not equal; but whatever is wrong about positions, pages, heads or products is far outside of its
error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import interpreted  # noqa: F401  first: it makes kernels run here
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from orpheus_serving.engines import cuda_kernels, cuda_model
from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.config import read_config
from orpheus_serving.engines.cuda_model import NEWEST, RowModel, buckets
from orpheus_serving.engines.llama import LlamaDecoder, Weights
from orpheus_serving.tokens import TokenLayout

LAYOUT = TokenLayout(first_code=40, codes_per_slot=8, end_of_speech=1, prompt_before=(2,), prompt_after=(3,))
SHAPE = {
    "vocab_size": LAYOUT.last_code + 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
CPU = torch.device("cpu")
ROWS = 24  # of the largest step
PAGE = 16  # tokens, here
GREEDY = Sampling(100, temperature=0, top_p=1, repetition_penalty=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two-layers")
    generator = torch.Generator().manual_seed(0)
    hidden, mlp, q, kv = 64, 96, 6 * 32, 2 * 32

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    weights = {"model.embed_tokens.weight": torch.randn(SHAPE["vocab_size"], hidden, generator=generator)}
    weights["model.norm.weight"] = 1 + 0.1 * torch.randn(hidden, generator=generator)
    for layer in range(2):
        name = f"model.layers.{layer}"
        weights[f"{name}.input_layernorm.weight"] = 1 + 0.1 * torch.randn(hidden, generator=generator)
        weights[f"{name}.post_attention_layernorm.weight"] = 1 + 0.1 * torch.randn(hidden, generator=generator)
        for part, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            weights[f"{name}.self_attn.{part}_proj.weight"] = matrix(rows, columns)
        for part, rows, columns in (("gate", mlp, hidden), ("up", mlp, hidden), ("down", hidden, mlp)):
            weights[f"{name}.mlp.{part}_proj.weight"] = matrix(rows, columns)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | SHAPE))
    return folder


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RowModel:
    """With few programs: the interpreter takes a millisecond for what a GPU does at once."""
    for module in (cuda_kernels, cuda_model):
        monkeypatch.setattr(module, "PAGE", PAGE)
    monkeypatch.setattr(cuda_model, "MOST_PARTS", 2)
    monkeypatch.setattr(cuda_model, "SMALLEST_BUCKET", 2)
    monkeypatch.setattr(cuda_model, "BUCKETS", (2,))
    with Weights(folder) as weights:
        model = RowModel(read_config(folder), weights, LAYOUT, places=3, rows=ROWS, length=4 * PAGE, device=CPU)
    model.open_pages(12)
    return model


@pytest.fixture
def plain(folder: Path) -> LlamaDecoder:
    with Weights(folder) as weights:
        return LlamaDecoder(read_config(folder), weights, rows=1, length=4 * PAGE, device=CPU, dtype=torch.float32, exact=False)


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What each step gives to the head."""
    kept: list[Tensor] = []

    def recording(x: Tensor, weight: Tensor) -> Tensor:
        kept.append(x.float())
        return torch.nn.functional.linear(x, weight)

    monkeypatch.setattr(cuda_model, "linear", recording)
    return kept


def reference(plain: LlamaDecoder, ids: list[int]) -> Tensor:
    """Hidden states [T, hidden] after each id."""
    states = [plain.prefill(0, ids[:1])]
    states += [plain.decode([0], [token], [n + 2]) for n, token in enumerate(ids[1:])]
    return torch.cat(states)


def test_rows_of_prompts_in_any_portions_and_company_are_the_plain_models(
    model: RowModel, plain: LlamaDecoder, hidden: list[Tensor]
) -> None:
    generator = torch.Generator().manual_seed(1)
    prompts = {
        0: torch.randint(4, 96, (PAGE + 9,), generator=generator).tolist(),
        2: torch.randint(4, 96, (21,), generator=generator).tolist(),
    }
    model.admit(0, prompts[0], GREEDY, 0, [3, 9])
    model.admit(2, prompts[2], GREEDY, 0, [7, 5])
    mixed = [(0, n) for n in range(15)] + [(2, n) for n in range(5)], [(2, n) for n in range(5, 21)] + [(0, 15)]
    rest = [[(0, n) for n in range(first, min(first + ROWS, PAGE + 9))] for first in range(16, PAGE + 9, ROWS)]
    got: dict[tuple[int, int], Tensor] = {}
    for step in (*mixed, *rest):
        model.step([p for p, _ in step], [n for _, n in step], [prompts[p][n] for p, n in step])
        got |= dict(zip(step, hidden[-1], strict=False))
    for place, ids in prompts.items():
        wanted = reference(plain, ids)
        ours = torch.stack([got[place, n] for n in range(len(ids))])
        error = (ours - wanted).norm(dim=1) / wanted.norm(dim=1)
        assert float(error.mean()) < 0.09
        assert float(error.max()) < 0.2


def test_a_row_goes_on_with_what_its_place_drew(model: RowModel, hidden: list[Tensor]) -> None:
    """Twice the same stream: once by NEWEST, once told what it drew; and beside another one."""
    prompt = [2, 10, 11, 12, 3]
    for place, pages in ((0, [1, 2]), (1, [3, 4])):
        model.admit(place, prompt, GREEDY, 0, pages)
        for n, token in enumerate(prompt):
            drawn = model.step([place], [n], [token]).ids()[0]
    for position in range(5, 10):
        assert LAYOUT.slot(drawn) == position - 5
        both = model.step([0, 1], [position, position], [NEWEST, drawn]).ids()
        assert both[0] == both[1]
        torch.testing.assert_close(hidden[-1][0], hidden[-1][1], rtol=0, atol=0)
        drawn = both[0]


def test_a_place_keeps_nothing_of_who_had_it_before(model: RowModel, hidden: list[Tensor]) -> None:
    """Not its keys, not its newest id, and not what it said, which the repetition penalty would see."""
    sampling = Sampling(100, temperature=0, repetition_penalty=3.0)

    def run(prompt: list[int]) -> list[int]:
        model.admit(1, prompt, sampling, 0, [4])
        drawn = model.step([1] * len(prompt), list(range(len(prompt))), prompt).ids()[-1:]
        for position in range(len(prompt), len(prompt) + 8):
            drawn += model.step([1], [position], [NEWEST]).ids()
        return drawn

    first = run([2, 20, 21, 3])
    other = run([2, 30, 31, 3])
    assert run([2, 20, 21, 3]) == first != other


@pytest.mark.parametrize("most", [1, 8, 40, 96, 257, 512, 768, 1280])
def test_sizes_of_steps_reach_the_largest_and_waste_little(most: int) -> None:
    sizes = buckets(most)
    assert sizes == sorted(set(sizes))
    assert most <= sizes[-1] < most + 8
    for rows in range(65, most + 1):
        size = next(size for size in sizes if size >= rows)
        assert size - rows < 64


def test_memory_is_what_a_page_says(model: RowModel) -> None:
    cache: Any = model._caches
    assert sum(layer.numel() for layer in cache) == 12 * model.page_bytes
