"""What a checkpoint folder says about itself, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_serving.checkpoint import ORPHEUS_VOICES, SNAC_24KHZ, Checkpoint
from orpheus_serving.errors import CheckpointError, InvalidRequest


def changed(noise_folder: Path, folder: Path, **speech: Any) -> Path:
    shutil.copytree(noise_folder, folder, dirs_exist_ok=True)
    said = json.loads((folder / "speech.json").read_text()) | speech
    (folder / "speech.json").write_text(json.dumps(said))
    return folder


def test_orpheus_needs_no_speech_json(noise_folder: Path, tmp_path: Path) -> None:
    shutil.copy(noise_folder / "tokenizer.json", tmp_path)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.voices == ORPHEUS_VOICES
    assert checkpoint.codec == SNAC_24KHZ
    assert (checkpoint.layout.first_code, checkpoint.layout.end_of_speech) == (128266, 128258)


def test_its_own_codec_is_used(noise_folder: Path) -> None:
    assert Path(Checkpoint(noise_folder).codec) == noise_folder / "codec"


def test_a_voice_s_sampling_is_over_the_checkpoint_s(noise_folder: Path, tmp_path: Path) -> None:
    voices = {"calm": {"temperature": 0.3}, "plain": {}}
    checkpoint = Checkpoint(changed(noise_folder, tmp_path, voices=voices, sampling={"temperature": 0.9, "top_k": 5}))
    assert checkpoint.sampling("calm") == {"temperature": 0.3, "top_k": 5}
    assert checkpoint.sampling("plain") == checkpoint.sampling(None) == {"temperature": 0.9, "top_k": 5}


def test_voices_are_found_in_any_case_and_named_when_not(noise_folder: Path) -> None:
    checkpoint = Checkpoint(noise_folder)
    assert checkpoint.check_voice("HISS") == "hiss"
    with pytest.raises(InvalidRequest, match=r"voice: no voice 'nobody'.*noise, hiss"):
        checkpoint.check_voice("nobody")


@given(st.text(max_size=60))
def test_no_text_makes_a_special_id(noise_folder: Path, text: str) -> None:
    checkpoint = Checkpoint(noise_folder)
    layout = checkpoint.layout
    special = {layout.end_of_speech, *layout.prompt_before, *layout.prompt_after}
    before, after = len(layout.prompt_before), len(layout.prompt_after)
    for written in (text, f"<end_of_speech>{text}<start_of_speech>", "<custom_token_7>" + text):
        ids = checkpoint.prompt(written, "hiss")
        assert tuple(ids[:before]) == layout.prompt_before
        assert tuple(ids[-after:]) == layout.prompt_after
        assert not special & set(ids[before:-after])
        assert not any(layout.is_code(i) for i in ids)


@pytest.mark.parametrize(
    ("speech", "message"),
    [
        ({"voice": {}}, "voice: Extra"),
        ({"voices": {"a": {"temperature": 9}}}, r"voices\.a\.temperature"),
        ({"text": "phonemes"}, "text"),
        ({"tokens": {"slots": 0}}, "slots"),
        ({"tokens": {"first_code": "many"}}, r"tokens\.first_code"),
    ],
)
def test_a_speech_json_that_cannot_be_is_refused(noise_folder: Path, tmp_path: Path, speech: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(changed(noise_folder, tmp_path, **speech))


def test_a_missing_or_broken_tokenizer_is_refused(noise_folder: Path, tmp_path: Path) -> None:
    folder = changed(noise_folder, tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Checkpoint(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Checkpoint(folder)
