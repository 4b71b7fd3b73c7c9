"""Pages of arenas that workers have registered with a device, and the pool that limits them (ADR 26).

A device goes on with the pages of the moment of registration. If `Arena.trim` returned them, the device would read and
write pages that no process has. So a worker asks before it registers, and the arena never trims these pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edge_serve.errors import Unavailable
from edge_serve.records import slotted
from edge_serve.workers.memory.pages import PAGE


@slotted
class PinnedPool:
    """Bytes that all workers may register together (`--pinned-memory-pool-byte-size`)."""

    limit: int = 0
    used: int = 0


class PinnedArena(Protocol):
    """The part of an arena that `PinnedPages` uses."""

    name: str
    size: int

    def pin(self, first: int, pages: int, done: Callable[[Exception | None], None]) -> None: ...


#: takes the bytes that are kept, or why no more are
Kept = Callable[[int | Unavailable], None]


class PinnedPages:
    """Which pages at the low end of an arena stay, and for which workers.

    Attributes:
        count: pages that are never trimmed.
    """

    __slots__ = ("_arena", "_holders", "_pool", "count")

    def __init__(self, arena: PinnedArena, pool: PinnedPool) -> None:
        self._arena = arena
        self._pool = pool
        self._holders: dict[object, int] = {}
        self.count = 0

    def acquire(self, holder: object, nbytes: int, kept: Kept) -> None:
        """Keep the first `nbytes` for a worker, and call `kept` once no thread returns any of them and all have memory.

        Args:
            holder: identifies the worker and its model for `release`.
        """
        pages = min(-(-nbytes // PAGE), self._arena.size // PAGE)
        first, more = self.count, pages - self.count
        if more <= 0:
            first, more = 0, 0  # a request of another worker for them may be under way: it is waited for
        pool = self._pool
        if pool.used + more * PAGE > pool.limit:
            kept(
                Unavailable(
                    f"{pool.used} of {pool.limit} bytes of pinned memory are in use, {more * PAGE} more are needed: "
                    "raise --pinned-memory-pool-byte-size"
                )
            )
            return
        pool.used += more * PAGE
        before = self._holders.get(holder, 0)
        self._holders[holder] = max(pages, before)
        self.count = max(pages, self.count)  # from here on nothing of it is trimmed

        def done(error: Exception | None) -> None:
            if error is None:
                kept(pages * PAGE)
                return
            if holder in self._holders:
                self._holders[holder] = before
                self._settle()
            kept(Unavailable(f"no memory for the pinned pages of model '{self._arena.name}': {error}"))

        self._arena.pin(first, pages, done)

    def release(self, holder: object) -> None:
        """Release the pages of a worker that has unregistered them, or has ended."""
        if self._holders.pop(holder, None) is not None:
            self._settle()

    def _settle(self) -> None:
        pages = max(self._holders.values(), default=0)
        self._pool.used -= (self.count - pages) * PAGE
        self.count = pages
