"""From an engine's thread to the event loops of its requests: one call to a loop, however many streams have news."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from orpheus_serving.errors import EngineError

Item = list[int] | EngineError | None  # None ends the stream


class Listener(Protocol):
    loop: asyncio.AbstractEventLoop
    lists: asyncio.Queue[Item]
    closed: bool


def deliver(news: Iterable[tuple[Listener, Item]]) -> None:
    """Put each item into its request's queue, on the request's loop. Requests of a loop that is gone are closed."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Listener, Item]]] = {}
    for listener, item in news:
        by_loop.setdefault(listener.loop, []).append((listener, item))
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put, items)
        except RuntimeError:  # the loop was closed under its requests: nobody is left to read them
            for listener, _ in items:
                listener.closed = True


def _put(items: list[tuple[Listener, Item]]) -> None:
    for listener, item in items:
        listener.lists.put_nowait(item)
