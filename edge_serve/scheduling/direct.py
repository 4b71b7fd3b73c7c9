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


class DirectScheduler(QueuedScheduler):
    """For models that configure no batcher: no limit, no timeouts, no priorities; deadlines of requests count.

    Each request is an execution of its own. While executions are short beside the hop to the worker, waiting requests
    travel together in one `Run` with `each`, so that the hop is paid once.
    """

    def __init__(self, instances: int, passive: Collection[int] = ()) -> None:
        super().__init__(PriorityQueue(QueuePolicy()), instances, passive)
        self._mean_ns = BURST_NS
        self._burst = 1

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
        idle = self._instances.idle
        if self._queue and idle:
            count = 1
            if self._burst > 1:
                count = min(self._burst, -(-len(self._queue) // len(idle)))
            return Run(self._instances.take(), self._queue.take(count), each=count > 1)
        return self._wait(0)
