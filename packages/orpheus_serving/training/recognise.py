"""How much of the speech was understood: a local recogniser, plain words, edit distance.

wave -> faster-whisper (greedy, English) -> text -> words() ┐
                                sentence -> words() -------┴-> errors / reference words = word error rate
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

RATE = 16000  # Whisper's
# Spellings of one spoken word, so that neither side is charged for the other's habit.
SAME = {
    "ok": "okay", "mr": "mister", "mrs": "missus", "dr": "doctor", "st": "street", "oclock": "o'clock", "vs": "versus",
    "favorite": "favourite", "neighbors": "neighbours", "neighbor": "neighbour", "gray": "grey", "color": "colour",
    "apologized": "apologised", "recognized": "recognised", "theater": "theatre", "center": "centre",
    "cannot": "can not", "alright": "all right", "anymore": "any more", "percent": "per cent",
}  # fmt: skip


def words(text: str) -> list[str]:
    """Lower-case words with numbers spelled out and without punctuation."""
    from num2words import num2words

    text = unicodedata.normalize("NFKD", text.lower()).encode("ascii", "ignore").decode()
    text = re.sub(r"(?<![\d,.$])(1[1-9]|20)(\d\d)\b(?![,.]\d| dollars)", lambda m: num2words(int(m.group()), to="year"), text)
    text = re.sub(r"(\d),(\d{3})", r"\1\2", text)
    text = re.sub(r"\b([ap])\.? ?m\b\.?", r"\1m", text)
    text = re.sub(r"\$(\d+)(\.\d+)?", r"\1\2 dollars", text).replace("%", " percent").replace("&", " and ")
    text = re.sub(r"\b(\d{1,2}):00\b", r"\1 o'clock", text)
    text = re.sub(r"\b(\d{1,2}):(\d{2})\b", r"\1 \2", text)
    text = re.sub(r"(\d+)(st|nd|rd|th)\b", lambda m: num2words(int(m.group(1)), to="ordinal"), text)
    text = re.sub(r"\d+(\.\d+)?", lambda m: f" {num2words(float(m.group()) if m.group(1) else int(m.group()))} ", text)
    text = re.sub(r"[^a-z' ]", " ", text.replace("-", " "))
    found = [w.strip("'") for w in text.split()]
    return " ".join(SAME.get(w, w) for w in found if w).split()


def errors(reference: Sequence[str], heard: Sequence[str]) -> int:
    """Word edits (substitute, insert, delete) between the two, at least 0."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(reference, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (word != other))
    return row[-1]


def cut_off(reference: Sequence[str], heard: Sequence[str]) -> bool:
    """Whether what was heard stops before the last word of the reference, or in its middle.

    A last word that was heard as another one is not cut off. Where both readings take the same number of edits, it counts.
    """
    if not reference or not heard:
        return bool(reference)
    last, differs = reference[-1], heard[-1] != reference[-1]
    dropped = errors(reference[:-1], heard) + 1
    replaced = errors(reference[:-1], heard[:-1]) + differs
    return differs and (last.startswith(heard[-1]) or dropped <= replaced)


def said_on(reference: Sequence[str], heard: Sequence[str]) -> bool:
    """Whether more was heard after the last word of the reference, such as the end once again."""
    whole = errors(reference, heard)
    return any(
        heard[at - 1] == reference[-1] and errors(reference, heard[:at]) + len(heard) - at == whole
        for at in range(1, len(heard))
        if reference
    )


def resample(wave: np.ndarray, rate: int, to: int = RATE) -> np.ndarray:
    """Band-limited resampling of a mono float wave."""
    if rate == to:
        return wave.astype(np.float32)
    from math import gcd

    from scipy.signal import resample_poly

    common = gcd(rate, to)
    return np.asarray(resample_poly(wave, to // common, rate // common), dtype=np.float32)


class Recogniser:
    """A faster-whisper model from a folder; greedy, so that a rerun gives the same words.

    `window_s`: the model listens to so much at once. Its own 30 s are padded with silence, which takes most of the time
    with short speech; a shorter window is for judging many utterances, none of them longer.
    """

    def __init__(self, folder: Path, threads: int = 2, window_s: float | None = None) -> None:
        from faster_whisper import WhisperModel

        self.model: Any = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=threads)
        self.window_s = window_s

    def hear(self, wave: np.ndarray, rate: int) -> str:
        if self.window_s is not None:
            return self.hear_short(resample(wave, rate), self.window_s)
        segments, _ = self.model.transcribe(
            resample(wave, rate), language="en", beam_size=1, temperature=0.0, condition_on_previous_text=False,
            without_timestamps=True,
        )  # fmt: skip
        return " ".join(s.text.strip() for s in segments)

    def hear_short(self, wave: np.ndarray, window_s: float) -> str:
        from faster_whisper.tokenizer import Tokenizer
        from faster_whisper.transcribe import get_ctranslate2_storage

        tokenizer = Tokenizer(self.model.hf_tokenizer, True, task="transcribe", language="en")
        window = int(window_s * 100)  # a feature frame is 10 ms
        features = self.model.feature_extractor(wave)[:, :window]
        features = np.pad(features, ((0, 0), (0, window - features.shape[1]))).astype(np.float32)
        encoded = self.model.model.encode(get_ctranslate2_storage(features[None]))
        prompt = self.model.get_prompt(tokenizer, [], without_timestamps=True)
        tokens = self.model.model.generate(encoded, [prompt], beam_size=1)[0].sequences_ids[0]
        return str(tokenizer.decode([t for t in tokens if t < tokenizer.eot])).strip()
