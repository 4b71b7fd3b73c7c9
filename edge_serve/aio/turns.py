"""Long work on the event loop, in pieces: other callbacks have their turn in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

#: seconds of one piece
PIECE = 0.001


async def gathered(items: Iterable[T]) -> list[T]:
    """Return the items; other callbacks have their turn while they are made (`in_pieces`)."""
    found: list[T] = []
    async for made in in_pieces(items):
        found += made
    return found


async def in_pieces(items: Iterable[T], seconds: float = PIECE) -> AsyncIterator[list[T]]:
    """Iterate over `items` and yield them in lists, each of what was made in `seconds`; the loop has a turn after each.

    Items may change things that other callbacks change too: nothing runs while a list is made.
    """
    made: list[T] = []
    end = time.perf_counter() + seconds
    for item in items:
        made.append(item)
        if time.perf_counter() >= end:
            yield made
            made = []
            await asyncio.sleep(0)
            end = time.perf_counter() + seconds
    yield made
