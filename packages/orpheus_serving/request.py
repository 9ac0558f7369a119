"""What a client may ask for. Fields are those of the public Orpheus Truss, with `response_format` and `seed`.

Unknown fields are ignored, as clients send many; a known one with a wrong type or value is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import InvalidRequest

MAX_SEED = 2**63 - 1


class SpeechRequest(BaseModel):
    """One utterance. `None` means the server's or the checkpoint's default."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    prompt: str
    "Text to speak."
    voice: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    max_tokens: Annotated[int, Field(ge=7, le=1_000_000)] | None = None
    "Audio tokens of the whole utterance, 82.03 a second. Longer speech is cut. Default: in proportion to the text."
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, le=100_000)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1, le=2, allow_inf_nan=False)] | None = None
    request_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    max_chunk_size: Annotated[int, Field(ge=20, le=500)] | None = None
    "Characters spoken in one go; longer text is split at sentences."
    response_format: Literal["pcm", "wav"] = "pcm"
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    "The same seed and request give the same audio."

    @classmethod
    def parse(cls, body: Any) -> SpeechRequest:
        """Validate decoded JSON. Raises InvalidRequest with the field and the reason."""
        if not isinstance(body, dict):
            raise InvalidRequest("body", f"must be a JSON object with a prompt, not {type(body).__name__}")
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise InvalidRequest(".".join(map(str, first["loc"])) or "body", first["msg"]) from error
