"""Errors as HTTP answers, in the shape that each protocol's clients read.

InvalidRequest           400 (OpenAI), 422 (Truss)
Overloaded               429 or 503, with Retry-After
others of the package    502: the model or the codec failed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from ..errors import InvalidRequest, OrpheusServingError, Overloaded


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered with speech. `kind`, `param` and `code` are OpenAI's fields."""

    status: int
    message: str
    kind: str
    code: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def explain(error: Exception) -> Refusal:
    """What to say about an error that came before the first sound."""
    match error:
        case InvalidRequest():
            return Refusal(400, str(error), "invalid_request_error", "invalid_value", error.field)
        case RequestValidationError():
            first = error.errors()[0]
            if first["type"] == "json_invalid" or len(first["loc"]) < 2:
                message = "the body must be a JSON object, sent with Content-Type: application/json"
                return Refusal(400, message, "invalid_request_error", "invalid_json")
            param = ".".join(str(part) for part in first["loc"][1:])
            return Refusal(400, f"{param or 'body'}: {first['msg']}", "invalid_request_error", "invalid_value", param or None)
        case Overloaded():
            kind = "rate_limit_error" if error.status == 429 else "server_error"
            return Refusal(error.status, str(error), kind, "overloaded", headers={"Retry-After": str(error.retry_after)})
        case OrpheusServingError():
            return Refusal(502, f"speech failed: {error}", "server_error", "speech_failed")
        case HTTPException():
            status = error.status_code
            kind = "invalid_request_error" if status < 500 else "server_error"
            phrase = HTTPStatus(status).phrase
            message = "nothing is at this path; /docs says what is where" if error.detail == "Not Found" else str(error.detail)
            return Refusal(status, message, kind, phrase.lower().replace(" ", "_"), headers=error.headers or {})
    return Refusal(500, "internal error; the server's log says more under this request's id", "server_error", "internal_error")


def openai_refusal(error: Exception) -> JSONResponse:
    """{"error": {message, type, param, code}}; a prompt is called `input` there."""
    if isinstance(error, InvalidRequest) and error.field == "prompt":
        error = InvalidRequest("input", error.reason)
    why = explain(error)
    fields = {"message": why.message, "type": why.kind, "param": why.param, "code": why.code}
    return JSONResponse({"error": fields}, why.status, dict(why.headers))


def truss_refusal(error: Exception) -> JSONResponse:
    """{"error": message}."""
    why = explain(error)
    return JSONResponse({"error": why.message}, 422 if isinstance(error, InvalidRequest) else why.status, dict(why.headers))
