"""Errors that callers are meant to catch. Each message is written for the person who will read it."""

from __future__ import annotations


class OrpheusServingError(Exception):
    """Base of the package's own errors."""


class InvalidRequest(OrpheusServingError):
    """The request cannot be spoken as it is; `field` names what to change and `reason` how."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class CheckpointError(OrpheusServingError):
    """A checkpoint or codec folder is missing something or contradicts itself."""


class EngineError(OrpheusServingError):
    """The language model failed or was stopped while a request was running."""


class CodecError(OrpheusServingError):
    """The audio decoder failed or was stopped while a stream was running."""


class Overloaded(OrpheusServingError):
    """There is no place for one more stream now; the same request can work `retry_after` seconds later.

    `status` is the HTTP status that says so: 429 where every place is taken, 503 where the server is starting or stopping.
    """

    def __init__(self, reason: str, retry_after: int, status: int = 429) -> None:
        super().__init__(f"{reason}; try again in {retry_after} s")
        self.retry_after = retry_after
        self.status = status
