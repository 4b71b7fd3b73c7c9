"""Detects that a version has had no worker for too long, so that its requests fail instead of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from edge_serve.errors import Unavailable

#: how long requests wait while no instance has a worker; an immediate restart takes less
OUTAGE_SECONDS = 5.0


class WorkerOutage:
    """The outage of one version: the time in which no instance has a worker.

    Args:
        on_long: called when the outage has lasted for OUTAGE_SECONDS.

    Attributes:
        is_long: whether the outage has lasted so long, and has not ended.
    """

    def __init__(self, model: str, loop: asyncio.AbstractEventLoop, on_long: Callable[[], None]) -> None:
        self.is_long = False
        self._model = model
        self._loop = loop
        self._on_long = on_long
        self._lost: set[int] = set()
        #: the timer of the present outage, perhaps expired; None = some instance has a worker
        self._timer: asyncio.TimerHandle | None = None

    def lost(self, instance: int, instances: int) -> None:
        """Note that an instance, of so many `instances`, has no worker."""
        self._lost.add(instance)
        self._update(instances)

    def back(self, instance: int) -> None:
        """Note that an instance has a worker again."""
        self._lost.discard(instance)
        self._end()

    def remove(self, instance: int, instances: int) -> None:
        """Note that an instance was removed, and so many are left."""
        self._lost.discard(instance)
        self._update(instances)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def error(self) -> Unavailable:
        """Return the error for requests that do not wait any longer."""
        return Unavailable(
            f"model '{self._model}' has had no worker for {OUTAGE_SECONDS:g} s: it keeps dying or does not open "
            "again, the server's log says why"
        )

    def _update(self, instances: int) -> None:
        if not self._lost or len(self._lost) < instances:
            self._end()
        elif self._timer is None:
            self._timer = self._loop.call_later(OUTAGE_SECONDS, self._on_timer)

    def _end(self) -> None:
        self.is_long = False
        self.stop()
        self._timer = None

    def _on_timer(self) -> None:
        self.is_long = True
        self._on_long()
