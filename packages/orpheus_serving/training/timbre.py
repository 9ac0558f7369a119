"""Whose voice is it? A word error rate does not say, so compare the long-term spectrum with that of recordings.

    wave -> log mel of the louder frames -> mean over time, shape only [100] -> nearest voice of the recordings

Crude, but it tells a new voice from the ones that its model knew before, which is what is asked here. Where the codec can
encode, the recordings go through it first: a codec that has not heard a voice bends its spectrum, and no model can speak
better than its codec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from .codec_model import FRAME, log_mel
from .corpus import read_audio, read_index

ENOUGH = 40  # recordings of a voice


def timbre(wave: np.ndarray) -> np.ndarray:
    """wave [N] float32 at 24 kHz, N >= 2,048 -> [100]: mean log mel of the louder half of the frames, about its own mean."""
    mel = log_mel(torch.from_numpy(wave[: len(wave) // FRAME * FRAME])[None])[0].numpy()
    level = mel.mean(0)
    shape: np.ndarray = mel[:, level >= np.median(level)].mean(1)
    return shape - shape.mean()


class Likeness:
    """Average timbre of each voice in some corpora, `render` (the codec and back) applied to every recording."""

    def __init__(self, corpora: Sequence[Path], render: Callable[[np.ndarray], np.ndarray] = np.asarray) -> None:
        found: dict[str, list[np.ndarray]] = {}
        for folder in corpora:
            audio = read_audio(folder)
            usable = [r for r in read_index(folder) if r.samples >= FRAME]
            for r in np.random.default_rng(0).permutation(len(usable)):
                recording = usable[r]
                timbres = found.setdefault(recording.voice, [])
                if len(timbres) < ENOUGH:
                    samples = audio[recording.start : recording.start + recording.samples].astype(np.float32) / 32768
                    timbres.append(timbre(render(samples)))
        self.names = sorted(found)
        self.centroids = np.stack([np.mean(found[n], axis=0) for n in self.names])

    def nearest(self, wave: np.ndarray) -> str:
        return self.names[int(np.linalg.norm(self.centroids - timbre(wave), axis=1).argmin())]
