# ruff: noqa: E402  (imports after the check that their packages are there)
"""Ends made sure: where an utterance should have ended, what is learnt from it, and that nothing else changes."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

for needed in ("pyarrow", "snac", "num2words"):
    pytest.importorskip(needed)

from safetensors.torch import load_file

from orpheus_serving.training import ends
from orpheus_serving.training.documents import documents
from orpheus_serving.training.guide import FRAME_S
from orpheus_serving.training.small_lm import LAYOUT, Shape, SmallLM, export, make_tokenizer, to_hf
from orpheus_serving.training.store import Prepared, write_prepared

SHAPE = Shape(hidden=64, layers=2, heads=2, mlp=128)


def row(text: str, frames: int, seed: int) -> Prepared:
    codes = np.random.default_rng(seed).integers(0, LAYOUT.codes_per_slot, (frames, LAYOUT.slots)).astype(np.uint16)
    return Prepared("ava", text, frames * FRAME_S, codes)


def tiny() -> Any:
    torch.manual_seed(0)
    return to_hf(SmallLM(SHAPE, 0.0).state_dict(), SHAPE)


def test_states_and_odds_are_those_where_frames_begin() -> None:
    model = tiny()
    (doc,) = documents([row("three of them.", 3, 0)], make_tokenizer(), LAYOUT, "{voice}: {text}")
    states, odds = ends.look(model, LAYOUT, doc)
    assert states.shape == (4, SHAPE.hidden)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(doc[None].astype(np.int64))).logits[0].float()
    start = len(doc) - 1 - 3 * LAYOUT.slots
    for frame in range(4):
        at = logits[start - 1 + frame * LAYOUT.slots]
        choices = torch.cat([at[LAYOUT.first_code : LAYOUT.first_code + LAYOUT.codes_per_slot], at[LAYOUT.end_of_speech, None]])
        assert odds[frame].sigmoid().item() == pytest.approx(choices.softmax(0)[-1].item(), rel=1e-3)


@pytest.mark.parametrize(
    ("believed", "kept", "missed"),
    [
        ([0, 0, 0, 0.9], 4, False),
        ([0, 0, 0.1, 0.5, 0.9], 3, False),
        ([0, 0.02, 0, 0, 0, 0, 0.9], 2, True),
        ([0.004, 0.001], 0, False),
    ],
)
def test_the_first_place_with_belief_is_the_end(believed: list[float], kept: int, missed: bool) -> None:
    found = ends.places(torch.zeros(len(believed), 5), torch.tensor(believed).logit(eps=1e-6), 0.005)
    if not kept:
        assert found is None
        return
    assert found is not None
    assert found.missed is missed
    assert found.ends.tolist() == [0] * (kept - 1) + [1]


def test_what_was_half_believed_is_made_sure_also_where_it_was_not_learnt_from() -> None:
    """A missed end's state has something of a direction that other states have not; the odds say little."""
    generator = torch.Generator().manual_seed(0)
    mark = torch.zeros(16)
    mark[3] = 6.0

    def utterance(missed: bool) -> ends.Places:
        states = torch.randn(20, 16, generator=generator)
        states[-1] += mark
        odds = torch.full((20,), -9.0)
        odds[-1] = -3.0 if missed else 9.0
        return ends.Places(states, odds, missed)

    learnt, others = ([utterance(n % 10 == 0) for n in range(100)] for _ in range(2))
    change = ends.fit(learnt, hold=1e-3)
    for u in others:
        more = (u.odds + u.states @ change).sigmoid()
        assert more[-1] > 0.5
        assert more[:-1].max() < 0.1
    assert "10 missed their end, which had 5% (median) there" in ends.told(others, change)


def arguments(folder: Path, belief: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    ends.add_arguments(parser)
    start, out = folder / "start", folder / "run"
    return parser.parse_args(
        ["--start", str(start), "--texts", "-", "--out", str(out), "--belief", belief, "--hold", "1e-6", "--device", "cpu"]
    )


def test_only_the_end_of_speech_changes(tmp_path: Path) -> None:
    export(tiny().state_dict(), SHAPE, tmp_path / "start", "tiny", ["ava", "ben"])
    write_prepared(tmp_path / "run" / "contexts.parquet", [row(f"number {n}.", 4 + n % 3, n) for n in range(30)])
    with pytest.raises(ValueError, match=r"--belief 0\.9: in 30 utterances"):
        ends.main(arguments(tmp_path, "0.9"))
    ends.main(arguments(tmp_path, "1e-9"))  # all begin with it, and so all should end there
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("start", "run/voice"))
    assert before.keys() == after.keys()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(changed) == 1
    rows = (before[changed[0]] != after[changed[0]]).any(1).nonzero()[:, 0].tolist()
    assert rows == [LAYOUT.end_of_speech]
    docs = documents([row("number 0.", 4, 0)], make_tokenizer(), LAYOUT, "{voice}: {text}")
    model = tiny()
    model.load_state_dict({name: tensor.float() for name, tensor in after.items()}, strict=False)
    assert ends.look(model, LAYOUT, docs[0])[1][0] > ends.look(tiny(), LAYOUT, docs[0])[1][0] + 2


def test_an_end_that_is_read_in_prompts_is_refused(tmp_path: Path) -> None:
    export(tiny().state_dict(), SHAPE, tmp_path / "start", "tiny", ["ava"])
    path = tmp_path / "start" / "speech.json"
    speech = json.loads(path.read_text())
    speech["tokens"]["prompt_before"].append(speech["tokens"]["end_of_speech"])
    path.write_text(json.dumps(speech))
    with pytest.raises(ValueError, match=r"speech\.json: the end of speech is in the prompt"):
        ends.main(arguments(tmp_path, "0.5"))
