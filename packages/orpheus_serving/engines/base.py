"""What every engine is: prompt ids in, lists of token ids out.

An engine knows tokens and never audio. It has one method that matters, `generate`; an engine that speaks text
(Baseten's runtime) converts inside its own module.

What a caller may rely on:

- lists arrive as soon as the engine has them, of any length but never empty;
- the end-of-speech id, when the model says it, is the last id of the last list;
- without it, the stream ends after `max_tokens` ids (the caller tells a cut from an end by that);
- closing the generator (`aclose`, or cancelling the task that reads it) stops the request at once and frees its memory;
- a failure is an `EngineError` raised from the iterator, and other requests go on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. The defaults are those that Orpheus' authors use."""

    max_tokens: int
    temperature: float = 0.6  # 0 is greedy
    top_p: float = 0.8  # 1 is off
    top_k: int = 0  # 0 is off
    repetition_penalty: float = 1.1  # 1 is off; over the tokens generated so far (and the prompt's)
    seed: int | None = None  # the same seed and prompt give the same tokens, whatever else is running


class Engine(Protocol):
    async def start(self) -> None:
        """Load and warm up. When it returns, the next request runs at full speed. Raises EngineError."""

    async def stop(self) -> None:
        """End every request (their iterators raise EngineError) and free the memory."""

    def generate(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> AsyncGenerator[list[int], None]:
        """Stream the token ids that follow `prompt`. See the module's promises."""
        ...
