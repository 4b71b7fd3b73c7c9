"""Detects that a version has had no worker for too long, so that its requests fail instead of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from edge_serve.errors import Unavailable

#: how long requests wait while no instance has a worker; an immediate restart takes less
OUTAGE_SECONDS = 5.0


class WorkerOutage:
    """The outage of one version: the time in which no instance that takes work has a worker.

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
        #: the timer of the present outage, perhaps expired; None = some instance has a worker
        self._timer: asyncio.TimerHandle | None = None

    def update(self, lost: bool) -> None:
        """Start the outage if all instances have lost their workers (`lost`) and it has not started; else end it."""
        if not lost:
            self.is_long = False
            self.stop()
            self._timer = None
        elif self._timer is None:
            self._timer = self._loop.call_later(OUTAGE_SECONDS, self._on_timer)

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

    def _on_timer(self) -> None:
        self.is_long = True
        self._on_long()
