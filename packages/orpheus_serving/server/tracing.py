"""OpenTelemetry, where it is asked for: a span for every speech, under the trace of the request that asked for it.

Needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http, which are not among the server's own requirements.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from ..settings import SettingsError

traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)
"The W3C header of the request that the current task serves."


def open_tracer(endpoint: str | None) -> Any:
    """A tracer that sends to an OTLP endpoint; None without one. Raises SettingsError where the packages are missing."""
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsError(
            "server: otel_endpoint: traces need two more packages: pip install opentelemetry-sdk"
            " opentelemetry-exporter-otlp-proto-http"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "orpheus-serving"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider.get_tracer("orpheus_serving")


def start_span(tracer: Any, name: str) -> Any:
    """A span that has begun; None without a tracer."""
    if tracer is None:
        return None
    from opentelemetry.propagate import extract

    return tracer.start_span(name, context=extract({"traceparent": traceparent.get() or ""}))


def end_span(span: Any, fields: dict[str, Any], failed: bool) -> None:
    """End a span with what is known about it by now."""
    if span is None:
        return
    from opentelemetry.trace import StatusCode

    span.set_attributes({f"speech.{name}": value for name, value in fields.items() if value is not None})
    if failed:
        span.set_status(StatusCode.ERROR, str(fields.get("error", "")))
    span.end()
