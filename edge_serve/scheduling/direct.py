"""The default scheduler: each request runs alone, in the order of arrival, on any idle instance."""

from __future__ import annotations

from collections.abc import Collection

from edge_serve.scheduling.core import Decision, Entry, QueuePolicy, Run
from edge_serve.scheduling.queue import PriorityQueue
from edge_serve.scheduling.queued import QueuedScheduler


class DirectScheduler(QueuedScheduler):
    """For models that configure no batcher: no limit, no timeouts, no priorities; deadlines of requests count."""

    def __init__(self, instances: int, passive: Collection[int] = ()) -> None:
        super().__init__(PriorityQueue(QueuePolicy()), instances, passive)

    def add(self, entry: Entry, now_ns: int) -> None:
        """See `core.Scheduler`."""
        self._enqueue(entry, 0, now_ns)

    def next(self, now_ns: int) -> Decision:
        """See `core.Scheduler`."""
        refused = self._queue.expire(now_ns)
        if refused is not None:
            return refused
        if self._queue and self._instances.idle:
            return Run(self._instances.take(), self._queue.take(1))
        return self._wait(0)
