"""The routes of a Truss on Baseten, so that a client can be pointed at either.

POST /v1/models/model:predict    what model/model.py answers to the same body
GET  /v1/models/model            200 when it can speak, 503 when it cannot
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from ..errors import InvalidRequest
from ..request import SpeechRequest
from .answer import AUDIO, SpeechAnswer
from .refusals import truss_refusal
from .service import Service

ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Speech, as it is made", "content": {"audio/pcm": AUDIO, "audio/wav": AUDIO}},
    400: {"description": "The body is no JSON"},
    401: {"description": "No API key, or a wrong one"},
    413: {"description": "The body is too large"},
    422: {"description": "Something in the request cannot be spoken", "content": {"application/json": {}}},
    429: {"description": "All places are taken; see Retry-After"},
    502: {"description": "The model failed before the first sound"},
    503: {"description": "The server is starting or stopping; see Retry-After"},
}
BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": SpeechRequest.model_json_schema()}}}}


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/models", tags=["Truss"])

    @routes.post("/model:predict", response_class=Response, responses=ANSWERS, openapi_extra=BODY)
    async def predict(request: Request) -> Response:
        """Speak a prompt, as PCM or WAV."""
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            return JSONResponse({"error": "the body is not valid JSON"}, 400)
        try:
            wanted = SpeechRequest.parse(body)
        except InvalidRequest as error:
            return truss_refusal(error)
        return SpeechAnswer(service, wanted, protocol="truss", response_format=wanted.response_format, refusal=truss_refusal)

    @routes.get("/model", responses={503: {"description": "Loading, or on its way out"}})
    async def ready() -> JSONResponse:
        """Readiness, as the platform asks for it."""
        return JSONResponse({}, 200 if service.ready else 503)

    return routes
