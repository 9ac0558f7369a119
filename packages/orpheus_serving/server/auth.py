"""API keys: who may speak.

    Authorization: Bearer KEY | Authorization: Api-Key KEY | X-API-Key: KEY | xi-api-key: KEY
    ?api_key=KEY        WebSocket upgrades only: browsers cannot set headers there

A key is compared in constant time with every key that is set. Without keys everything is allowed.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

# Open to everybody: probes, and the page that asks for the key.
OPEN_PATHS = frozenset({"/", "/favicon.ico", "/health", "/health/live", "/health/ready"})
OPEN_PREFIXES = ("/playground/",)
SCHEMES = ("bearer", "api-key")
HEADERS = ("x-api-key", "xi-api-key")
REASON = "missing or wrong API key; send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"


class Keys:
    """The keys that are set; none of them means that nobody is asked."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = [key.encode() for key in keys]

    @property
    def required(self) -> bool:
        return bool(self._keys)

    def allowed(self, presented: str | None) -> bool:
        """Is this a key, or an Authorization header that holds one? Every set key is compared, whatever comes first."""
        if not self._keys:
            return True
        scheme, _, rest = (presented or "").partition(" ")
        key = (rest.strip() if scheme.lower() in SCHEMES else presented or "").encode("utf-8", "surrogateescape")
        return bool(sum([hmac.compare_digest(key, known) for known in self._keys]))

    def allowed_headers(self, headers: Mapping[str, str]) -> bool:
        """Does one of the headers (or gRPC metadata, names in lower case) carry a key?"""
        return not self._keys or any(
            self.allowed(headers[name]) for name in ("authorization", *HEADERS) if headers.get(name) is not None
        )


class KeyMiddleware:
    """Answers 401 to HTTP requests and WebSocket upgrades without a key."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        error = {"message": REASON, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
        await refuse(scope, receive, send, 401, {"error": error}, {"www-authenticate": "Bearer"})

    def _allowed(self, scope: Scope) -> bool:
        if not self._keys.required or scope["path"] in OPEN_PATHS or scope["path"].startswith(OPEN_PREFIXES):
            return True
        if scope["type"] == "http" and scope["method"] == "OPTIONS":  # a browser's preflight carries no key
            return True
        if self._keys.allowed_headers(Headers(scope=scope)):
            return True
        if scope["type"] == "websocket":
            query = parse_qs(scope["query_string"].decode("latin-1"))
            return any(self._keys.allowed(key) for key in query.get("api_key", ()))
        return False


async def refuse(
    scope: Scope, receive: Receive, send: Send, status: int, body: object, headers: Mapping[str, str] | None = None
) -> None:
    """Answer a request, or a WebSocket that has not been accepted, with a status and JSON."""
    raw = json.dumps(body).encode()
    lines = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
    lines += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    kind = "http"
    if scope["type"] == "websocket":
        await receive()  # the upgrade itself
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})
            return
        kind = "websocket.http"
    await send({"type": f"{kind}.response.start", "status": status, "headers": lines})
    await send({"type": f"{kind}.response.body", "body": raw})
