"""A voice's folder, opened by steps that change the voice and written again: model, tokenizer and what `speech.json` says."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..tokens import TokenLayout
from .documents import read_layout


@dataclass(frozen=True, slots=True)
class VoiceFolder:
    """`model` is a `LlamaForCausalLM` in float32, `tokenizer` a `tokenizers.Tokenizer`, `speech` the whole of `speech.json`."""

    folder: Path
    speech: dict[str, Any]
    layout: TokenLayout
    tokenizer: Any
    model: Any

    @classmethod
    def open(cls, folder: Path, device: str) -> VoiceFolder:
        from tokenizers import Tokenizer
        from transformers import LlamaForCausalLM

        speech = json.loads((folder / "speech.json").read_text(encoding="utf-8"))
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)
        return cls(folder, speech, read_layout(speech["tokens"]), Tokenizer.from_file(str(folder / "tokenizer.json")), model)

    @property
    def template(self) -> str:
        return str(self.speech["prompt"]["with_voice"])

    @property
    def voices(self) -> list[str]:
        return list(self.speech["voices"])

    def jobs(self, texts: Path, count: int, voices: list[str] | None) -> list[tuple[str, str]]:
        """(voice, line) of the first `count` lines that are not empty, `voices` in turn; None: all that the folder has."""
        lines = [s for s in texts.read_text(encoding="utf-8").splitlines() if s.strip()][:count]
        names = voices or self.voices
        return [(names[i % len(names)], line) for i, line in enumerate(lines)]

    def save(self, target: Path) -> None:
        """A copy of the folder with the model's weights as they are now, in half precision; the model is that from then on."""
        shutil.copytree(self.folder, target, dirs_exist_ok=True)
        self.model.half().save_pretrained(target)
        (target / "generation_config.json").unlink(missing_ok=True)
