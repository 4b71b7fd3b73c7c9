"""The common part of the schedulers of stateless models: a queue in front of equal instances."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from edge_serve.errors import Unavailable
from edge_serve.scheduling.core import NOTHING, Entry, Scheduler, Wait, label
from edge_serve.scheduling.instances import Instances, RankedInstances
from edge_serve.scheduling.queue import PriorityQueue


class QueuedScheduler(Scheduler):
    """Implements all of `core.Scheduler` but `add` and `next`."""

    def __init__(self, queue: PriorityQueue, instances: int, passive: Collection[int] = ()) -> None:
        self._queue = queue
        self._instances = Instances(instances, passive)
        self._stopping = False

    def prefer(self, rank: Callable[[int], Any]) -> None:
        """See `core.Scheduler`."""
        self._instances = RankedInstances(self._instances.count(), self._instances.passive(), rank)

    def done(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._instances.done(instance)

    def lost(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._instances.lost(instance)

    def back(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._instances.back(instance)

    def add_instance(self, instance: int, *, passive: bool = False) -> None:
        """See `core.Scheduler`."""
        self._instances.add(instance, passive=passive)

    def retire_instance(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._instances.retire(instance)

    def has_instance(self, instance: int) -> bool:
        """See `core.Scheduler`."""
        return self._instances.has(instance)

    def cancel(self, entry: Entry) -> bool:
        """See `core.Scheduler`."""
        return self._queue.cancel(entry)

    def stop(self) -> None:
        """See `core.Scheduler`."""
        self._stopping = True

    def drain(self) -> list[Entry]:
        """See `core.Scheduler`."""
        return self._queue.take(len(self._queue))

    def pending(self) -> int:
        """See `core.Scheduler`."""
        return len(self._queue)

    def free(self) -> bool:
        """See `core.Scheduler`."""
        return bool(self._instances.idle)

    def _enqueue(self, entry: Entry, level: int, now_ns: int) -> None:
        if self._stopping:
            raise Unavailable(
                f"{label(entry.request)}Server is stopping, scheduler for model has stopped accepting new inference"
                " requests"
            )
        self._queue.add(entry, level, now_ns)

    def _wait(self, until_ns: int) -> Wait:
        """Wait for `until_ns` (0 = no such time) or the next expiry, whichever is earlier."""
        expiry_ns = self._queue.next_expiry_ns()
        if expiry_ns and (not until_ns or expiry_ns < until_ns):
            until_ns = expiry_ns
        return Wait(until_ns) if until_ns else NOTHING

    def _check(self) -> None:
        self._queue._check()
        self._instances._check()
