"""Every knob of the server, once: from keyword arguments or from `ORPHEUS_SERVER_*` environment variables.

What is spoken, and by which model, is in `orpheus_serving.settings`.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from ..settings import SettingsError


class ServerOptions(BaseSettings):
    """Keyword arguments win over the environment, the environment over defaults."""

    model_config = SettingsConfigDict(env_prefix="ORPHEUS_SERVER_", extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    "Address to listen on; 0.0.0.0 is all of them."
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    "HTTP and WebSocket. 0 takes a free one."
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    "gRPC. Default: no gRPC server."
    api_keys: Annotated[frozenset[str], NoDecode] = Field(default=frozenset(), repr=False)
    "Keys that clients may present, separated by commas in the environment. None: everybody may speak, on loopback only."
    allow_unauthenticated: bool = False
    "Serve other addresses than loopback without keys all the same, behind a gateway that checks them."

    max_active: Annotated[int, Field(ge=1, le=100_000)] | None = None
    "Streams that run at once. Default: the engine's `max_streams`."
    max_queued: Annotated[int, Field(ge=0, le=100_000)] | None = None
    "Requests that may wait for a place; more are refused at once. Default: as many as may run."
    queue_timeout: Annotated[float, Field(gt=0)] = 10.0
    "Seconds that a request may wait before it is refused."
    request_timeout: Annotated[float, Field(gt=0)] = 1800.0
    "Seconds of one stream, from its start to its last byte. A reader that plays while it reads takes as long as the audio lasts."
    stall_timeout: Annotated[float, Field(gt=0)] = 60.0
    "Seconds that a client may take no byte of a stream, or send none of a body, before it counts as gone."
    idle_timeout: Annotated[float, Field(gt=0)] = 300.0
    "Seconds that a WebSocket may stay open while no frame comes and none is sent."
    max_body: Annotated[int, Field(ge=1024)] = 1_000_000
    "Bytes of a request's body. The text's own limit is ORPHEUS_MAX_TEXT."
    max_connections: Annotated[int, Field(ge=1)] = 10_000
    "Open connections; more are answered 503."
    drain_timeout: Annotated[float, Field(ge=0)] = 60.0
    "Seconds that running streams get to finish after SIGTERM."

    log_text: bool = False
    "Write what is spoken into the logs. Without it they never contain users' text."
    otel_endpoint: str | None = None
    "Where OpenTelemetry traces go (OTLP over HTTP), such as http://collector:4318/v1/traces. Default: no traces."

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return frozenset(key.strip() for key in value.split(",") if key.strip()) if isinstance(value, str) else value

    @property
    def loopback(self) -> bool:
        """Can nobody but this machine reach the server?"""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check_access(self) -> None:
        """Raises SettingsError where the network could speak without a key and nobody has said that it may."""
        if not self.api_keys and not self.loopback and not self.allow_unauthenticated:
            raise SettingsError(
                f"api_keys: {self.host} can be reached from other machines, and no key is set. Set ORPHEUS_SERVER_API_KEYS=KEY,"
                " or --allow-unauthenticated where a gateway checks the callers, or listen on 127.0.0.1."
            )

    @classmethod
    def unknown(cls) -> list[str]:
        """Environment variables that look like options and are none, such as misspelt ones."""
        prefix = cls.model_config["env_prefix"]
        known = {f"{prefix}{name}".upper() for name in cls.model_fields}
        return sorted(name for name in os.environ if name.upper().startswith(prefix) and name.upper() not in known)

    @classmethod
    def load(cls, values: dict[str, Any] | None = None) -> ServerOptions:
        """Options from `values` over the environment. Raises SettingsError."""
        try:
            return cls(**(values or {}))
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            raise SettingsError(f"server: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
