"""Where a local command writes samples: a WAV or PCM file, standard output, or the loudspeaker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from numpy.typing import NDArray

from ..errors import InvalidRequest
from .formats import pcm16, wav_header


class Sink(Protocol):
    def write(self, samples: NDArray[Any]) -> None: ...


class _Pcm:
    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self.bytes = 0

    def write(self, samples: NDArray[Any]) -> None:
        data = pcm16(samples)
        self.bytes += len(data)
        self._out.write(data)
        self._out.flush()


PLAYERS = ("ffplay", "aplay", "paplay", "play")


def check_output(output: str | None) -> None:
    """Say before anything slow happens what `open_sink` would refuse. Raises InvalidRequest, which names the option."""
    if output == "-":
        return
    if output is None:
        if not any(map(shutil.which, PLAYERS)):
            raise InvalidRequest("--output", f"no player found ({', '.join(PLAYERS)}); write a file with --output hello.wav")
        return
    path = Path(output)
    if path.suffix.lower() not in (".wav", ".pcm"):
        raise InvalidRequest("--output", f"{path}: the name must end in .wav or .pcm")
    if path.is_dir():
        raise InvalidRequest("--output", f"cannot write {path}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise InvalidRequest("--output", f"cannot write {path}: there is no folder {path.parent}; make it, or name another")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidRequest("--output", f"cannot write {path}: you may not write there; name another folder")


@contextmanager
def open_sink(output: str | None, sample_rate: int) -> Iterator[Sink]:
    """A sink for FILE.wav, FILE.pcm, "-" (PCM on standard output) or None (played). Raises InvalidRequest for anything else."""
    check_output(output)
    if output == "-":
        yield _Pcm(sys.stdout.buffer)
    elif output is None:
        yield from _player(sample_rate)
    else:
        yield from _file(Path(output), sample_rate)


def _file(path: Path, sample_rate: int) -> Iterator[Sink]:
    try:
        out = path.open("wb")
    except OSError as error:
        raise InvalidRequest("--output", f"cannot write {path}: {error.strerror}") from error
    with out:
        if path.suffix.lower() == ".pcm":
            yield _Pcm(out)
            return
        out.write(wav_header(sample_rate))
        sink = _Pcm(out)
        try:
            yield sink
        finally:  # also of an interrupted utterance: what is there can be played
            out.seek(0)
            out.write(wav_header(sample_rate, sink.bytes))


def _player(sample_rate: int) -> Iterator[Sink]:
    commands = {
        "ffplay": ["-nodisp", "-autoexit", "-loglevel", "error", "-f", "s16le", "-ar", str(sample_rate), "-i", "-"],
        "aplay": ["-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", str(sample_rate), "-"],
        "paplay": ["--raw", "--format=s16le", "--channels=1", f"--rate={sample_rate}"],
        "play": ["-q", "-t", "raw", "-e", "signed", "-b", "16", "-c", "1", "-r", str(sample_rate), "-"],
    }
    for name in PLAYERS:
        if path := shutil.which(name):
            player = subprocess.Popen([path, *commands[name]], stdin=subprocess.PIPE)
            assert player.stdin is not None
            with player, player.stdin:
                yield _Pcm(player.stdin)
            return
