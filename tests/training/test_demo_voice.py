"""The demo voice as it is shipped: small enough, described for the server, and it ends what it begins."""

import argparse
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.codec.weights import load_snac
from orpheus_serving.training import evaluate
from orpheus_serving.training.codec_model import FRAME, load_codec
from orpheus_serving.training.evaluate import decode, open_voice, speak
from orpheus_serving.training.small_lm import LAYOUT

FOLDER = Path(__file__).parents[2] / "data" / "demo_voice"
pytestmark = pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(), reason="the demo voice is not here")


def test_it_is_under_60_megabytes() -> None:
    assert sum(p.stat().st_size for p in FOLDER.rglob("*") if p.is_file()) < 60e6


def test_serving_reads_what_training_wrote() -> None:
    checkpoint = Checkpoint(FOLDER)
    assert checkpoint.layout == LAYOUT
    assert set(checkpoint.voices) == {"ava", "ben"}
    assert checkpoint.text_level == "spoken"
    assert not load_snac(FOLDER / "codec").training


def test_it_speaks_and_stops() -> None:
    voice = open_voice(FOLDER)
    for said in speak(voice, voice.voices, ["Hello, how are you?"], seed=0):
        samples = decode(voice.codec, said.codes)
        assert said.ended, said.voice
        assert 0.6 < len(samples) / 24000 < 4
        assert 0.05 < np.abs(samples).max() <= 1


def test_the_served_path_is_judged_too(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("Yes, please.\nNo.\n")
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    given = ["--checkpoint", str(FOLDER), "--served", "--sentences", str(tmp_path / "lines.txt"), "--seeds", "0"]
    evaluate.main(parser.parse_args([*given, "--voices", "ben", "--wavs", str(tmp_path / "wavs")]))
    files = sorted((tmp_path / "wavs").iterdir())
    assert [f.name for f in files] == ["ben_0_000.wav", "ben_0_001.wav"]
    for file in files:
        with wave.open(str(file)) as sound:
            assert sound.getframerate() == 24000
            assert 0.2 < sound.getnframes() / 24000 < 4


def test_speech_survives_the_codec() -> None:
    """Encode what the voice said, decode it again: the loudness goes up and down at the same places."""
    codec = load_codec(FOLDER / "codec", FOLDER / "mel_encoder.safetensors")
    (said,) = speak(open_voice(FOLDER), ["ben"], ["The weather is fine today."], seed=1)
    samples = decode(codec, said.codes)
    again = decode(codec, codec.encode(torch.from_numpy(samples)[None])[0].numpy())
    assert len(again) == len(samples) == len(samples) // FRAME * FRAME
    levels = [np.sqrt((w.reshape(-1, 512) ** 2).mean(1)) for w in (samples, again)]
    assert np.corrcoef(levels[0], levels[1])[0, 1] > 0.8
