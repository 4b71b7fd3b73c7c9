"""The default scheduler: each request runs alone, in the order of arrival, on any idle instance."""

from __future__ import annotations

from collections.abc import Collection

from edge_serve.scheduling.core import Decision, Entry, QueuePolicy, Run
from edge_serve.scheduling.queue import PriorityQueue
from edge_serve.scheduling.queued import QueuedScheduler

#: what the requests of one hop to a worker may take together, nanoseconds: about four hops
BURST_NS = 200_000
#: and how many they may be: all of them fail with their worker
BURST_REQUESTS = 8
#: when such a hop takes longer than this, other instances help
OVERDUE_NS = 1_000_000


class DirectScheduler(QueuedScheduler):
    """For models that configure no batcher: no limit, no timeouts, no priorities; deadlines of requests count.

    Each request is an execution of its own. While executions are short beside the hop to the worker, waiting requests
    travel together in one `Run` with `each`, so that the hop is paid once; and one instance takes them all, because a
    second one would only contend with it, unless a run takes longer than it was to.
    """

    def __init__(self, instances: int, passive: Collection[int] = ()) -> None:
        super().__init__(PriorityQueue(QueuePolicy()), instances, passive)
        self._mean_ns = BURST_NS
        self._burst = 1
        self._started_ns = 0

    def pace(self, execution_ns: int) -> None:
        """An execution took this long; the mean of the last ones decides how many may travel together."""
        self._mean_ns += (execution_ns - self._mean_ns) // 8
        self._burst = min(BURST_REQUESTS, BURST_NS // max(1, self._mean_ns)) or 1

    def add(self, entry: Entry, now_ns: int) -> None:
        """See `core.Scheduler`."""
        self._enqueue(entry, 0, now_ns)

    def next(self, now_ns: int) -> Decision:
        """See `core.Scheduler`."""
        refused = self._queue.expire(now_ns)
        if refused is not None:
            return refused
        if not self._queue or not self._instances.idle:
            return self._wait(0)
        if self._burst == 1:
            return Run(self._instances.take(), self._queue.take(1))
        if self._instances.busy and now_ns < self._started_ns + OVERDUE_NS:
            return self._wait(self._started_ns + OVERDUE_NS)
        self._started_ns = now_ns
        entries = self._queue.take(min(self._burst, len(self._queue)))
        return Run(self._instances.take(), entries, each=len(entries) > 1)
