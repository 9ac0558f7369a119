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

from orpheus_serving.errors import CheckpointError, EngineError
from orpheus_serving.tokens import TokenLayout


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens, and how fast they are needed. The defaults are those that Orpheus' authors use."""

    max_tokens: int
    temperature: float = 0.6  # 0 is greedy
    top_p: float = 0.8  # 1 is off
    top_k: int = 0  # 0 is off
    repetition_penalty: float = 1.1  # 1 is off; over the tokens generated so far (and the prompt's)
    seed: int | None = None  # the same seed and prompt give the same tokens, whatever else is running
    pace: float | None = None  # ids a second that its listener hears; None: needed as fast as they come


class Engine(Protocol):
    @property
    def failure(self) -> str:
        """Why no request can run, whoever asks; empty while they can. One that is dead stays so until `start`."""

    async def start(self) -> None:
        """Load and warm up. When it returns, the next request runs at full speed. Raises EngineError."""

    async def stop(self) -> None:
        """End every request (their iterators raise EngineError) and free the memory."""

    def generate(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> AsyncGenerator[list[int], None]:
        """Stream the token ids that follow `prompt`. See the module's promises."""
        ...


def token_budget(prompt: Sequence[int], sampling: Sampling, *, max_length: int, vocabulary: int) -> int:
    """How many ids a request may generate: its `max_tokens`, or what `max_length` leaves beside the prompt.

    Raises EngineError for a prompt or a limit that cannot run.
    """
    if not 0 < len(prompt) < max_length:
        raise EngineError(
            f"prompt: {len(prompt)} ids, but a request holds max_length = {max_length} ids in all and the prompt "
            f"needs 1 to {max_length - 1} of them; shorten the text or raise max_length"
        )
    if outside := [i for i in prompt if not 0 <= i < vocabulary]:
        raise EngineError(f"prompt: ids {outside[:5]} are outside the vocabulary of {vocabulary}")
    if sampling.max_tokens < 1:
        raise EngineError(f"max_tokens: {sampling.max_tokens}, must be at least 1")
    return min(sampling.max_tokens, max_length - len(prompt))


def check_layout(layout: TokenLayout, vocabulary: int, checkpoint: object) -> None:
    """Raises CheckpointError where the vocabulary has no room for the layout's ids."""
    top = max(layout.last_code, layout.end_of_speech)
    if top >= vocabulary:
        raise CheckpointError(f"{checkpoint}: the token layout needs ids up to {top}, the vocabulary ends at {vocabulary - 1}")
