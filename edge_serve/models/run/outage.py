"""The time in which no instance of a version has a worker: after a while nobody waits for one any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from edge_serve.errors import Unavailable

#: how long requests wait while no instance has a worker; a worker that restarts at once is back sooner
ABSENCE_SECONDS = 5.0


class WorkerOutage:
    """Of one version.

    Args:
        on_long: called when it has lasted for ABSENCE_SECONDS.

    Attributes:
        is_long: it has lasted so long and has not ended.
    """

    def __init__(self, model: str, loop: asyncio.AbstractEventLoop, on_long: Callable[[], None]) -> None:
        self.is_long = False
        self._model = model
        self._loop = loop
        self._on_long = on_long
        self._lost: set[int] = set()
        #: rings when it has lasted long, or has rung; None = some instance has a worker
        self._timer: asyncio.TimerHandle | None = None

    def lost(self, instance: int, instances: int) -> None:
        """One of so many `instances` has no worker."""
        self._lost.add(instance)
        if self._timer is None and len(self._lost) >= instances:
            self._timer = self._loop.call_later(ABSENCE_SECONDS, self._on_timer)

    def back(self, instance: int) -> None:
        """It has one again."""
        self._lost.discard(instance)
        self.is_long = False
        self.stop()
        self._timer = None

    def remove(self, instance: int, instances: int) -> None:
        """An instance was removed; so many are left."""
        self._lost.discard(instance)
        if self._timer is None and self._lost and len(self._lost) >= instances:
            self._timer = self._loop.call_later(ABSENCE_SECONDS, self._on_timer)

    def stop(self) -> None:
        """Nobody needs to be told any more of what has begun."""
        if self._timer is not None:
            self._timer.cancel()

    def error(self) -> Unavailable:
        """What is told to those that do not wait any longer."""
        return Unavailable(
            f"model '{self._model}' has had no worker for {ABSENCE_SECONDS:g} s: it keeps dying or does not open "
            "again, the server's log says why"
        )

    def _on_timer(self) -> None:
        self.is_long = True
        self._on_long()
