# ruff: noqa: E402  (imports after the check that their packages are there)
"""Slips unlearnt: where an utterance is cut, which ends make pairs, and that training comes to prefer the better ones."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

for needed in ("pyarrow", "snac", "num2words"):
    pytest.importorskip(needed)

from orpheus_serving.training import prefer
from orpheus_serving.training.guide import FRAME_S, Reader
from orpheus_serving.training.sample import speak_codes
from orpheus_serving.training.small_lm import LAYOUT, Shape, SmallLM, export, make_tokenizer, to_hf
from orpheus_serving.training.store import Prepared, write_prepared

SHAPE = Shape(hidden=64, layers=2, heads=2, mlp=128)


def row(text: str, frames: int, seed: int, begun: np.ndarray | None = None) -> Prepared:
    codes = np.random.default_rng(seed).integers(0, LAYOUT.codes_per_slot, (frames, LAYOUT.slots)).astype(np.uint16)
    if begun is not None:
        codes[: len(begun)] = begun
    return Prepared("ava", text, frames * FRAME_S, codes)


def tiny() -> Any:
    torch.manual_seed(0)
    return to_hf(SmallLM(SHAPE, 0.0).state_dict(), SHAPE)


@pytest.mark.parametrize(
    ("heard", "share"),
    [("go home by bike bye bye", 4 / 6), ("go home by", 1), ("go hum by bike", 1 / 4), ("no home by bike", 0)],
)
def test_the_cut_is_shortly_before_the_first_wrong_word(heard: str, share: float) -> None:
    attempt = prefer.Attempt(row("go home by bike", 60, 0), heard, 1, True)
    seconds = prefer.frames_before(attempt) * FRAME_S
    assert max(0, 60 * FRAME_S * share - prefer.BACK_S) == pytest.approx(seconds, abs=0.4)


class Script:
    """A speaker whose attempts are written down: what is heard, call by call."""

    def __init__(self, *calls: list[str]) -> None:
        self.calls, self.begun = list(calls), []

    def say(self, jobs: list[tuple[str, str]], seed: int, begun: list[np.ndarray] | None = None) -> list[prefer.Attempt]:
        heard = self.calls.pop(0)
        assert len(heard) == len(jobs)
        self.begun = begun or []
        return [
            prefer.Attempt(row(t, 40, i, begun[i] if begun else None), h, prefer.errors(t.split(), h.split()), h != "")
            for i, ((_, t), h) in enumerate(zip(jobs, heard, strict=True))
        ]


def test_pairs_are_ends_of_one_beginning_the_better_one_first() -> None:
    speaker = Script(["a b c", "a b b", "x b c", ""], ["a b c", "a b", "x", "x b c", "x b c", "x b c"])
    jobs = [("ava", "a b c")] * 4
    pairs, attempts = prefer.gather(speaker, jobs, tries=3, seed=0)  # type: ignore[arg-type]
    # The first was understood, the third misheard every time, and the fourth did not end: the second makes pairs.
    assert len(attempts) == 4
    assert len(speaker.begun) == 6
    assert len(pairs) == 3
    for better, worse in pairs:
        assert prefer.shared(better.codes, worse.codes) >= len(speaker.begun[0]) > 0
        assert np.array_equal(better.codes, pairs[0][0].codes)


def test_shared_counts_whole_frames() -> None:
    one = row("a", 5, 0).codes
    other = one.copy()
    other[3, 6] ^= 1
    assert prefer.shared(one, other) == 3
    assert prefer.shared(one, one[:2]) == 2


def test_scores_are_log_probabilities_of_the_codes_and_the_end() -> None:
    model, rows = tiny(), [row("yes.", 2, 0), row("a longer one.", 3, 1)]
    score = prefer.Scorer(make_tokenizer(), LAYOUT, "{voice}: {text}")
    with torch.no_grad():
        read = Reader(model, LAYOUT)
        whole, late = score(read, rows, [0, 0]), score(read, rows, [2, 1])
        for i, r in enumerate(rows):
            tables = read(*score.split([r]))
            codes = r.codes.astype(int)
            places = [tables[s][f, codes[f, s]] for f in range(len(codes)) for s in range(LAYOUT.slots)]
            end = tables[0][len(codes), LAYOUT.codes_per_slot]
            assert whole[i].item() == pytest.approx(float(sum(places) + end), abs=1e-3)
            kept = places[[2, 1][i] * LAYOUT.slots :]
            assert late[i].item() == pytest.approx(float(sum(kept) + end), abs=1e-3)


def test_speech_goes_on_from_what_was_begun() -> None:
    begun = [row("a", n, n).codes.astype(np.int64) for n in (3, 0, 1)]
    jobs = [("ava", "yes."), ("ben", "no, no."), ("ava", "so.")]
    said = speak_codes(tiny(), make_tokenizer(), LAYOUT, jobs, 0, max_frames=4, begun=begun)
    for before, s in zip(begun, said, strict=True):
        assert np.array_equal(s.codes[: len(before)], before)
        assert len(s.codes) <= len(before) + 4
        assert s.codes.max(initial=0) < LAYOUT.codes_per_slot


def test_training_prefers_the_better_ends_and_leaves_a_voice(tmp_path: Path) -> None:
    export(tiny().state_dict(), SHAPE, tmp_path / "start", "tiny", ["ava", "ben"])
    pairs = []
    for i in range(8):
        worse = row(f"number {i}.", 6, i)
        pairs += [row(worse.text, 7, 100 + i, worse.codes[:3]), worse]
    write_prepared(tmp_path / "run" / "pairs.parquet", pairs)
    write_prepared(tmp_path / "run" / "understood.parquet", [row("good.", 5, i) for i in range(20)])
    parser = argparse.ArgumentParser()
    prefer.add_arguments(parser)
    given = ["--start", str(tmp_path / "start"), "--texts", str(tmp_path / "none"), "--out", str(tmp_path / "run")]
    given += ["--epochs", "10", "--pairs", "4", "--held-out", "1", "--rate", "1e-3", "--keep", "0.1", "--device", "cpu"]
    prefer.main(parser.parse_args(given))
    lines = [line.split(",") for line in (tmp_path / "run" / "prefer.csv").read_text().splitlines()]
    assert lines[0] == ["step", "time", "loss", "right", "moved"]
    losses, right = [float(x[2]) for x in lines[1:]], [float(x[3]) for x in lines[1:]]
    assert losses[0] == pytest.approx(np.log(2), abs=0.02)
    assert losses[-1] < 0.5 * losses[0]
    assert right[-1] == 1
    names = {path.name for path in (tmp_path / "run" / "voice").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "speech.json"}
