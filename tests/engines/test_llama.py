"""The decoder against `LlamaForCausalLM`, and what loading refuses."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from orpheus_serving.compiled import compiled
from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.config import read_config
from orpheus_serving.engines.cpu_step import exponential
from orpheus_serving.engines.llama import LlamaDecoder, Weights
from orpheus_serving.engines.transformers import TransformersEngine
from orpheus_serving.errors import CheckpointError
from orpheus_serving.noise_checkpoint import NOISE_LAYOUT, build_noise_lm
from orpheus_serving.tokens import TokenLayout

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SHAPES: dict[str, dict[str, Any]] = {
    "tied, grouped queries": {},
    "untied": {"tied": False},
    "every head its own keys": {"kv_heads": 4},
    "one key head": {"kv_heads": 1},
    "head_dim is not hidden / heads": {"head_dim": 24, "heads": 2, "kv_heads": 1},
    "plain rope": {"rope_scaling": {"rope_type": "default"}},
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    # The original length is so short that these positions reach all three parts of the scaling.
    "llama3 rope": {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 32}},
}
PROMPTS = [[2, 60, 61, 62, 3, 4], [2, *range(20, 80), 3, 4], [4]]


@pytest.fixture(params=SHAPES, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_noise_lm(tmp_path_factory.mktemp("shape"), **SHAPES[request.param])


@pytest.fixture(params=["compiled", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiled step, and as where numba is not installed."""
    if request.param == "torch":
        monkeypatch.setattr("orpheus_serving.engines.llama.has_numba", lambda: False)


def decoder(folder: Path, exact: bool = True, dtype: torch.dtype = torch.float32, int8: bool = False) -> LlamaDecoder:
    with Weights(folder) as weights:
        return LlamaDecoder(
            read_config(folder),
            weights,
            rows=3,
            length=300,
            device=torch.device("cpu"),
            dtype=dtype,
            exact=exact,
            int8=int8,
        )


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("exact", [True, False])
def test_logits_are_those_of_transformers(folder: Path, exact: bool) -> None:
    """Three prompts of different lengths in one cache, then steps of all of them together."""
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = decoder(folder, exact)
    texts = [list(prompt) for prompt in PROMPTS]
    hidden = torch.cat([ours.prefill(row, text) for row, text in enumerate(texts)])
    for step in range(12):
        for row, text in enumerate(texts):
            with torch.inference_mode():
                expected = reference(torch.tensor([text])).logits[0, -1]
            torch.testing.assert_close(hidden[row] @ ours.head.T, expected, atol=2e-5, rtol=1e-4)
        for row, text in enumerate(texts):
            text.append(NOISE_LAYOUT.token(step % 7, 37 * step + row))
        hidden = ours.decode([0, 1, 2], [text[-1] for text in texts], [len(text) for text in texts])


async def test_greedy_ids_are_those_of_generate(folder: Path) -> None:
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine = TransformersEngine(folder, NOISE_LAYOUT, device="cpu", dtype="float32", max_length=300, constrained=False)
    await engine.start()
    sampling = Sampling(40, temperature=0, top_p=1, repetition_penalty=1.3)
    for prompt in PROMPTS:
        ids = [i async for batch in engine.generate(prompt, sampling, "r") for i in batch]
        expected = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=40,
            do_sample=False,
            repetition_penalty=1.3,
            pad_token_id=0,
        )
        assert ids == expected[0, len(prompt) :].tolist()
    await engine.stop()


async def test_constrained_greedy_ids_are_the_best_of_the_slot(folder: Path) -> None:
    """The reference takes the whole vocabulary's logits and looks at the ids that may follow."""
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine = TransformersEngine(folder, NOISE_LAYOUT, device="cpu", dtype="float32", max_length=300)
    await engine.start()
    sampling = Sampling(30, temperature=0, top_p=1, repetition_penalty=1.0)
    ids = [i async for batch in engine.generate(PROMPTS[1], sampling, "r") for i in batch]
    await engine.stop()
    text = list(PROMPTS[1])
    for count, token in enumerate(ids):
        slot = count % 7
        may_follow = [NOISE_LAYOUT.token(slot, code) for code in range(1024)]
        may_follow += [NOISE_LAYOUT.end_of_speech] if slot == 0 else []
        with torch.inference_mode():
            logits = reference(torch.tensor([text])).logits[0, -1, may_follow]
        assert token == may_follow[int(logits.argmax())]
        text.append(token)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("int8", [False, True])
def test_a_row_does_not_depend_on_its_company(checkpoint: Path, int8: bool) -> None:
    ours = decoder(checkpoint, int8=int8)
    results = []
    for row, company in ((0, {}), (2, {0: [5, 6, 7], 1: list(range(100))}), (1, {2: [9]})):
        for other, text in company.items():
            ours.prefill(other, text)
        ours.prefill(row, PROMPTS[1])
        texts = {row: [*PROMPTS[1], 200]} | {other: [*text, 8] for other, text in company.items()}
        order = sorted(texts)
        hidden = ours.decode(order, [texts[r][-1] for r in order], [len(texts[r]) for r in order])
        results.append(hidden[order.index(row)])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_products_that_mind_their_company_run_row_by_row(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orpheus_serving.engines.llama.has_numba", lambda: False)
    expected = decoder(checkpoint).prefill(0, PROMPTS[0])
    monkeypatch.setattr("orpheus_serving.engines.llama.rows_are_alike", lambda *_: False)
    ours = decoder(checkpoint)
    torch.testing.assert_close(ours.prefill(0, PROMPTS[0]), expected)
    weight = ours.head[:50]
    x = torch.randn(6, weight.shape[1])
    assert torch.equal(ours.product(weight)(x[3:4]), ours.product(weight)(x)[3:4])


@pytest.mark.usefixtures("path")
def test_weights_in_eight_bits_stay_near(checkpoint: Path) -> None:
    decoders = decoder(checkpoint), decoder(checkpoint, int8=True)
    full, small = (torch.cat([d.prefill(0, PROMPTS[1]), d.decode([0], [70], [len(PROMPTS[1]) + 1])]) for d in decoders)
    assert not torch.equal(full, small)
    assert torch.cosine_similarity(full, small).min().item() > 0.999


def test_eight_bits_are_compiled_as_torch_multiplies_them(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights: what is left between the two is that torch's product rounds activations to bfloat16."""
    compiled = decoder(checkpoint, int8=True)
    monkeypatch.setattr("orpheus_serving.engines.llama.has_numba", lambda: False)
    plain = decoder(checkpoint, int8=True)
    torch.testing.assert_close(compiled.prefill(0, PROMPTS[1]), plain.prefill(0, PROMPTS[1]))
    step = [0], [70], [len(PROMPTS[1]) + 1]
    torch.testing.assert_close(compiled.decode(*step), plain.decode(*step), atol=0.03, rtol=0)


@pytest.mark.parametrize("most", [87, 1])
def test_the_compiled_exponential(most: int) -> None:
    values = np.append(np.linspace(-most, most, 999, dtype=np.float32), np.float32(-1e30))
    ours = np.empty_like(values)
    all_of(values, ours)
    np.testing.assert_allclose(ours[:-1], np.exp(values[:-1].astype(np.float64)), rtol=4e-7)
    assert ours[-1] < 1e-37


def test_code_that_cannot_be_kept_is_compiled_all_the_same() -> None:
    names: dict[str, Any] = {}
    exec("def twice(x):\n    return 2 * x", names)  # a function without a file has no place for what is compiled
    assert compiled(names["twice"])(np.float32(3)) == 6


def test_the_compiled_step_is_the_faster_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of twenty steps each, in turn, at the demo voice's width. Measured: two to three times as fast."""
    folder = build_noise_lm(tmp_path, hidden=384, layers=3, heads=6, kv_heads=6, mlp=1024)
    ours = decoder(folder, int8=True)
    monkeypatch.setattr("orpheus_serving.engines.llama.has_numba", lambda: False)
    plain = decoder(folder, int8=True)
    best = {ours: 1e9, plain: 1e9}
    for each in best:
        each.prefill(0, [5] * 200)
    for length in range(201, 221):
        for each in best:
            began = time.perf_counter()
            each.decode([0], [5], [length])
            best[each] = min(best[each], time.perf_counter() - began)
    assert best[ours] < best[plain] / 1.3


@compiled
def all_of(values: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(values)):
        out[i] = exponential(values[i])


def test_half_precision_stays_near(checkpoint: Path) -> None:
    full = decoder(checkpoint).prefill(0, PROMPTS[1])
    half = decoder(checkpoint, dtype=torch.bfloat16).prefill(0, PROMPTS[1])
    assert torch.cosine_similarity(full, half.float()).item() > 0.99


def start(folder: Path, layout: TokenLayout = NOISE_LAYOUT) -> None:
    asyncio.run(TransformersEngine(folder, layout, device="cpu", max_length=64).start())


def broken(checkpoint: Path, folder: Path, **changes: Any) -> Path:
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"architectures.*LlamaForCausalLM"),
        ({"architectures": None}, "architectures"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'"),
        ({"hidden_size": [64]}, r"hidden_size is \[64\]"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"rope_parameters": ["linear"]}, "rope_parameters is"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"intermediate_size": 96}, "gate_proj.*shape"),
        ({"num_hidden_layers": 3}, r"model.layers.2.*missing"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
    ],
)
def test_a_checkpoint_that_cannot_work_is_refused(
    checkpoint: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        start(broken(checkpoint, tmp_path, **changes))
    assert "embedded" not in str(error.value), "the other engines read it too"


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"hidden_size": 96, "num_attention_heads": 4},
        {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True},
        {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 32}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}},
        {"head_dim": None, "num_key_value_heads": None, "rms_norm_eps": 1e-5, "vocab_size": 9, "intermediate_size": 11},
    ],
)
def test_fields_that_are_not_given_are_those_of_transformers(tmp_path: Path, raw: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    ours, theirs = read_config(tmp_path), LlamaConfig.from_pretrained(tmp_path)
    for name in type(ours).model_fields:
        if name != "raw":
            assert getattr(ours, name) == getattr(theirs, name), name


def test_other_broken_folders_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        start(tmp_path)
    folder = broken(checkpoint, tmp_path)
    with pytest.raises(CheckpointError, match="layout needs ids up to"):
        start(folder, TokenLayout())
    (folder / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(CheckpointError, match="cannot be read"):
        start(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \*.safetensors"):
        start(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(folder)


def test_a_sharded_checkpoint_loads(checkpoint: Path, tmp_path: Path) -> None:
    folder = broken(checkpoint, tmp_path)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, its in shards.items():
        save_file({name: weights[name] for name in its}, folder / file)
    index = {"weight_map": {name: file for file, its in shards.items() for name in its}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(decoder(folder).prefill(0, PROMPTS[0]), decoder(checkpoint).prefill(0, PROMPTS[0]))
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors"):
        decoder(folder)
