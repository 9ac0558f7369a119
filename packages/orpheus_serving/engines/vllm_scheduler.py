"""vLLM's scheduler, but a request's ids leave the engine process a frame at a time.

    a step's output of each request --held until there are seven, or the end--> one message to the front end

The front end's work is a message a step and a record a request in it, on the event loop that also serves HTTP. A record a
frame instead of a record an id takes most of that away.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

FRAME = 7


class FrameScheduler(AsyncScheduler):
    """The scheduler class by its name: `orpheus_serving.engines.vllm_scheduler.FrameScheduler`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: dict[str, list[int]] = {}

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        batches = super().update_from_output(scheduler_output, model_runner_output)
        kept = {}
        for client, batch in batches.items():
            batch.outputs = [output for output in batch.outputs if self._leaves(output)]
            if batch.outputs or batch.finished_requests or batch.scheduler_stats is not None:
                kept[client] = batch
        return kept

    def _leaves(self, output: Any) -> bool:
        """Whether the output goes out now, with the ids held so far before its own; else hold its ids."""
        held = self._held.get(output.request_id)
        if held is None:
            held = self._held[output.request_id] = []
        held += output.new_token_ids
        if output.finish_reason is None and len(held) < FRAME:
            return False
        output.new_token_ids = held
        del self._held[output.request_id]
        return True

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        finished = super().finish_requests(request_ids, finished_status)
        for request_id, _ in finished:
            self._held.pop(request_id, None)
        return finished
