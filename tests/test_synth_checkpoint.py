"""The synthetic checkpoint's promise: valid frames for about the chosen length, then the end, with any sampling."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from orpheus_serving import cli
from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.transformers import TransformersEngine
from orpheus_serving.synth_checkpoint import FRAME_SECONDS, SHAPES, Shape, _Program, build_synth_lm, rotary_frequencies

LAYOUT = SHAPES["tiny"].layout
SECONDS = 1.5
FRAMES = round(SECONDS / FRAME_SECONDS)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_synth_lm(tmp_path_factory.mktemp("synthetic"), "tiny", seconds=SECONDS, codec=False)


def speech_of(model: torch.nn.Module, prompt: list[int], **sampling: object) -> list[int]:
    """The ids before the end of speech, from `transformers` over the whole vocabulary."""
    ids = torch.tensor([prompt])
    torch.manual_seed(5)
    said = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=8 * FRAMES,
        pad_token_id=LAYOUT.end_of_speech,
        eos_token_id=LAYOUT.end_of_speech,
        **sampling,
    )[0, len(prompt) :].tolist()
    assert said[-1] == LAYOUT.end_of_speech, "it did not end"
    return said[:-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sampling",
    [
        {"do_sample": False},
        {"do_sample": True, "temperature": 0.6, "top_p": 0.8, "top_k": 0, "repetition_penalty": 1.1},
        {"do_sample": True, "temperature": 1.0, "top_k": 0},
        {"do_sample": True, "temperature": 2.0, "top_k": 0},
    ],
)
def test_whatever_the_sampling_frames_are_valid_and_it_ends(
    synthetic: Path, dtype: torch.dtype, sampling: dict[str, object]
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(synthetic, dtype=dtype)
    for text in ("Hi.", "A text of some more words, so that the prompt has another length."):
        said = speech_of(model, Checkpoint(synthetic).prompt(text, "tara"), **sampling)
        assert all(LAYOUT.is_code(token) for token in said)
        assert [LAYOUT.slot(token) for token in said] == [n % 7 for n in range(len(said))]
        assert abs(len(said) / 7 - FRAMES) <= 1
        assert len(set(said)) > len(said) / 2, "the codes hardly vary"


@pytest.mark.parametrize("hidden", [512, SHAPES["full"].hidden])
async def test_a_wide_model_does_not_repeat_itself(tmp_path: Path, hidden: int) -> None:
    """The newest id's own logit grows with the width, since the head is the embedding."""
    shape = dataclasses.replace(SHAPES["tiny"], hidden=hidden, layers=2)
    folder = build_synth_lm(tmp_path, shape, seconds=SECONDS, codec=False)
    engine = TransformersEngine(folder, LAYOUT, device="cpu", dtype="float32", max_length=600, constrained=False)
    await engine.start()
    sampling = Sampling(500, temperature=0, top_p=1.0, repetition_penalty=1.0)
    said = [i async for ids in engine.generate(Checkpoint(folder).prompt("Hi.", None), sampling, "r") for i in ids]
    await engine.stop()
    assert said.pop() == LAYOUT.end_of_speech
    assert [LAYOUT.slot(token) for token in said] == [n % 7 for n in range(7 * FRAMES)]


def test_other_texts_and_seeds_say_other_codes(synthetic: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(synthetic)
    prompts = [Checkpoint(synthetic).prompt(text, "tara") for text in ("One.", "Two.")]
    first, second = (speech_of(model, prompt, do_sample=True, top_k=0) for prompt in prompts)
    assert first != second


async def test_the_embedded_engine_speaks_it(synthetic: Path) -> None:
    engine = TransformersEngine(synthetic, LAYOUT, device="cpu", max_length=600, constrained=False)
    await engine.start()
    said = [
        i async for ids in engine.generate(Checkpoint(synthetic).prompt("Hi.", None), Sampling(500, seed=1), "r") for i in ids
    ]
    await engine.stop()
    assert said[-1] == LAYOUT.end_of_speech
    assert abs((len(said) - 1) / 7 - FRAMES) <= 1


@pytest.mark.parametrize("size", ["tiny", "full"])
@pytest.mark.parametrize("seconds", [1, 2, 5, 7, 10, 14, 20, 30, 45, 60])
def test_every_length_can_be_marked(size: str, seconds: float) -> None:
    program = _Program(SHAPES[size], round(seconds / FRAME_SECONDS))
    assert 0 <= program.pair < SHAPES[size].head_dim // 2


def test_the_rotary_frequencies_are_those_of_transformers(synthetic: Path) -> None:
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    expected = LlamaRotaryEmbedding(AutoConfig.from_pretrained(synthetic)).inv_freq
    torch.testing.assert_close(torch.tensor(rotary_frequencies(32)), expected, rtol=1e-5, atol=0)


def test_the_full_size_is_orpheus_3b() -> None:
    shape = Shape()
    layer = shape.hidden * (2 * shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim + 3 * shape.mlp)
    parameters = shape.vocabulary * shape.hidden + shape.layers * (layer + 2 * shape.hidden) + shape.hidden
    assert round(parameters / 1e9, 1) == 3.3
    assert shape.layout.last_code < shape.vocabulary


def test_the_command_writes_a_checkpoint_with_its_codec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "synthetic"
    assert cli.main(["synth-checkpoint", str(folder), "--size", "tiny", "--seconds", "2"]) == 0
    assert str(folder) in capsys.readouterr().err
    assert "synthetic" in Checkpoint(folder).name
    assert json.loads((folder / "codec" / "config.json").read_text())["codebook_size"] == LAYOUT.codes_per_slot


def test_a_length_out_of_range_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["synth-checkpoint", str(tmp_path), "--size", "tiny", "--seconds", "100"]) == 1
    assert "seconds" in capsys.readouterr().err
