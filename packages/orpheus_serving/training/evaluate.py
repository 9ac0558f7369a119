"""Is it understood, is it whole, is it the right voice: numbers from a sentence list and a local recogniser.

    sentences -> checkpoint -> codes (kept with --speech) -> waves ┐
    recordings (--corpus) [-> codec and back] -------------> waves ┴-> recogniser -> word error rate, endings
                                                                   └-> rate, silence, sample steps, timbre

With `--checkpoint` each voice speaks every sentence with every seed, by the batch sampler that draws as serving does.
`--speech FILE` keeps what was said as codes, and a later call judges what the file holds: so a machine with a GPU can
speak and another one listen, in several sittings. `--served` speaks through the server's own path instead: text front
end, embedded engine in the precision that it has on a CPU (int8), streaming codec, edges. With `--corpus` recordings
are judged instead (the teacher's own rate); `--through-codec` first sends them through the codec.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import wave
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from ..build import build
from ..request import SpeechRequest
from ..settings import Settings
from ..tokens import TokenLayout
from .codec_model import FRAME, MelCodec, load_codec
from .corpus import SAMPLE_RATE, read_audio, read_index
from .prepare import spoken
from .recognise import Recogniser, cut_off, errors, said_on, words
from .sample import speak_codes
from .speech import Said, read_speech, write_speech
from .teacher import speech_span
from .timbre import Likeness
from .voice_folder import VoiceFolder


@dataclass(frozen=True, slots=True)
class Heard:
    """One utterance judged."""

    voice: str
    seed: int
    text: str
    heard: str
    errors: int
    words: int
    seconds: float
    lead_s: float  # silence before the first sound
    tail_s: float
    edge: float  # larger of |first| and |last| sample, full scale 1
    step: float  # largest difference of neighbouring samples
    ended: bool  # the model said that it had finished
    truncated: bool  # what was heard stops before the last word, or within it
    said_on: bool  # more was heard after the last word, such as the end once again
    like: str  # whose recordings it sounds most like; "" where there are none to compare with


def judge(
    samples: np.ndarray, voice: str, seed: int, text: str, ended: bool, recogniser: Recogniser, likeness: Likeness | None = None
) -> Heard:
    reference = words(text)
    heard = recogniser.hear(samples, SAMPLE_RATE) if len(samples) else ""
    first, last = speech_span(torch.from_numpy(samples)[None], 0.0, 0.0) if len(samples) >= 240 else ([0], [0])
    return Heard(
        voice, seed, text, heard, errors(reference, words(heard)), len(reference), len(samples) / SAMPLE_RATE,
        int(first[0]) / SAMPLE_RATE, (len(samples) - int(last[0])) / SAMPLE_RATE,
        float(max(abs(samples[0]), abs(samples[-1]))) if len(samples) else 0.0,
        float(np.abs(np.diff(samples)).max()) if len(samples) > 1 else 0.0, ended,
        cut_off(reference, words(heard)), said_on(reference, words(heard)),
        likeness.nearest(samples) if likeness and len(samples) >= FRAME else "",
    )  # fmt: skip


def summary(rows: Sequence[Heard]) -> dict[str, Any]:
    """Rates over a set of utterances; word error rate in percent, and by seed."""
    total = sum(r.words for r in rows)
    by_seed = {s: [r for r in rows if r.seed == s] for s in sorted({r.seed for r in rows})}
    rates = [100 * sum(r.errors for r in g) / sum(r.words for r in g) for g in by_seed.values()]
    spoken_s = sum(r.seconds - r.lead_s - r.tail_s for r in rows)
    return {
        "utterances": len(rows), "words": total, "wer": round(100 * sum(r.errors for r in rows) / total, 2),
        "wer_by_seed": [round(x, 2) for x in rates], "wer_spread": round(max(rates) - min(rates), 2),
        "perfect": sum(r.errors == 0 for r in rows), "words_a_second": round(total / max(spoken_s, 1e-9), 2),
        "lead_ms": round(1000 * float(np.median([r.lead_s for r in rows]))),
        "tail_ms": round(1000 * float(np.median([r.tail_s for r in rows]))),
        "empty": sum(r.seconds < 0.2 for r in rows), "endless": sum(not r.ended for r in rows),
        "truncated": sum(r.truncated for r in rows), "said_on": sum(r.said_on for r in rows),
        "last_word_missed": sum(bool(r.words) and words(r.text)[-1:] != words(r.heard)[-1:] for r in rows),
        "edge_max": round(max(r.edge for r in rows), 5), "step_max": round(max(r.step for r in rows), 4),
        "sounds_like": dict(Counter(r.like for r in rows if r.like).most_common()),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Voice:
    """A checkpoint folder opened for evaluation."""

    model: Any
    tokenizer: Any
    layout: TokenLayout
    codec: MelCodec
    sampling: dict[str, float]
    voices: list[str]
    text: str  # "spoken": letters only; "clean": digits and symbols are read by the model


def open_voice(folder: Path, codec_folder: Path | None = None, device: str = "cpu") -> Voice:
    opened = VoiceFolder.open(folder, device)
    codec = load_codec(codec_folder or folder / "codec", device=device)
    speech = opened.speech
    return Voice(opened.model, opened.tokenizer, opened.layout, codec, speech["sampling"], opened.voices, speech["text"])


@torch.no_grad()
def decode(codec: MelCodec, codes: np.ndarray) -> np.ndarray:
    """codes [F, 7] -> wave [F * 2048] float32."""
    if not len(codes):
        return np.zeros(0, np.float32)
    device = next(codec.parameters()).device
    return codec.decode(torch.from_numpy(codes.astype(np.int64))[None].to(device))[0].cpu().numpy().astype(np.float32)


def through(codec: MelCodec, samples: np.ndarray) -> np.ndarray:
    """[N] -> [N]: what the codec makes of a recording."""
    padded = torch.from_numpy(np.pad(samples, (0, -len(samples) % FRAME)))
    device = next(codec.parameters()).device
    return decode(codec, codec.encode(padded[None].to(device))[0].cpu().numpy())[: len(samples)]


def open_likeness(corpora: Sequence[Path], folder: Path | None) -> Likeness | None:
    """`folder`: the checkpoint whose codec the recordings go through, if it can encode."""
    if not corpora:
        return None
    if folder is None or not (folder / "mel_encoder.safetensors").exists():
        return Likeness(corpora)
    codec = load_codec(folder / "codec", folder / "mel_encoder.safetensors")
    return Likeness(corpora, lambda samples: through(codec, samples))


def speak(voice: Voice, names: Sequence[str], sentences: Sequence[str], seed: int, **sampling: float) -> list[Said]:
    """Every sentence by every voice, in one batch."""
    jobs = [(v, s) for v in names for s in sentences]
    prompts: list[tuple[str | None, str]] = [(v, spoken(s) if voice.text == "spoken" else s) for v, s in jobs]
    said = speak_codes(voice.model, voice.tokenizer, voice.layout, prompts, seed, **{**voice.sampling, **sampling})  # type: ignore[arg-type]
    return [Said(v, seed, s, x.codes, x.ended) for (v, s), x in zip(jobs, said, strict=True)]


def judge_corpus(args: argparse.Namespace, recogniser: Recogniser, likeness: Likeness | None) -> list[Heard]:
    index, audio = read_index(args.corpus), read_audio(args.corpus)
    codec = load_codec(args.codec / "codec", args.codec / "mel_encoder.safetensors") if args.through_codec else None
    rows = []
    for r in tqdm(index[: args.limit], desc="listen"):
        samples = audio[r.start : r.start + r.samples].astype(np.float32) / 32768
        if codec is not None:
            samples = through(codec, samples)
        rows.append(judge(samples, r.voice, 0, r.text, True, recogniser, likeness))
    return rows


def sentences_of(args: argparse.Namespace) -> list[str]:
    return [s for s in args.sentences.read_text(encoding="utf-8").splitlines() if s.strip()][: args.limit]


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    return {k: v for k, v in (("temperature", args.temperature), ("top_p", args.top_p)) if v is not None}


def say_all(args: argparse.Namespace, voice: Voice) -> tuple[list[Said], dict[str, float]]:
    """The speech of `--speech` where that file is there, else new speech, kept there if it is named."""
    if args.speech and args.speech.exists():
        said = read_speech(args.speech)
        return [s for s in said if s.seed in args.seeds and s.voice in (args.voices or {s.voice})], {}
    sentences, chosen = sentences_of(args), sampling_of(args)
    began = time.monotonic()
    said = [s for seed in args.seeds for s in speak(voice, args.voices or voice.voices, sentences, seed, **chosen)]
    took = time.monotonic() - began
    if args.speech:
        write_speech(args.speech, said)
    return said, {"batch_real_time_factor": round(took / (sum(len(s.codes) for s in said) * FRAME / SAMPLE_RATE), 3)}


async def served(args: argparse.Namespace) -> list[tuple[Said, np.ndarray]]:
    """Every sentence as the server gives it out on a CPU, one after the other. The codes stay in the server: there are none."""
    synthesizer = build(Settings(checkpoint=str(args.checkpoint), device="cpu", threads=torch.get_num_threads()))
    voices = args.voices or synthesizer.checkpoint.voices
    jobs = [(v, seed, text) for v in voices for seed in args.seeds for text in sentences_of(args)]
    await synthesizer.start()
    result = []
    try:
        for voice, seed, text in tqdm(jobs, desc="speak"):
            speech = synthesizer.speak(SpeechRequest(prompt=text, voice=voice, seed=seed, **sampling_of(args)))
            samples = np.concatenate([np.zeros(0, np.float32), *[piece async for piece in speech]])
            result.append((Said(voice, seed, text, np.zeros((0, 7), np.uint16), speech.outcome == "complete"), samples))
    finally:
        await synthesizer.stop()
    return result


def write_wav(path: Path, samples: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def draw(path: Path, sentence: str, voices: dict[str, np.ndarray]) -> None:
    """Spectrograms of one sentence, a panel a voice."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(len(voices), 1, figsize=(7, 0.6 + 1.4 * len(voices)), sharex=True, squeeze=False)
    for panel, (name, samples) in zip(panels[:, 0], voices.items(), strict=True):
        panel.specgram(samples + 1e-5, NFFT=512, Fs=SAMPLE_RATE, noverlap=384, vmin=-130, vmax=-40)
        panel.set_ylim(0, 9000)
        panel.set_ylabel(f"{name}, Hz")
    panels[0, 0].set_title(sentence, fontsize="medium")
    panels[-1, 0].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", type=Path, help="folder of a voice (speech.json, model, codec/)")
    parser.add_argument("--corpus", type=Path, help="judge these recordings instead of a checkpoint")
    parser.add_argument("--codec", type=Path, help="checkpoint folder whose codec to use")
    parser.add_argument("--through-codec", action="store_true", help="with --corpus: encode and decode first")
    parser.add_argument("--sentences", type=Path, help="one sentence a line")
    parser.add_argument("--speech", type=Path, help="keep the speech in this .npz, or judge what it holds if it is there")
    parser.add_argument("--served", action="store_true", help="speak through the server's own path on a CPU, int8 as it serves")
    parser.add_argument("--recogniser", type=Path, help="faster-whisper model folder; without it nothing is judged")
    parser.add_argument("--like", type=Path, nargs="*", default=[], help="corpora: whose recordings does each voice sound like?")
    parser.add_argument("--voices", nargs="*", help="default: all of the checkpoint")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--temperature", type=float, help="default: the checkpoint's")
    parser.add_argument("--top-p", type=float, help="default: the checkpoint's")
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--wavs", type=Path, help="write the speech here")
    parser.add_argument("--plot", type=Path, help="write spectrograms of the first sentence, every voice")
    parser.add_argument("--out", type=Path, help="JSON report: summary by voice and every utterance")
    parser.add_argument("--device", default="cpu")


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(min(torch.get_num_threads(), 4))
    recogniser = Recogniser(args.recogniser, torch.get_num_threads()) if args.recogniser else None
    likeness = open_likeness(args.like, args.codec or args.checkpoint)
    speed: dict[str, float] = {}
    if args.corpus:
        if recogniser is None:
            raise ValueError("--recogniser: recordings cannot be judged without one")
        rows = judge_corpus(args, recogniser, likeness)
    else:
        speech: Iterable[tuple[Said, np.ndarray]]
        if args.served:
            speech = asyncio.run(served(args))
        else:
            voice = open_voice(args.checkpoint, args.codec and args.codec / "codec", args.device)
            said, speed = say_all(args, voice)
            speech = ((s, decode(voice.codec, s.codes)) for s in said)
            if args.plot:
                first = {s.voice: decode(voice.codec, s.codes) for s in reversed(said) if s.text == said[0].text}
                draw(args.plot, said[0].text, dict(sorted(first.items())))
        rows = []
        for i, (s, samples) in enumerate(tqdm(speech, desc="listen") if recogniser or args.wavs else []):
            if args.wavs:
                write_wav(args.wavs / f"{s.voice}_{s.seed}_{i:03d}.wav", samples)
            if recogniser:
                rows.append(judge(samples, s.voice, s.seed, s.text, s.ended, recogniser, likeness))
    if not rows:
        print(json.dumps(speed))
        return
    report: dict[str, Any] = {v: summary([r for r in rows if r.voice == v]) for v in sorted({r.voice for r in rows})}
    report |= {"all": summary(rows)} | speed
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(
            json.dumps({"summary": report, "utterances": [asdict(r) for r in rows]}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    main(parser.parse_args())
