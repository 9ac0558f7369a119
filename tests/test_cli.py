"""The command line as its user meets it: files, standard output, error messages, exit statuses."""

from __future__ import annotations

import logging
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from orpheus_serving.cli import main

TEXT = "Hello there. This is a test."


def say(noise_folder: Path, *arguments: str) -> int:
    return main(["say", *arguments, "--checkpoint", str(noise_folder), "--max-tokens", "140", "--seed", "1"])


def test_say_writes_a_wav_and_says_how_it_went(noise_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "hello.wav"
    assert say(noise_folder, TEXT, "--output", str(file)) == 0
    with wave.open(str(file)) as audio:
        assert (audio.getframerate(), audio.getnchannels(), audio.getsampwidth()) == (24000, 1, 2)
        samples = np.frombuffer(audio.readframes(audio.getnframes()), "<i2")
        assert len(samples) == audio.getnframes() > 24000
    assert np.abs(samples).max() > 1000
    said = capsys.readouterr().err
    for part in ("s of audio by noise", "voice noise", "first audio after", "real-time factor", "cut at its token limit"):
        assert part in said


def test_pcm_wav_and_standard_output_hold_the_same_samples(noise_folder: Path, tmp_path: Path) -> None:
    pcm, wav = tmp_path / "a.pcm", tmp_path / "a.WAV"
    assert say(noise_folder, TEXT, "-o", str(pcm)) == 0
    assert say(noise_folder, TEXT, "-o", str(wav)) == 0
    command = [sys.executable, "-m", "orpheus_serving.cli", "say", "-", "-o", "-", "--checkpoint", str(noise_folder)]
    piped = subprocess.run([*command, "--max-tokens", "140", "--seed", "1"], input=TEXT.encode(), capture_output=True, check=True)
    assert piped.stdout == pcm.read_bytes() == wav.read_bytes()[44:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TEXT, "-o", "hello.mp3"), r"output: hello.mp3: the name must end in .wav or .pcm"),
        ((TEXT, "-o", "no/such/folder/hello.wav"), "output: cannot write no/such/folder/hello.wav"),
        (("", "-o", "hello.wav"), "prompt: nothing in it can be spoken"),
        ((TEXT, "-o", "hello.wav", "--voice", "nobody"), "voice: no voice 'nobody'"),
        ((TEXT, "-o", "hello.wav", "--temperature", "-1"), "temperature: "),
        ((TEXT, "-o", "hello.wav", "--codec", "no-such-codec-anywhere"), "codec no-such-codec-anywhere"),
    ],
)
def test_refusals_name_what_to_change(
    noise_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert say(noise_folder, *arguments) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("hello.mp3", "--output: hello.mp3: the name must end in .wav or .pcm"),
        ("no/such/folder/hello.wav", "--output: cannot write no/such/folder/hello.wav: there is no folder"),
        ("folder.wav", "--output: cannot write folder.wav: it is a folder"),
    ],
)
@pytest.mark.parametrize(
    "command", [["say", TEXT, "--checkpoint", "no/such/model"], ["truss", "predict", TEXT, "--target", "no/such/truss"]]
)
def test_an_output_that_cannot_be_is_refused_before_anything_is_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    output: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.wav").mkdir()
    assert main([*command, "-o", output]) == 1
    assert message in capsys.readouterr().err


def test_without_a_player_it_says_what_to_do(
    noise_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert say(noise_folder, TEXT) == 1
    assert "--output hello.wav" in capsys.readouterr().err


def test_it_plays_through_a_player_that_is_there(
    noise_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    player, heard = tmp_path / "aplay", tmp_path / "heard.pcm"
    player.write_text(f"#!/bin/sh\nexec /bin/cat > {heard}\n")
    player.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert say(noise_folder, TEXT) == 0
    assert "(played)" in capsys.readouterr().err
    file = tmp_path / "a.pcm"
    assert say(noise_folder, TEXT, "-o", str(file)) == 0
    assert heard.read_bytes() == file.read_bytes()


def test_voices_lists_voices(noise_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", "--checkpoint", str(noise_folder)]) == 0
    said = capsys.readouterr().out
    assert "  noise\n  hiss\n" in said


@pytest.mark.parametrize("command", [["voices"], ["say", TEXT, "-o", "-", "--max-tokens", "140"]])
def test_an_option_wins_over_the_environment(
    noise_folder: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """The image sets these variables, so an option that lost to them would be ignored there."""
    monkeypatch.setenv("ORPHEUS_CHECKPOINT", "/from/the/environment")
    monkeypatch.setenv("ORPHEUS_CODEC", "/from/the/environment")
    codec = str(noise_folder / "codec")
    assert main([*command, "--checkpoint", str(noise_folder), "--codec", codec]) == 0
    assert capfdbinary.readouterr().out


def test_an_option_of_the_server_wins_over_the_environment(
    noise_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORPHEUS_CHECKPOINT", "/from/the/environment")
    monkeypatch.setenv("ORPHEUS_VOICE", "hiss")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of the server end with the test
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    assert main(["serve", "--port", "0", "--checkpoint", str(noise_folder), "--voice", "nobody"]) == 1
    assert "no voice 'nobody'" in capsys.readouterr().err
