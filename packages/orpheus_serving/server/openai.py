"""OpenAI's speech API, for every client that has a base URL to set.

    POST /v1/audio/speech    GET /v1/models, /v1/models/ID    GET /v1/audio/voices, /v1/audio/models    GET /v1/

Beside OpenAI's own fields a request may have those of `SpeechRequest` (seed, temperature, top_p, ...), and `prompt` instead of
`input`: clients that write `prompt` come from the Truss and get its default format, PCM, where they name none.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException
from pydantic import AliasChoices, BeforeValidator, Field, WithJsonSchema, model_validator
from starlette.responses import JSONResponse, Response

from ..audio.encoders import Format
from ..audio.rate import FASTEST, SLOWEST
from ..request import SpeechRequest
from .answer import AUDIO, SpeechAnswer
from .service import Service


def _voice_name(value: Any) -> Any:
    return value["id"] if isinstance(value, dict) and "id" in value else value


Name = Annotated[str, Field(min_length=1, max_length=100)]
VOICE_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": 100},
        {"type": "object", "properties": {"id": {"type": "string", "minLength": 1, "maxLength": 100}}, "required": ["id"]},
        {"type": "null"},
    ]
}


class SpeechBody(SpeechRequest):
    """The body of POST /v1/audio/speech. Unknown fields are ignored."""

    model: str | None = None
    "Whatever the client calls it: one server speaks with one model."
    prompt: str = Field(validation_alias=AliasChoices("input", "prompt"))
    "Text to speak, as `input` or as `prompt`."
    voice: Annotated[Name | None, BeforeValidator(_voice_name), WithJsonSchema(VOICE_SCHEMA)] = None
    'A name or {"id": name}; see /v1/audio/voices.'
    response_format: Format | None = None  # type: ignore[assignment]
    "Default: mp3; pcm where the text came as `prompt`."
    speed: Annotated[float, Field(ge=SLOWEST, le=FASTEST, allow_inf_nan=False)] | None = None
    "Faster or slower at the same pitch."
    instructions: Any = None
    "Accepted and not followed: the model has no such input. Emotion tags in the text are what it knows."
    stream_format: Literal["audio", "sse"] | None = None
    "The file itself, or server-sent events with pieces of it in base64."

    @model_validator(mode="before")
    @classmethod
    def _truss_default(cls, body: Any) -> Any:
        if isinstance(body, dict) and "input" not in body and body.get("response_format") is None:
            return body | {"response_format": "pcm"}
        return body


ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Speech, as it is made",
        "content": {
            "audio/mpeg": AUDIO,
            "audio/ogg": AUDIO,
            "audio/aac": AUDIO,
            "audio/flac": AUDIO,
            "audio/wav": AUDIO,
            "audio/pcm": AUDIO,
            "text/event-stream": {"schema": {"type": "string"}},
        },
    },
    400: {"description": "Something in the request cannot be spoken; `error.param` says what"},
    401: {"description": "No API key, or a wrong one"},
    413: {"description": "The body is too large"},
    429: {"description": "All places are taken; see Retry-After"},
    502: {"description": "The model failed before the first sound"},
    503: {"description": "The server is starting or stopping; see Retry-After"},
}


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])
    checkpoint = service.synthesizer.checkpoint
    model_id = re.sub(r"[^a-z0-9.]+", "-", checkpoint.name.lower()).strip("-")
    model = {"id": model_id, "object": "model", "created": 0, "owned_by": "orpheus-serving"}

    @routes.post("/audio/speech", response_class=Response, responses=ANSWERS)
    async def speech(body: SpeechBody) -> Response:
        """Speak a text. The answer starts with the first sound and streams what follows as it is made."""
        return SpeechAnswer(
            service,
            body,
            protocol="openai",
            response_format=body.response_format or "mp3",
            speed=body.speed or 1.0,
            events=body.stream_format == "sse",
        )

    @routes.get("/")
    async def root() -> JSONResponse:
        """Nothing, quickly: clients warm up their connection with it."""
        return JSONResponse({"object": "api", "version": "v1"})

    @routes.get("/models")
    async def models() -> JSONResponse:
        """The model that is served."""
        return JSONResponse({"object": "list", "data": [model]})

    @routes.get("/models/{name}", responses={404: {"description": "Another model than the one that is served"}})
    async def one_model(name: str) -> JSONResponse:
        if name != model_id:
            raise HTTPException(404, f"no model {name[:60]!r}; this server speaks with {model_id!r}")
        return JSONResponse(model)

    @routes.get("/audio/models")
    async def audio_models() -> JSONResponse:
        """The same in the shape that Open WebUI reads."""
        return JSONResponse({"models": [{"id": model_id, "name": checkpoint.name}]})

    @routes.get("/audio/voices")
    async def voices() -> JSONResponse:
        """The checkpoint's voices, then OpenAI's names that stand for one of them."""
        own = [{"id": name, "name": name} for name in checkpoint.voices]
        aliases = [{"id": name, "name": f"{name} ({voice})", "alias_of": voice} for name, voice in service.aliases.items()]
        return JSONResponse({"voices": own + aliases})

    return routes
