"""The strategy `direct`: a sequence's slot is its row in every batch of its instance.

Empty rows below the last one with a request are filled with null requests, so that the model finds each sequence in its
row. So are rows with a request of another shape, which waits for the next batch. A batch is sent when enough slots have
a request (`minimum_slot_utilization`), or once the oldest has waited `max_queue_delay_microseconds`. Unlike in Triton,
the oldest request, not the lowest row, decides the shape of a batch, so that no request waits for ever.
"""

from __future__ import annotations

from collections.abc import Collection

from edge_serve.scheduling.core import Run, SequenceBatching
from edge_serve.scheduling.sequence.sequence import Sequence
from edge_serve.scheduling.sequence.sequences import SequenceScheduler


class DirectSequences(SequenceScheduler):
    """Schedules `sequence_batching { direct {} }`, and `sequence_batching` without a strategy."""

    def __init__(self, batching: SequenceBatching, instances: int, passive: Collection[int] = ()) -> None:
        rows = max(1, batching.max_batch_size)
        super().__init__(batching, rows, instances, passive)
        self._enough = batching.minimum_slot_utilization * rows
        self._delay_ns = batching.max_queue_delay_us * 1000 if batching.minimum_slot_utilization else 0
        #: of each instance: sequences with something to run, by slot
        self._waiting: dict[int, dict[int, Sequence]] = {n: {} for n in range(instances)}

    def _changed(self, sequence: Sequence) -> None:
        waiting = self._waiting[sequence.instance]
        if sequence.queue and sequence.running is None:
            waiting[sequence.slot] = sequence
        else:
            waiting.pop(sequence.slot, None)

    def _left(self, sequence: Sequence) -> None:
        self._waiting[sequence.instance].pop(sequence.slot, None)

    def _added(self, instance: int) -> None:
        self._waiting[instance] = {}

    def _removed(self, instance: int) -> None:
        del self._waiting[instance]

    def _decide(self, now_ns: int) -> Run | int:
        until_ns = 0
        for instance in reversed(self._instances.idle):
            waiting = self._waiting[instance]
            if not waiting:
                continue
            due_ns = self._due_ns(waiting)
            if due_ns <= now_ns:
                return self._batch(instance)
            until_ns = min(until_ns or due_ns, due_ns)
        return until_ns

    def _due_ns(self, waiting: dict[int, Sequence]) -> int:
        if not self._delay_ns or len(waiting) >= self._enough:
            return 0
        return min(sequence.queue[0].arrival_ns for sequence in waiting.values()) + self._delay_ns

    def _batch(self, instance: int) -> Run:
        self._instances.use(instance)
        waiting = self._waiting[instance]
        if len(waiting) == 1:
            ((_, sequence),) = waiting.items()
            waiting.clear()
            return self._run(instance, [sequence], sequence.slot + 1)
        oldest = min(waiting.values(), key=lambda sequence: sequence.queue[0].arrival_ns)
        key = oldest.queue[0].shape_key
        slots = sorted(slot for slot, sequence in waiting.items() if sequence.queue[0].shape_key == key)
        rows = max(waiting) + 1
        return self._run(instance, [waiting.pop(slot) for slot in slots], rows)

    def _check(self) -> None:
        super()._check()
        for instance, slot, sequence in self.slots:
            ready = bool(sequence.queue) and sequence.running is None
            assert (self._waiting[instance].get(slot) is sequence) == ready
        assert sum(map(len, self._waiting.values())) <= len(self._queued)
