"""The page at `/`: type a text, hear it while it streams. Plain HTML, CSS and JavaScript from `static/`, no third party.

    GET /                       index.html
    GET /playground/FILE        what it loads
    GET /v1/playground          what can be chosen: voices, emotion tags, defaults; needs a key where speech does

The page speaks through `POST /v1/audio/speech` as any other client does. Read `static/playground.js` first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, HTTPException
from starlette.responses import FileResponse

from ...engines.base import Sampling

if TYPE_CHECKING:
    from ..service import Service

STATIC = Path(__file__).parent / "static"
FILES = frozenset(path.name for path in STATIC.iterdir() if path.is_file())

# The page loads nothing, sends nothing and is framed by nothing but its own server.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asks again with its ETag, so a new version is seen at once
}


def router(service: Service) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers=HEADERS)

    @routes.get("/v1/playground")
    async def choices() -> dict[str, Any]:
        return describe(service)

    @routes.get("/playground/{name}")
    async def file(name: str) -> FileResponse:
        if name not in FILES:
            raise HTTPException(404, f"the playground has no file {name[:60]!r}")
        return FileResponse(STATIC / name, headers=HEADERS)

    return routes


def describe(service: Service) -> dict[str, Any]:
    """What the page offers: `sampling` has the defaults by voice, under "" where the checkpoint has no voices."""
    synthesizer = service.synthesizer
    checkpoint = synthesizer.checkpoint
    return {
        "name": checkpoint.name,
        "voices": checkpoint.voices,
        "default_voice": synthesizer.default_voice,
        "tags": checkpoint.tags,
        "sample_rate": synthesizer.sample_rate,
        "max_text": synthesizer.settings.max_text,
        "sampling": {voice or "": _defaults(checkpoint.sampling(voice)) for voice in checkpoint.voices or (None,)},
    }


def _defaults(own: dict[str, float | int]) -> dict[str, float | int]:
    sampling = Sampling(max_tokens=1, **own)  # type: ignore[arg-type]
    return {name: getattr(sampling, name) for name in ("temperature", "top_p", "repetition_penalty")}
