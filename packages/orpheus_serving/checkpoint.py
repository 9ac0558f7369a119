"""What a checkpoint folder says about itself: the token layout, the voices, how a prompt is written.

A checkpoint is a Hugging Face folder (config.json, safetensors, tokenizer.json). Orpheus 3B needs nothing more. A model with
other offsets, voices or an own codec adds `speech.json`; every key may be left out:

    name        what it is, for people
    tokens      {first_code, codes_per_slot, slots, end_of_speech, prompt_before, prompt_after}
    voices      {name: sampling overrides such as {"temperature": 0.7}}
    prompt      {"with_voice": "{voice}: {text}", "without_voice": "{text}"}
    tags        emotion tags, without brackets
    text        "clean" (the model reads digits) or "spoken" (everything is spelled out first)
    sampling    defaults {temperature, top_p, top_k, repetition_penalty}
    languages   ["en"]

A folder `codec/` inside is the checkpoint's own SNAC codec; without it the codec is snac_24khz.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import CheckpointError, InvalidRequest
from .tokens import TokenLayout

SNAC_24KHZ = "hubertsiuzdak/snac_24khz"
ORPHEUS_VOICES = ("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe")
ORPHEUS_TAGS = ("laugh", "chuckle", "sigh", "cough", "sniffle", "groan", "yawn", "gasp")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SamplingDefaults(_Strict):
    """What a request gets that names no value. The numbers are those that Orpheus' authors use."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1, le=2)] | None = None


class _Tokens(_Strict):
    first_code: int = 128266
    codes_per_slot: int = 4096
    slots: int = 7
    end_of_speech: int = 128258
    prompt_before: tuple[int, ...] = (128259, 128000)
    prompt_after: tuple[int, ...] = (128009, 128260, 128261, 128257)


class _Prompt(_Strict):
    with_voice: str = "{voice}: {text}"
    without_voice: str = "{text}"


class _Speech(_Strict):
    name: str = "Orpheus 3B"
    tokens: _Tokens = _Tokens()
    voices: dict[str, SamplingDefaults] = {name: SamplingDefaults() for name in ORPHEUS_VOICES}
    prompt: _Prompt = _Prompt()
    tags: tuple[str, ...] = ORPHEUS_TAGS
    text: Literal["clean", "spoken"] = "clean"
    sampling: SamplingDefaults = SamplingDefaults()
    languages: tuple[str, ...] = ("en",)


class Checkpoint:
    """A checkpoint's description and tokenizer; the weights are the engine's business.

    `source` is a local folder or a hub repository, of which only tokenizer.json and speech.json are fetched. Raises
    CheckpointError where something is missing or contradicts itself.
    """

    def __init__(self, source: str | Path, revision: str | None = None) -> None:
        from tokenizers import Tokenizer

        self.source = str(source)
        self.folder = Path(source) if Path(source).is_dir() else _fetch(self.source, revision)
        path = self.folder / "speech.json"
        try:
            speech = _Speech.model_validate_json(path.read_bytes()) if path.is_file() else _Speech()
        except ValidationError as error:
            first = error.errors()[0]
            raise CheckpointError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        try:
            self.layout = TokenLayout(**speech.tokens.model_dump())
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from error
        tokenizer = self.folder / "tokenizer.json"
        if not tokenizer.is_file():
            raise CheckpointError(f"{self.source}: no tokenizer.json there; expected a Hugging Face checkpoint folder")
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # the library raises bare ones
            raise CheckpointError(f"{tokenizer}: not a tokenizer: {error}") from error
        self._speech = speech
        self.name = speech.name
        self.voices = tuple(speech.voices)
        self.tags = speech.tags
        self.text_level = speech.text
        self.languages = speech.languages

    @property
    def codec(self) -> str:
        """Folder or repository of the codec that this checkpoint's codes belong to."""
        own = self.folder / "codec"
        return str(own) if own.is_dir() else SNAC_24KHZ

    def sampling(self, voice: str | None) -> dict[str, float | int]:
        """Sampling values for a voice: the checkpoint's, then the voice's own over them."""
        values = self._speech.sampling.model_dump(exclude_none=True)
        if voice is not None:
            values |= self._speech.voices[voice].model_dump(exclude_none=True)
        return values

    def check_voice(self, voice: str) -> str:
        """The voice's name as the checkpoint writes it. Raises InvalidRequest for one that it does not have."""
        if voice in self.voices:
            return voice
        for name in self.voices:
            if name.lower() == voice.lower():
                return name
        known = ", ".join(self.voices) or "none: leave the field out"
        raise InvalidRequest("voice", f"no voice {voice[:60]!r}; the voices of {self.name} are: {known}")

    def prompt(self, text: str, voice: str | None) -> list[int]:
        """Prompt ids for normalised text. Ids that are special to the layout never come from text."""
        prompt = self._speech.prompt
        written = prompt.without_voice if voice is None else prompt.with_voice
        written = written.replace("{voice}", voice or "").replace("{text}", text)
        layout = self.layout
        reserved = {layout.end_of_speech, *layout.prompt_before, *layout.prompt_after}
        ids = self._tokenizer.encode(written, add_special_tokens=False).ids
        return layout.prompt_ids([i for i in ids if i not in reserved and not layout.is_code(i)])

    def prompt_text(self, prompt: Sequence[int]) -> str:
        """The text whose encoding is these ids, specials included: for an engine that takes only text."""
        return self._tokenizer.decode(list(prompt), skip_special_tokens=False)


def _fetch(repository: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        files = ["tokenizer.json", "speech.json", "codec/*"]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=files))
    except Exception as error:
        raise CheckpointError(
            f"{repository}: no such folder, and the hub did not give it ({error}). Name a local checkpoint folder, or check"
            " the name, the network and the token (gated repositories need one)."
        ) from error
