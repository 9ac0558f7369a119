# ruff: noqa: E402  (imports after the check that their packages are there)
"""Guidance learnt once: what it reads, what it aims at, and that training gets there."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

for needed in ("pyarrow", "snac"):
    pytest.importorskip(needed)

from orpheus_serving.training import guide
from orpheus_serving.training.small_lm import END_OF_SPEECH, LAYOUT, Shape, SmallLM, export, make_tokenizer, to_hf
from orpheus_serving.training.store import read_prepared

SHAPE = Shape(hidden=64, layers=2, heads=2, mlp=128)


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    net = SmallLM(SHAPE, 0.0)
    with torch.no_grad():  # far from uniform, so that a text makes a difference
        for p in net.parameters():
            p.mul_(8 if p.ndim == 2 else 1)
    return to_hf(net.state_dict(), SHAPE)


def prompt(text: str) -> list[int]:
    return LAYOUT.prompt_ids(make_tokenizer().encode(text).ids)


def answer(frames: int, seed: int) -> list[int]:
    codes = np.random.default_rng(seed).integers(0, LAYOUT.codes_per_slot, (frames, LAYOUT.slots))
    return [int(i) for i in (codes + LAYOUT.first_code + LAYOUT.codes_per_slot * np.arange(LAYOUT.slots)).reshape(-1)]


PROMPTS, ANSWERS = [prompt("ava: a long one, is it not?"), prompt("ben: no.")], [answer(1, 0), answer(3, 1)]


def test_reading_is_slot_by_slot_and_knows_no_padding(model: Any) -> None:
    with torch.no_grad():
        read = guide.Reader(model, LAYOUT)(PROMPTS, ANSWERS)
        expected: list[list[torch.Tensor]] = [[] for _ in range(LAYOUT.slots)]
        for given, said in zip(PROMPTS, ANSWERS, strict=True):
            logits = model(torch.tensor([given + said])).logits[0, len(given) - 1 :]
            for place, row in enumerate(logits):
                slot = place % LAYOUT.slots
                first = LAYOUT.first_code + slot * LAYOUT.codes_per_slot
                choices = row[first : first + LAYOUT.codes_per_slot]
                if slot == 0:
                    choices = torch.cat([choices, row[END_OF_SPEECH, None]])
                expected[slot].append(choices.log_softmax(0))
    assert [len(rows) for rows in read] == [1 + 3 + 2, *[1 + 3] * 6]
    for rows, ours in zip(read, expected, strict=True):
        assert torch.allclose(rows, torch.stack(ours), atol=1e-4)


def test_goals_move_away_from_what_is_said_without_the_text(model: Any) -> None:
    read, bare = guide.Reader(model, LAYOUT), [prompt("ava: "), prompt("ben: ")]
    plain, same = read(PROMPTS, ANSWERS), guide.guided(read, PROMPTS, bare, ANSWERS, 0.0)
    for ours, goal in zip(plain, same, strict=True):
        assert torch.allclose(ours.exp(), goal, atol=1e-6)
    without, goals = read(bare, ANSWERS), guide.guided(read, PROMPTS, bare, ANSWERS, 1.5)
    for c, u, goal in zip(plain, without, goals, strict=True):
        odds = goal.log()[:, 1:] - goal.log()[:, :1]  # of every choice against the first: free of the normalisation
        assert torch.allclose(odds, (c + 1.5 * (c - u))[:, 1:] - (c + 1.5 * (c - u))[:, :1], atol=1e-3)
    assert guide.distance(read, PROMPTS, ANSWERS, same).item() == pytest.approx(0, abs=1e-5)
    assert guide.distance(read, PROMPTS, ANSWERS, goals).item() > 0.01


def test_batches_hold_every_document_once_and_no_more_than_they_may() -> None:
    docs = [np.zeros(n, np.int32) for n in (5, 90, 30, 31, 7, 300, 29)]
    groups = list(guide.batches(docs, 100, np.random.default_rng(0)))
    assert sorted(i for group in groups for i in group) == list(range(len(docs)))
    for group in groups:
        assert len(group) * max(len(docs[i]) for i in group) <= 100 or len(group) == 1


def test_training_comes_nearer_and_leaves_a_voice(tmp_path: Path, model: Any) -> None:
    export(model.state_dict(), SHAPE, tmp_path / "start", "tiny", ["ava", "ben"])
    (tmp_path / "texts.txt").write_text("\n".join(f"{'so ' * n}yes." for n in range(1, 9)))
    parser = argparse.ArgumentParser()
    guide.add_arguments(parser)
    given = ["--start", str(tmp_path / "start"), "--texts", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "run")]
    given += ["--epochs", "30", "--batch", "4096", "--accumulate", "1", "--warmup", "1", "--rate", "3e-3", "--device", "cpu"]
    given += ["--frames", "12"]
    guide.main(parser.parse_args(given))
    table = (tmp_path / "run" / "guide.csv").read_text().splitlines()
    distances = [float(line.split(",")[2]) for line in table[1:]]
    assert min(distances[-3:]) < 0.7 * distances[0]
    assert {row.voice for row in read_prepared([tmp_path / "run" / "contexts.parquet"])} == {"ava", "ben"}
    names = {path.name for path in (tmp_path / "run" / "voice").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "speech.json"}
