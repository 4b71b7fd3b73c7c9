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
    async def take(self) -> AsyncIterator[None]:
        """Hold a slot while the context lasts, once one is free."""
        free, holder = self._free, object()
        await free.acquire()
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
