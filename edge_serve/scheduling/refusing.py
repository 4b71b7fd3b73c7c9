"""The scheduler of a model whose way of scheduling is not offered: it loads, and each request is told why not."""

from __future__ import annotations

from edge_serve.errors import EdgeServeError
from edge_serve.scheduling.core import NOTHING, Decision, Entry


class RefusingScheduler:
    """Implements `core.Scheduler` without ever running anything.

    Args:
        error: what every request is answered.
    """

    def __init__(self, error: EdgeServeError) -> None:
        self._error = error

    def add(self, entry: Entry, now_ns: int) -> None:
        """See `core.Scheduler`."""
        raise type(self._error)(self._error.message)

    def next(self, now_ns: int) -> Decision:
        """See `core.Scheduler`."""
        return NOTHING

    def done(self, instance: int) -> None:
        """See `core.Scheduler`."""

    def lost(self, instance: int) -> None:
        """See `core.Scheduler`."""

    def back(self, instance: int) -> None:
        """See `core.Scheduler`."""

    def cancel(self, entry: Entry) -> bool:
        """See `core.Scheduler`."""
        return False

    def stop(self) -> None:
        """See `core.Scheduler`."""

    def drain(self) -> list[Entry]:
        """See `core.Scheduler`."""
        return []

    def pending(self) -> int:
        """See `core.Scheduler`."""
        return 0
