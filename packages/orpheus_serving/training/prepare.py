"""Recordings with their texts -> checked, trimmed, encoded: the data that `lm` and `finetune` train on.

    folder of wav + txt | LJSpeech | Hugging Face datasets | corpus
      -> mono 24 kHz -> checks (clipping, silence, length, text) -> silence trimmed at both ends -> codec -> parquet
                           └-> rejected.csv, a line and a reason each

Trimming matters more than it looks: a model trained on recordings that begin with half a second of room says half a
second of room
before every sentence.

Layouts that `--source` may have:
- `NAME.wav` (or flac, ogg, mp3) beside `NAME.txt`, in any depth;
- LJSpeech: `metadata.csv` with `id|text` or `id|text|normalised text`, recordings in `wavs/`;
- `metadata.jsonl` or `metadata.csv` with `file_name` and `text` (the `datasets` audio-folder layout), optionally
`voice`;
- `datasets` saved to disk or parquet files with an `audio` column (struct of bytes) and `text`;
- a corpus folder, as `teacher` writes it.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tqdm import tqdm

from .codec import encode_recordings, load_trained
from .codec_model import FRAME, load_codec
from .corpus import SAMPLE_RATE, read_audio, read_index
from .recognise import resample
from .store import Prepared, write_prepared
from .teacher import cut, speech_span

AUDIO = {".wav", ".flac", ".ogg", ".mp3"}


@dataclass(frozen=True, slots=True)
class Item:
    """One recording as found; `load` gives (samples [N] or [N, channels] float, rate)."""

    name: str
    text: str
    voice: str
    audio: Path | bytes | np.ndarray

    def load(self) -> tuple[np.ndarray, int]:
        if isinstance(self.audio, np.ndarray):
            return self.audio.astype(np.float32) / 32768, SAMPLE_RATE
        import soundfile

        wave, rate = soundfile.read(io.BytesIO(self.audio) if isinstance(self.audio, bytes) else self.audio, dtype="float32")
        return wave, rate


@dataclass(frozen=True)
class Limits:
    """What a recording must be. Characters a second catch a text that is not what was said."""

    shortest_s: float = 0.4
    longest_s: float = 20.0
    clipped_share: float = 0.001
    quietest_db: float = -45.0  # loudest 10 ms, against full scale
    slowest_chars: float = 3.0
    fastest_chars: float = 30.0


def find_items(source: Path, voice: str) -> Iterator[Item]:
    """Every recording of a folder in one of the layouts above. Raises FileNotFoundError when there is none."""
    if (source / "index.jsonl").exists():
        audio = read_audio(source)
        for i, r in enumerate(read_index(source)):
            yield Item(str(i), r.text, r.voice, audio[r.start : r.start + r.samples])
    elif (source / "metadata.jsonl").exists():
        for line in (source / "metadata.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield Item(row["file_name"], row["text"], row.get("voice", voice), source / row["file_name"])
    elif (source / "metadata.csv").exists():
        yield from _from_csv(source, voice)
    elif tables := sorted([*source.rglob("*.parquet"), *source.rglob("*.arrow")]):
        yield from _from_tables(tables, voice)
    else:
        found = [p for p in sorted(source.rglob("*")) if p.suffix.lower() in AUDIO]
        if not found:
            raise FileNotFoundError(f"{source}: no recordings in any layout that `prepare` knows")
        for path in found:
            text = path.with_suffix(".txt")
            yield Item(path.name, text.read_text(encoding="utf-8").strip() if text.exists() else "", voice, path)


def _from_csv(source: Path, voice: str) -> Iterator[Item]:
    lines = (source / "metadata.csv").read_text(encoding="utf-8").splitlines()
    if lines and "file_name" in lines[0]:
        for row in csv.DictReader(lines):
            yield Item(row["file_name"], row["text"], row.get("voice") or voice, source / row["file_name"])
        return
    for line in lines:  # LJSpeech: quotes are text, not quoting
        fields = line.split("|")
        if len(fields) > 1:
            path = source / "wavs" / fields[0]
            yield Item(fields[0], fields[-1], voice, path if path.suffix else path.with_suffix(".wav"))


def _from_tables(tables: list[Path], voice: str) -> Iterator[Item]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in tables:
        table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_stream(path).read_all()
        for i, row in enumerate(table.to_pylist()):
            audio = row["audio"].get("bytes") or Path(row["audio"]["path"])
            yield Item(f"{path.name}:{i}", row["text"], row.get("voice") or voice, audio)


def mono(wave: np.ndarray, rate: int) -> np.ndarray:
    """[N] or [N, channels] at any rate -> [N] float32 at 24 kHz."""
    return resample(wave.mean(1) if wave.ndim == 2 else wave, rate, SAMPLE_RATE)


def check(wave: np.ndarray, text: str, limits: Limits) -> str | None:
    """Why this recording cannot be used, or None. `wave` [N] float32 at 24 kHz, trimmed, loudness as recorded."""
    seconds = len(wave) / SAMPLE_RATE
    if not any(c.isalpha() for c in text):
        return "text: no words"
    if not limits.shortest_s <= seconds <= limits.longest_s:
        return f"length: {seconds:.2f} s, want {limits.shortest_s} to {limits.longest_s}"
    level = np.sqrt(np.square(wave[: len(wave) // 240 * 240].reshape(-1, 240)).mean(1).max())  # `shortest_s` > 10 ms
    if 20 * np.log10(level + 1e-9) < limits.quietest_db:
        return f"silence: loudest 10 ms at {20 * np.log10(level + 1e-9):.0f} dB"
    clipped = float((np.abs(wave) > 0.997).mean())
    if clipped > limits.clipped_share:
        return f"clipping: {100 * clipped:.2f} % of the samples at full scale"
    pace = len(text) / seconds
    if not limits.slowest_chars <= pace <= limits.fastest_chars:
        return f"text: {pace:.1f} characters a second; does it match the recording?"
    return None


def trimmed(wave: np.ndarray) -> np.ndarray:
    """[N] float32 at 24 kHz -> int16 with the silence at both ends cut and the cuts faded."""
    if len(wave) < 480:
        return np.zeros(0, np.int16)
    first, last = speech_span(torch.from_numpy(wave)[None])
    return cut((np.clip(wave, -1, 1) * 32767).astype(np.int16), int(first[0]), int(last[0]))


def to_peak(pcm: np.ndarray, peak: float | None) -> np.ndarray:
    """int16 scaled so that its largest sample is `peak` of full scale; None leaves it."""
    if peak is None:
        return pcm
    return (pcm * (peak * 32767 / max(1, int(np.abs(pcm.astype(np.int32)).max())))).astype(np.int16)


class Encoder(Protocol):
    def __call__(self, waves: list[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]: ...


def open_encoder(args: argparse.Namespace) -> Encoder:
    """The demo codec's mel encoder, a codec run's, or a real SNAC's own encoder."""
    if args.codec_run:
        mel_codec = load_trained(args.codec_run, args.device)
    elif (args.checkpoint / "mel_encoder.safetensors").exists():
        mel_codec = load_codec(args.checkpoint / "codec", args.checkpoint / "mel_encoder.safetensors", args.device)
    else:
        return snac_encoder(args.checkpoint / "codec" if (args.checkpoint / "codec").exists() else args.checkpoint, args.device)
    return lambda waves: encode_recordings(mel_codec, waves, args.device)


def snac_encoder(folder: Path, device: str) -> Encoder:
    """Frames through `snac.SNAC.encode`, one recording at a time."""
    import snac

    from .codec_model import to_frames

    codec: Any = snac.SNAC.from_pretrained(str(folder)).eval().to(device)

    @torch.no_grad()
    def encode(waves: list[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        for i, wave in enumerate(waves):
            padded = np.pad(wave, (0, -len(wave) % FRAME)).astype(np.float32) / 32768
            levels = codec.encode(torch.from_numpy(padded)[None, None].to(device))
            yield i, to_frames(levels)[0].cpu().numpy().astype(np.uint16)

    return encode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", type=Path, required=True, help="folder of recordings, see above")
    parser.add_argument("--voice", default="speaker", help="name of the voice where the source gives none")
    parser.add_argument("--checkpoint", type=Path, help="checkpoint or codec folder whose codes to use")
    parser.add_argument("--codec-run", type=Path, help="instead: run folder of `train codec`")
    parser.add_argument("--out", type=Path, required=True, help="parquet to write; rejected.csv goes beside it")
    parser.add_argument("--spoken", action=argparse.BooleanOptionalAction, default=False,
                        help="spell numbers as the server does for a model that knows only letters")  # fmt: skip
    parser.add_argument("--peak", type=float, help="scale every recording to this peak, e.g. 0.7")
    parser.add_argument("--longest", type=float, default=Limits.longest_s, help="seconds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def main(args: argparse.Namespace) -> None:
    if args.codec_run is None and args.checkpoint is None:
        raise ValueError("--checkpoint or --codec-run: say whose codes to use")
    limits = Limits(longest_s=args.longest)
    kept: list[tuple[Item, np.ndarray]] = []
    rejected: list[tuple[str, str]] = []
    for item in tqdm(find_items(args.source, args.voice), desc="check", mininterval=2):
        if isinstance(item.audio, np.ndarray):  # a corpus was trimmed and checked when it was made
            kept.append((item, item.audio))
            continue
        try:
            wave = mono(*item.load())
        except (OSError, RuntimeError) as error:
            rejected.append((item.name, f"unreadable: {error}"))
            continue
        pcm = trimmed(wave)
        if reason := check(pcm.astype(np.float32) / 32767, item.text, limits):
            rejected.append((item.name, reason))
        else:
            kept.append((item, to_peak(pcm, args.peak)))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with (args.out.parent / "rejected.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("recording", "reason"), *rejected])
    rows: list[Prepared | None] = [None] * len(kept)
    for i, frames in tqdm(open_encoder(args)([pcm for _, pcm in kept]), total=len(kept), desc="encode", mininterval=2):
        item, pcm = kept[i]
        text = spoken(item.text) if args.spoken else item.text
        rows[i] = Prepared(item.voice, text, len(pcm) / SAMPLE_RATE, frames)
    done = [r for r in rows if r is not None]
    write_prepared(args.out, done)
    print(f"{len(done)} recordings, {sum(r.seconds for r in done) / 60:.1f} minutes; {len(rejected)} rejected")


def spoken(text: str) -> str:
    from ..text.normalise import normalise

    return normalise(text, level="spoken")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    main(parser.parse_args())
