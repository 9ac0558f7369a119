"""Corpus to training data: every recording to codes."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tqdm import tqdm

from .codec import encode_recordings, load_trained
from .codec_model import MelCodec, load_codec
from .corpus import SAMPLE_RATE, read_audio, read_index
from .store import Prepared, write_prepared


def encode_corpus(folder: Path, codec: MelCodec, device: str) -> list[Prepared]:
    index, audio = read_index(folder), read_audio(folder)
    waves = [audio[r.start : r.start + r.samples] for r in index]
    rows: list[Prepared | None] = [None] * len(index)
    for i, frames in tqdm(encode_recordings(codec, waves, device), total=len(index), desc="encode", mininterval=5):
        rows[i] = Prepared(index[i].voice, index[i].text, index[i].samples / SAMPLE_RATE, frames)
    return [r for r in rows if r is not None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--codec-run", type=Path, help="run folder of `train codec`")
    parser.add_argument("--codec", type=Path, help="exported checkpoint folder with codec/ and mel_encoder.safetensors")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def main(args: argparse.Namespace) -> None:
    codec = (
        load_trained(args.codec_run, args.device)
        if args.codec_run
        else load_codec(args.codec / "codec", args.codec / "mel_encoder.safetensors", args.device)
    )
    write_prepared(args.out, encode_corpus(args.corpus, codec, args.device))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    main(parser.parse_args())
