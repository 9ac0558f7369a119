"""Baseten's TensorRT-LLM runtime (Briton) as an engine: it takes a prompt as text and answers in text.

    prompt ids -> decode_prompt() -> engine.predict({prompt, max_tokens, ...}) -> text -> CustomTokenParser -> ids

The Truss server injects the engine as `trt_llm["engine"]`. Its text is a run of `<custom_token_N>`, cut into chunks
wherever the runtime likes, also inside a token. The parser keeps the unfinished end of a chunk, which is never longer
than one token, and looks at every other character once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from starlette.requests import Request

from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.readers import Readers
from orpheus_serving.engines.sampling import GREEDY_BELOW
from orpheus_serving.errors import EngineError
from orpheus_serving.tokens import TokenLayout

log = logging.getLogger(__name__)

PREFIX = "<custom_token_"
MAX_DIGITS = 7  # Orpheus has 28,684 custom tokens: five digits
BEGIN_OF_TEXT = 1  # ids that the runtime's tokenizer may put before the prompt
CUSTOM_TOKENS_BEFORE_CODES = 10  # `<custom_token_10>` is the first audio code of an Orpheus vocabulary


class CustomTokenParser:
    """Text in, in pieces of any length; the N of every `<custom_token_N>` out, as soon as its `>` is there.

    `stray` counts the characters that belong to no token. Spaces are not counted: a detokenizer may put one between
    two tokens. The outcome is the same however the text is cut.
    """

    def __init__(self) -> None:
        self.stray = 0
        self._tail = ""  # the beginning of a token that is not complete, at most len(PREFIX) + MAX_DIGITS characters

    def feed(self, text: str) -> list[int]:
        """The numbers of the tokens that `text` completes, in order; often none."""
        text = self._tail + text
        self._tail = ""
        numbers: list[int] = []
        at = 0  # everything before it is settled
        while (start := text.find(PREFIX, at)) >= 0:
            digits = start + len(PREFIX)
            end = text.find(">", digits, digits + MAX_DIGITS + 1)
            number = text[digits:end] if end >= 0 else text[digits : digits + MAX_DIGITS + 1]
            if not _may_be_number(number):
                self._skip(text, at, digits)
                at = digits
            elif end >= 0:
                if start > at:
                    self._skip(text, at, start)
                if number:
                    numbers.append(int(number))
                else:
                    self._skip(text, start, end + 1)
                at = end + 1
            else:
                self._skip(text, at, start)
                self._tail = text[start:]
                return numbers
        cut = text.rfind("<", max(at, len(text) - len(PREFIX) + 1))
        if cut >= 0 and PREFIX.startswith(text[cut:]):
            self._tail = text[cut:]
        else:
            cut = len(text)
        self._skip(text, at, cut)
        return numbers

    def finish(self) -> None:
        """No more text comes: an unfinished token was none."""
        self._skip(self._tail, 0, len(self._tail))
        self._tail = ""

    def _skip(self, text: str, start: int, end: int) -> None:
        if start < end:
            self.stray += end - start - text.count(" ", start, end)


def _may_be_number(digits: str) -> bool:
    """Whether `digits` is a decimal number as a vocabulary writes it, or could become one ("" can)."""
    if not digits:
        return True
    return len(digits) <= MAX_DIGITS and digits.isascii() and digits.isdigit() and (digits[0] != "0" or digits == "0")


class TextEngine(Protocol):
    """What the Truss server injects: `predict` gives an async generator of text, or a response that holds one."""

    async def predict(self, model_input: dict[str, Any], request: Request) -> Any: ...


class BritonEngine:
    """An `Engine` on the injected `trt_llm["engine"]`.

    decode_prompt: token ids to text, special tokens included. The runtime takes prompts as text only.
    max_length: ids of prompt and answer together that the runtime was built for (`trt_llm.build.max_seq_len`). It ends an answer
        there without a word, whatever `max_tokens` says. None: not known.
    first_custom_id: the id of `<custom_token_0>`; by default ten below the first audio code, as Orpheus has it.
    stray: characters of answers that were no custom token, over all requests so far.
    """

    def __init__(
        self,
        engine: TextEngine,
        layout: TokenLayout,
        decode_prompt: Callable[[Sequence[int]], str],
        *,
        max_length: int | None = None,
        first_custom_id: int | None = None,
    ) -> None:
        self._engine = engine
        self._layout = layout
        self._decode_prompt = decode_prompt
        self._max_length = max_length
        self._first = layout.first_code - CUSTOM_TOKENS_BEFORE_CODES if first_custom_id is None else first_custom_id
        self._readers = Readers("the TensorRT-LLM runtime")
        self.stray = 0

    @property
    def failure(self) -> str:
        """As in `base.py`. Whether the runtime lives is the Truss server's to watch."""
        return "the engine is not started or was stopped" if self._readers.closed else ""

    async def start(self) -> None:
        """Nothing to load: the Truss server has loaded the runtime before it built the model."""
        self._readers.open()

    async def stop(self) -> None:
        """End every request. The runtime itself belongs to the Truss server."""
        self._readers.close()

    async def generate(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> AsyncGenerator[list[int], None]:
        """Stream the ids that follow `prompt`; see the promises in `base.py`.

        The runtime stops at the end-of-speech id and keeps it to itself. So an answer shorter than what it was allowed
        ended by itself, and the id is added here. Characters that were no token count as one id each in that comparison,
        which is the most that they can have been: a cut is never taken for an end.
        """
        parser = CustomTokenParser()
        count = 0
        budget = self._budget(prompt, sampling, request_id)
        stream = self._text(self._model_input(prompt, sampling, budget, request_id), request_id)
        try:
            async for text in stream:
                ids = [self._first + number for number in parser.feed(text)]
                ids = ids[: budget - count]
                ended = self._layout.end_of_speech in ids
                if ended:
                    ids = ids[: ids.index(self._layout.end_of_speech) + 1]
                count += len(ids)
                if ids:
                    yield ids
                if ended or count == budget:
                    return
            parser.finish()
            if count + parser.stray < budget:
                yield [self._layout.end_of_speech]
        finally:
            await stream.aclose()
            self._count_stray(parser, request_id)

    def _budget(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> int:
        """How many ids the request may generate."""
        if self._max_length is None:
            return sampling.max_tokens
        room = self._max_length - len(prompt) - BEGIN_OF_TEXT
        if room < 1:
            raise EngineError(
                f"request {request_id}: its prompt of {len(prompt)} ids leaves no room in the runtime's {self._max_length}; "
                "shorten the text or raise trt_llm.build.max_seq_len"
            )
        return min(sampling.max_tokens, room)

    def _model_input(self, prompt: Sequence[int], sampling: Sampling, budget: int, request_id: str) -> dict[str, Any]:
        """A dict of its own for every call: the runtime may write into it."""
        greedy = sampling.temperature < GREEDY_BELOW
        model_input = {
            "prompt": self._decode_prompt(prompt),
            "max_tokens": budget,
            # Greedy is said through top_k, since a temperature of 0 divides by zero in some releases.
            "temperature": 1.0 if greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 1 if greedy else sampling.top_k,  # always sent: the runtime's default is 50
            "repetition_penalty": sampling.repetition_penalty,
            "end_id": self._layout.end_of_speech,
            "request_id": request_id,
        }
        if sampling.seed is not None:
            model_input["seed"] = sampling.seed
        return model_input

    async def _text(self, model_input: dict[str, Any], request_id: str) -> AsyncGenerator[str, None]:
        """The answer's text as it comes. Whatever goes wrong is an EngineError; leaving closes the runtime's stream."""
        answer: AsyncIterator[str | bytes] | None = None
        closed = asyncio.Event()
        try:
            response = await self._readers.wait(lambda: self._engine.predict(model_input, _request(closed)), request_id)
            answer = _text_iterator(response, request_id)
            while (chunk := await self._readers.next(answer, request_id)) is not None:
                yield chunk.decode("utf-8", "replace") if isinstance(chunk, bytes) else str(chunk)
        finally:
            closed.set()
            close = getattr(answer, "aclose", None)
            if close:
                await close()

    def _count_stray(self, parser: CustomTokenParser, request_id: str) -> None:
        if parser.stray:
            self.stray += parser.stray
            log.warning("request %s: %d characters of the answer were no speech tokens", request_id, parser.stray)


def _request(closed: asyncio.Event) -> Request:
    """The HTTP request that the runtime wants to watch: its client leaves when `closed` is set.

    The client's own request would not do, since one of them makes several calls here, each with an end of its own.
    """

    async def receive() -> dict[str, str]:
        await closed.wait()
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    return Request(scope, receive)


def _text_iterator(response: Any, request_id: str) -> AsyncIterator[str | bytes]:
    """The text in what `predict` returned: an async generator, or a streaming response around one."""
    body = getattr(response, "body_iterator", response)
    if not hasattr(body, "__anext__"):
        raise EngineError(
            f"request {request_id}: the TensorRT-LLM runtime returned {type(response).__name__} instead of a stream of "
            "text; config.yaml needs the tag force-legacy-api-non-openai-compatible"
        )
    return body
