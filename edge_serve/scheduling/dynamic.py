"""The dynamic batcher: requests that wait together run together.

Rules: triton-inference-server/core src/dynamic_batch_scheduler.cc (GetDynamicBatch). A batch is a prefix of the queue,
so it ends at the first entry of another shape; requests are never split. If an instance is idle, the first of these
rules that applies sends a batch: a preferred size that can be reached; a prefix that cannot grow; any prefix whose
oldest entry has waited `max_queue_delay`, or any at all when there is no delay. Otherwise the batch waits. Unlike
Triton, no batch is formed before an instance is idle, so that entries that arrive meanwhile can still join.

An instance that takes its next batch while one runs (ADR 27) counts as idle from shortly before the expected end of
that one, and for a batch that is full at once. Where there are priorities a full batch waits too, because a request of
a higher priority may still arrive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Hashable, Sequence

from edge_serve.records import slotted
from edge_serve.scheduling.core import Decision, DynamicBatching, Entry, Run
from edge_serve.scheduling.direct import QueuedScheduler
from edge_serve.scheduling.queue import PriorityQueue
from edge_serve.scheduling.seats import EAGER_NS, SecondSeats


@slotted
class GrowingBatch:
    """The reason why the whole queue, one batch that may still grow, is not sent. Saves examining it again.

    Attributes:
        until_ns: when the delay of the oldest entry is over.
        rows: a queue of so many rows is examined again.
        shape_key: the key of all entries; another one ends the batch.
        version: the version of the queue.
    """

    until_ns: int
    rows: int
    shape_key: Hashable
    version: int


class DynamicScheduler(QueuedScheduler):
    """Schedules `dynamic_batching`, for models with and without a batch dimension."""

    def __init__(self, batching: DynamicBatching, instances: int, passive: Collection[int] = ()) -> None:
        policies = batching.policies if batching.priority_levels else {}
        super().__init__(instances, passive, PriorityQueue(batching.default_policy, policies))
        self._max_rows = max(1, batching.max_batch_size)
        self._preferred = sorted(set(batching.preferred_batch_sizes)) or [self._max_rows]
        self._delay_ns = batching.max_queue_delay_us * 1000
        self._levels = batching.priority_levels
        self._default_level = batching.default_priority_level if batching.priority_levels else 0
        self._growing: GrowingBatch | None = None
        if batching.eager:
            self._seats = SecondSeats(EAGER_NS)

    def add(self, entry: Entry, now_ns: int) -> None:
        """See `core.Scheduler`."""
        level = entry.request.priority
        if not 0 < level <= self._levels:
            level = self._default_level
        self._enqueue(entry, level, now_ns)
        growing = self._growing
        if growing is not None and (
            self._queue.rows >= growing.rows
            or entry.shape_key != growing.shape_key
            or entry.arrival_ns + self._delay_ns < growing.until_ns  # a sequence's next request may be an old one
        ):
            self._growing = None

    def next(self, now_ns: int) -> Decision:
        """See `core.Scheduler`."""
        refused = self._queue.expire(now_ns)
        if refused is not None:
            return refused
        if not self._queue:
            return self._wait(0)
        second = -1
        if not self._instances.idle:
            if not self._seats.instances:  # asked after each arrival while the only instance is busy
                return self._wait(0)
            second, due_ns = self._seats.soonest()
            if second < 0:
                return self._wait(0)
            if now_ns < due_ns and (self._levels or self._queue.rows < self._preferred[-1]):
                return self._wait(due_ns)
        growing = self._growing
        if growing is None or growing.until_ns <= now_ns or growing.version != self._queue.version:
            ready = self._ready(now_ns)
            if isinstance(ready, int):
                self._growing = None
                run = Run(self._instances.take() if second < 0 else second, self._queue.take(ready))
                self._seats.start(run, now_ns)
                return run
            self._growing = growing = ready
        return self._wait(growing.until_ns)

    def grow(self, entries: Sequence[Entry]) -> list[Entry]:
        """See `core.Scheduler`. A batch grows up to the largest preferred size."""
        rows = sum(entry.rows or 1 for entry in entries)
        count = 0
        for entry in self._queue.walk():
            rows += entry.rows or 1
            if rows > self._preferred[-1] or entry.shape_key != entries[0].shape_key:
                break
            count += 1
        return self._queue.take(count)

    def _ready(self, now_ns: int) -> int | GrowingBatch:
        """Return how many entries to send now, or why none."""
        largest, preferred, max_rows = self._preferred[-1], self._preferred, self._max_rows
        count = rows = best = 0
        oldest_ns, shape_key, can_grow = now_ns, None, True
        for entry in self._queue.walk():
            total = rows + (entry.rows or 1)
            if count:
                if total > largest and not best:
                    best = count
                if total > max_rows or entry.shape_key != shape_key:
                    can_grow = False
                    break
            else:
                shape_key = entry.shape_key
            rows = total
            count += 1
            if entry.arrival_ns < oldest_ns:
                oldest_ns = entry.arrival_ns
            if rows in preferred:
                best = count
            if rows >= largest and not self._delay_ns:
                break
        due_ns = oldest_ns + self._delay_ns
        if best and (now_ns < due_ns or not self._delay_ns):
            return best
        if not can_grow or rows >= largest or due_ns <= now_ns:
            return count
        return GrowingBatch(due_ns, preferred[bisect_right(preferred, rows)], shape_key, self._queue.version)

    def _check(self) -> None:
        super()._check()
        if self._growing is not None and self._growing.version == self._queue.version:
            waiting = list(self._queue.walk())
            assert {entry.shape_key for entry in waiting} == {self._growing.shape_key}
            assert self._queue.rows < self._growing.rows <= self._max_rows
            assert self._growing.until_ns == min(entry.arrival_ns for entry in waiting) + self._delay_ns
