"""The default scheduler, and the part that it shares with the dynamic batcher: a queue in front of equal instances."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from edge_serve.scheduling.core import NOTHING, Decision, Entry, QueuePolicy, Run, Scheduler, Wait
from edge_serve.scheduling.queue import Instances, PriorityQueue, stopping
from edge_serve.scheduling.seats import SecondSeats


class QueuedScheduler(Scheduler):
    """Implements all of `core.Scheduler` but `next`.

    Args:
        queue: None = one without limits and timeouts.
    """

    def __init__(self, instances: int, passive: Collection[int] = (), queue: PriorityQueue | None = None) -> None:
        self._queue = PriorityQueue(QueuePolicy()) if queue is None else queue
        self._instances = Instances(instances, passive)
        self._stopping = False
        self._seats = SecondSeats()

    def add(self, entry: Entry, now_ns: int) -> None:
        """See `core.Scheduler`. Requests run in the order of their arrival."""
        self._enqueue(entry, 0, now_ns)

    def prefer(self, rank: Callable[[int], Any]) -> None:
        """See `core.Scheduler`."""
        self._instances.rank = rank

    def ran(self, instance: int, ready_ns: int, end_ns: int) -> None:
        """See `core.Scheduler`."""
        self._seats.ran(instance, ready_ns, end_ns)

    def done(self, instance: int) -> None:
        """See `core.Scheduler`."""
        if self._seats.end(instance):
            self._instances.done(instance)

    def lost(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._seats.lost(instance)
        self._instances.lost(instance)

    def back(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._instances.back(instance)

    def is_lost(self) -> bool:
        """See `core.Scheduler`."""
        return self._instances.is_lost()

    def add_instance(self, instance: int, *, passive: bool = False) -> None:
        """See `core.Scheduler`."""
        self._instances.add(instance, passive=passive)

    def add_second_seat(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._seats.add(instance)

    def retire_instance(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._seats.close(instance)
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

    def has_idle(self) -> bool:
        """See `core.Scheduler`."""
        return bool(self._instances.idle)

    def _enqueue(self, entry: Entry, level: int, now_ns: int) -> None:
        if self._stopping:
            raise stopping(entry.request)
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
        self._seats._check()


#: how long the requests of one hop to a worker may execute together, nanoseconds: about four hops
BURST_NS = 200_000
#: how many requests one hop may have: they fail with the worker, and cannot be moved to another instance
BURST_REQUESTS = 32
#: if such a hop takes longer than this, other instances get work
OVERDUE_NS = 1_000_000
#: an instance that takes less for a request than this waits for the front end anyway, nanoseconds
FASTER_NS = 40_000


class DirectScheduler(QueuedScheduler):
    """Schedules models that configure no batcher: no limit, no timeouts, no priorities; deadlines of requests count.

    Each request is an execution of its own. While executions are short beside the hop to the worker, waiting requests
    travel together in one `Run` with `each`, so that the hop is paid once. One instance takes them all, because a
    second one would only contend with it, unless a run takes longer than planned. That instance gets its next run
    before it has finished one, so that it need not sleep until its reply has been read and answered. If it is faster
    than the front end, the next run has at least as many requests, because larger runs cost the front end less. Fewer
    requests wait for the reply.

    Where instances have second seats, waiting requests take any free seat.

    Args:
        calls: whether executions may call other models, and so wait for this one. Then no run is sent ahead, because a
            request that is sent ahead to an instance that waits for it would never be answered.
    """

    def __init__(self, instances: int, passive: Collection[int] = (), *, calls: bool = False) -> None:
        super().__init__(instances, passive)
        self._mean_ns = BURST_NS
        self._burst = 1
        self._started_ns = 0
        #: requests of the latest run
        self._in_hand = 0
        #: the instance that gets short executions while it is busy; -1 = none
        self._current = -1
        #: instances that have a second run, which they start when the first is done
        self._ahead: set[int] = set()
        self._looks_ahead = not calls

    @property
    def gathers(self) -> bool:
        """See `core.Scheduler`."""
        return self._current >= 0 and self._burst > 1

    def prefer(self, rank: Callable[[int], Any]) -> None:
        """See `core.Scheduler`. No run is sent ahead, because the rate limiter counts one run for each instance."""
        self._looks_ahead = False
        super().prefer(rank)

    def done(self, instance: int) -> None:
        """See `core.Scheduler`."""
        if instance in self._ahead:
            self._ahead.remove(instance)
            return
        if instance == self._current:
            self._current = -1
        super().done(instance)

    def lost(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._ahead.discard(instance)
        if instance == self._current:
            self._current = -1
        super().lost(instance)

    def retire_instance(self, instance: int) -> None:
        """See `core.Scheduler`. A run that was sent ahead is its last."""
        if instance == self._current:
            self._current = -1
        super().retire_instance(instance)

    def pace(self, execution_ns: int) -> None:
        """See `core.Scheduler`. The mean of recent executions decides how many requests may travel together."""
        self._mean_ns += (execution_ns - self._mean_ns) // 8
        self._burst = min(BURST_REQUESTS, BURST_NS // max(1, self._mean_ns)) or 1

    def next(self, now_ns: int) -> Decision:
        """See `core.Scheduler`."""
        refused = self._queue.expire(now_ns)
        if refused is not None:
            return refused
        if not self._queue:
            return self._wait(0)
        if self._seats.instances:
            return self._next_seated(now_ns)
        if self._burst == 1:
            return Run(self._instances.take(), self._queue.take(1)) if self._instances.idle else self._wait(0)
        return self._next_short(now_ns)

    def _next_seated(self, now_ns: int) -> Decision:
        instance = self._instances.take() if self._instances.idle else self._seats.soonest()[0]
        if instance < 0:
            return self._wait(0)
        entries = self._queue.take(min(self._burst, len(self._queue)))
        run = Run(instance, entries, each=len(entries) > 1)
        self._seats.start(run, now_ns)
        return run

    def _next_short(self, now_ns: int) -> Decision:
        idle, instance = self._instances.idle, self._current
        waiting = len(self._queue)
        if self._looks_ahead and instance >= 0 and instance not in self._ahead and self._is_worth(waiting):
            self._ahead.add(instance)
        elif idle and (instance < 0 or now_ns >= self._started_ns + OVERDUE_NS):
            self._current = instance = self._instances.take()
        else:
            return self._wait(self._started_ns + OVERDUE_NS if idle else 0)
        self._started_ns = now_ns
        entries = self._queue.take(min(self._burst, waiting))
        self._in_hand = len(entries)
        return Run(instance, entries, each=len(entries) > 1)

    def _is_worth(self, waiting: int) -> bool:
        """Return whether to send a run of so many requests ahead."""
        return waiting >= min(self._in_hand, self._burst) or self._mean_ns >= FASTER_NS

    def _check(self) -> None:
        super()._check()
        assert self._ahead.isdisjoint(self._instances.idle)
        assert self._current not in self._instances.idle
