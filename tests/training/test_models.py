# ruff: noqa: E402  (imports after the check that their packages are there)
"""Small runs: the training form equals transformers', sampling keeps its slots, fine-tuning learns and exports."""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

for needed in ("pyarrow", "peft", "snac"):
    pytest.importorskip(needed)

from orpheus_serving.tokens import TokenLayout
from orpheus_serving.training import cli, evaluate, finetune, lm
from orpheus_serving.training.codec_model import FRAME, MelCodec, load_codec
from orpheus_serving.training.documents import documents
from orpheus_serving.training.sample import speak_codes
from orpheus_serving.training.small_lm import LAYOUT, Shape, SmallLM, export, make_tokenizer, to_hf
from orpheus_serving.training.speech import Said, read_speech, write_speech
from orpheus_serving.training.store import Prepared, write_prepared

SHAPE = Shape(hidden=64, layers=2, heads=2, mlp=128)


def rows(count: int, voice: str = "ava") -> list[Prepared]:
    """Speech that can be learned: every code repeats the length of the text."""
    return [Prepared(voice, "a" * (1 + i % 5), 1.0, np.full((3, 7), 1 + i % 5, np.uint16)) for i in range(count)]


def test_training_form_equals_transformers() -> None:
    torch.manual_seed(0)
    net = SmallLM(SHAPE, 0.0).eval()
    docs = documents(rows(3), make_tokenizer(), LAYOUT)
    batch = next(lm.packed(docs, range(3), 1, 60))  # two documents share the row
    with torch.no_grad():
        packed_loss = net(*batch)
        hf = to_hf(net.state_dict(), SHAPE)
        apart = []
        for doc in docs[:2]:
            logits = hf(torch.from_numpy(doc[None, :-1].astype(np.int64))).logits[0]
            start = int(np.argmax(doc >= LAYOUT.first_code))
            goal = torch.from_numpy(doc[start:].astype(np.int64))
            apart.append(torch.nn.functional.cross_entropy(logits[start - 1 :], goal, reduction="none"))
    assert packed_loss.item() == pytest.approx(torch.cat(apart).mean().item(), abs=1e-4)


def test_sampling_keeps_slots_and_is_seeded() -> None:
    torch.manual_seed(0)
    model = to_hf(SmallLM(SHAPE, 0.0).state_dict(), SHAPE)
    jobs = [("ava", "hello there."), (None, "yes")]
    said = [speak_codes(model, make_tokenizer(), LAYOUT, jobs, seed, max_frames=4) for seed in (1, 1, 2)]
    for spoken in said[0]:
        assert spoken.codes.shape[1] == 7
        assert spoken.codes.max() < LAYOUT.codes_per_slot
    assert all(np.array_equal(a.codes, b.codes) for a, b in zip(said[0], said[1], strict=True))
    assert not all(np.array_equal(a.codes, b.codes) for a, b in zip(said[0], said[2], strict=True))


def test_left_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    model = to_hf(SmallLM(SHAPE, 0.0).state_dict(), SHAPE)
    alone = speak_codes(model, make_tokenizer(), LAYOUT, [("ava", "yes")], 0, temperature=0, max_frames=3)
    beside = speak_codes(
        model, make_tokenizer(), LAYOUT, [("ava", "a much longer one."), ("ava", "yes")], 0, temperature=0, max_frames=3
    )
    assert np.array_equal(alone[0].codes, beside[1].codes)


def make_checkpoint(folder: Path, codec: bool = False) -> None:
    torch.manual_seed(0)
    export(SmallLM(SHAPE, 0.0).state_dict(), SHAPE, folder, "tiny", ["ava"])
    if codec:
        MelCodec().export(folder / "codec", folder / "mel_encoder.safetensors", wave_encoder=False)


def arguments(module: object, *given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)  # type: ignore[attr-defined]
    return parser.parse_args(given)


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_finetuning_learns_resumes_and_exports(tmp_path: Path, mode: str) -> None:
    make_checkpoint(tmp_path / "base")
    write_prepared(tmp_path / "new.parquet", rows(24, "cleo"))
    common = ["--checkpoint", str(tmp_path / "base"), "--data", str(tmp_path / "new.parquet"), "--voice", "cleo",
              "--out", str(tmp_path / "run"), "--mode", mode, "--rate", "0.01", "--held-out", "4", "--tokens", "256",
              "--warmup", "1", "--device", "cpu"]  # fmt: skip
    finetune.main(arguments(finetune, *common, "--epochs", "2"))
    finetune.main(arguments(finetune, *common, "--epochs", "4"))
    with (tmp_path / "run" / "finetune.csv").open(encoding="utf-8") as file:
        held = [float(row["held_out"]) for row in csv.DictReader(file) if row["held_out"]]
    assert len(held) == 4  # two passes, then two more: the second run went on
    assert held[-1] < held[0]
    speech = json.loads((tmp_path / "run" / "checkpoint" / "speech.json").read_text())
    assert set(speech["voices"]) == {"ava", "cleo"}
    from transformers import LlamaForCausalLM

    merged = LlamaForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint", dtype=torch.float32)
    assert {p.dtype for p in merged.parameters()} == {torch.float32}
    assert not any("lora" in n for n, _ in merged.named_parameters())


def test_finetuning_on_nothing_but_what_is_held_out_says_so(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "base")
    write_prepared(tmp_path / "new.parquet", rows(4, "cleo"))
    given = ["--checkpoint", str(tmp_path / "base"), "--data", str(tmp_path / "new.parquet"), "--out", str(tmp_path / "run")]
    with pytest.raises(ValueError, match="--data: 4 utterances, and --held-out keeps 4 of them"):
        finetune.main(arguments(finetune, *given, "--held-out", "4", "--device", "cpu"))


def test_finetuning_an_orpheus_shaped_checkpoint(tmp_path: Path) -> None:
    """No speech.json: Orpheus' own ids, in a model whose every size but the vocabulary is tiny."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    base = tmp_path / "base"
    config = LlamaConfig(
        vocab_size=156940, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(base)
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate("acdehlo: ")}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(base / "tokenizer.json"))
    write_prepared(tmp_path / "new.parquet", rows(6, "cleo"))
    given = ["--checkpoint", str(base), "--data", str(tmp_path / "new.parquet"), "--out", str(tmp_path / "run")]
    given += ["--voice", "cleo", "--epochs", "1", "--held-out", "2", "--device", "cpu"]
    finetune.main(arguments(finetune, *given))
    saved = json.loads((tmp_path / "run" / "checkpoint" / "config.json").read_text())
    assert saved["vocab_size"] == 156940
    assert saved["dtype"] == "bfloat16"
    assert finetune.read_speech(base)[0] == TokenLayout()


def test_lm_training_resumes_and_exports(tmp_path: Path) -> None:
    write_prepared(tmp_path / "a.parquet", rows(40))
    common = ["--data", str(tmp_path / "a.parquet"), "--out", str(tmp_path / "run"), "--batch", "2", "--length", "128",
              "--hold-every", "8", "--report", "2", "--layers", "1", "--hidden", "32", "--heads", "2", "--mlp", "64",
              "--epochs", "99","--no-compile", "--device", "cpu", "--snapshots"]  # fmt: skip
    lm.main(arguments(lm, *common, "--steps", "4"))
    lm.main(arguments(lm, *common, "--steps", "8"))
    steps = [int(line.split(",")[0]) for line in (tmp_path / "run" / "lm.csv").read_text().splitlines()[1:]]
    assert steps == sorted(steps)
    assert steps[-1] == 8
    lm.main(arguments(lm, "--out", str(tmp_path / "run"), "--export", str(tmp_path / "voice"), "--layers", "1",
                      "--hidden", "32", "--heads", "2", "--mlp", "64"))  # fmt: skip
    assert {p.name for p in (tmp_path / "voice").iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "speech.json",
    }


def test_an_lm_that_nothing_was_held_out_from_reports_no_loss_on_it(tmp_path: Path) -> None:
    write_prepared(tmp_path / "a.parquet", rows(40))
    lm.main(arguments(lm, "--data", str(tmp_path / "a.parquet"), "--out", str(tmp_path / "run"), "--batch", "2",
                      "--length", "128", "--hold-every", "99", "--report", "2", "--layers", "1", "--hidden", "32",
                      "--heads", "2", "--mlp", "64", "--epochs", "99", "--steps", "10", "--no-compile",
                      "--device", "cpu", "--snapshots"))  # fmt: skip
    with (tmp_path / "run" / "lm.csv").open() as file:
        assert {line["held_out"] for line in csv.DictReader(file)} == {""}


def test_lm_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "base")
    write_prepared(tmp_path / "a.parquet", rows(40))
    shape = ["--layers", "2", "--hidden", "64", "--heads", "2", "--mlp", "128"]
    common = ["--data", str(tmp_path / "a.parquet"), "--batch", "2", "--length", "128", "--hold-every", "8", "--report", "1",
              "--steps", "1", "--epochs", "9", "--no-compile", "--device", "cpu", "--snapshots", *shape]  # fmt: skip
    base = ["--start", str(tmp_path / "base")]
    for name, start in (("fresh", []), ("on", base)):
        lm.main(arguments(lm, *common, *start, "--rate", "0.1", "--warmup", "1", "--seed", "7", "--out", str(tmp_path / name)))
    lm.main(arguments(lm, "--out", str(tmp_path / "on"), "--export", str(tmp_path / "voice"), *shape))
    from safetensors.torch import load_file

    first, fresh, after = (
        load_file(tmp_path / "base" / "model.safetensors")["model.embed_tokens.weight"].float(),
        torch.load(tmp_path / "fresh" / "lm_last.pt")["lm"]["model.embed_tokens.weight"].float(),
        load_file(tmp_path / "voice" / "model.safetensors")["model.embed_tokens.weight"].float(),
    )
    assert 0 < (after - first).abs().max() < 0.01  # one step away
    assert (fresh - first).abs().max() > 0.05


def test_speech_is_kept_for_another_machine(tmp_path: Path) -> None:
    said = [
        Said("ava", 0, "yes", np.arange(14, dtype=np.uint16).reshape(2, 7), True),
        Said("ben", 1, "no", np.zeros((0, 7), np.uint16), False),
        Said("ava", 1, "so", np.ones((1, 7), np.uint16), True),
    ]
    write_speech(tmp_path / "a" / "said.npz", said)
    for one, other in zip(said, read_speech(tmp_path / "a" / "said.npz"), strict=True):
        assert (one.voice, one.seed, one.text, one.ended) == (other.voice, other.seed, other.text, other.ended)
        assert np.array_equal(one.codes, other.codes)


def test_evaluate_speaks_now_and_plays_later(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "base", codec=True)
    (tmp_path / "s.txt").write_text("hello.\n\nyes.\n")
    common = ["--checkpoint", str(tmp_path / "base"), "--speech", str(tmp_path / "said.npz"), "--seeds", "0", "1"]
    evaluate.main(arguments(evaluate, *common, "--sentences", str(tmp_path / "s.txt"), "--voices", "ava", "new", "--limit", "1"))
    before = (tmp_path / "said.npz").read_bytes()
    evaluate.main(arguments(evaluate, *common, "--voices", "new", "--wavs", str(tmp_path / "wavs")))
    assert (tmp_path / "said.npz").read_bytes() == before
    assert sorted(p.name for p in (tmp_path / "wavs").iterdir()) == ["new_0_000.wav", "new_1_001.wav"]


def test_the_codec_is_snacs_own_format(tmp_path: Path) -> None:
    import snac

    torch.manual_seed(0)
    codec = MelCodec().eval()
    codec.export(tmp_path / "codec", tmp_path / "mel.safetensors", wave_encoder=False)
    theirs = snac.SNAC.from_pretrained(str(tmp_path / "codec")).float()
    ours = load_codec(tmp_path / "codec", tmp_path / "mel.safetensors")
    frames = ours.encode(torch.randn(1, 4 * FRAME))
    assert frames.shape == (1, 4, 7)
    levels = [frames[..., 0], frames[..., [1, 4]].flatten(-2), frames[..., [2, 3, 5, 6]].flatten(-2)]
    with torch.no_grad():
        assert torch.allclose(theirs.decode(levels)[:, 0], ours.decode(frames), atol=1e-5)
        assert theirs.encoder(torch.randn(1, 1, FRAME)).abs().max() == 0  # the unused place is filled with zeros


def test_train_commands_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    cli.add_train_commands(parser.add_subparsers())
    args = parser.parse_args(["train", "prepare", "--source", "a", "--checkpoint", "b", "--out", "c"])
    assert args.run.__module__.endswith("prepare")
    with pytest.raises(SystemExit):
        parser.parse_args(["train", "evaluate", "--help"])
    assert "--recogniser" in capsys.readouterr().out
