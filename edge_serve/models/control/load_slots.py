"""How many versions may load at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class LoadSlots:
    """Slots that loads wait for. A load that is late gives its slot to others, and goes on without one."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        #: for each slot that is taken, where to return it, and since when
        self._taken: dict[object, tuple[asyncio.Semaphore, float]] = {}

    @asynccontextmanager
    async def take(self, awaited: asyncio.Event) -> AsyncIterator[None]:
        """Hold a slot while the context lasts, once one is free.

        Args:
            awaited: see `ModelRecord`. Once it is set, the load does not wait for a slot, and begins without one.
        """
        free, holder = self._free, object()
        if not awaited.is_set() and await _acquire(free, awaited):
            self._taken[holder] = free, time.monotonic()
        try:
            yield
        finally:
            if self._taken.pop(holder, None) is not None:
                free.release()

    def is_full(self) -> bool:
        """Return whether the next load has to wait."""
        return self._free.locked()

    def resize(self, count: int) -> None:
        """Change how many loads may begin at the same time. Those that wait already keep to the number before."""
        self._free = asyncio.Semaphore(count)

    def release_late(self, taken_before: float) -> None:
        """Give the slots that were taken before a time (`time.monotonic`) to the loads that wait."""
        for holder, (free, since) in list(self._taken.items()):
            if since < taken_before:
                del self._taken[holder]
                free.release()


async def _acquire(free: asyncio.Semaphore, awaited: asyncio.Event) -> bool:
    """Acquire a slot, unless `awaited` is set before. Return whether there is one."""
    if not free.locked():
        return await free.acquire()
    acquiring, waiting = asyncio.ensure_future(free.acquire()), asyncio.ensure_future(awaited.wait())
    acquired = False
    try:
        await asyncio.wait((acquiring, waiting), return_when=asyncio.FIRST_COMPLETED)
        acquired = acquiring.done()
    finally:
        waiting.cancel()
        if not acquired and not acquiring.cancel():  # cancelled just as the slot came
            free.release()
    return acquired
