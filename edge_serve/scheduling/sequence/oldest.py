"""The strategy `oldest`: each instance has candidate sequences, and a dynamic batcher runs the oldest of their
requests.

A sequence has at most one request in the batcher or running, so its requests run one after the other. Batches of one
instance run in the order in which its batcher formed them, one at a time, which preserves the order of responses.
"""

from __future__ import annotations

from collections.abc import Collection

from edge_serve.scheduling.core import DynamicBatching, Run, SequenceBatching, Wait
from edge_serve.scheduling.dynamic import DynamicScheduler
from edge_serve.scheduling.sequence.sequence import Sequence
from edge_serve.scheduling.sequence.sequences import SequenceScheduler


class OldestSequences(SequenceScheduler):
    """Schedules `sequence_batching { oldest { ... } }`."""

    def __init__(self, batching: SequenceBatching, instances: int, passive: Collection[int] = ()) -> None:
        rows = max(1, batching.max_batch_size)
        super().__init__(batching, batching.max_candidate_sequences or rows, instances, passive)
        self._rules = DynamicBatching(rows, batching.preferred_batch_sizes, batching.max_queue_delay_us)
        self._batchers = {n: self._new_batcher() for n in range(instances)}

    def _changed(self, sequence: Sequence) -> None:
        head = sequence.queue[0] if sequence.queue else None
        if sequence.offered is head and head is not None:
            return
        self._withdraw(sequence)
        if head is not None and sequence.running is None:
            self._batchers[sequence.instance].add(head, 0)
            sequence.offered = head

    def _left(self, sequence: Sequence) -> None:
        self._withdraw(sequence)

    def _added(self, instance: int) -> None:
        self._batchers[instance] = self._new_batcher()

    def _removed(self, instance: int) -> None:
        del self._batchers[instance]

    def _new_batcher(self) -> DynamicScheduler:
        return DynamicScheduler(self._rules, 1)

    def _withdraw(self, sequence: Sequence) -> None:
        if sequence.offered is not None:
            self._batchers[sequence.instance].cancel(sequence.offered)
            sequence.offered = None

    def _decide(self, now_ns: int) -> Run | int:
        until_ns = 0
        for instance in reversed(self._instances.idle):
            batcher = self._batchers[instance]
            if not batcher.pending():
                continue
            decision = batcher.next(now_ns)
            if isinstance(decision, Run):
                batcher.done(0)
                self._instances.use(instance)
                return self._run(instance, [self._queued[entry] for entry in decision.entries])
            assert isinstance(decision, Wait), "clocks ring here first"
            if decision.until_ns is not None:
                until_ns = min(until_ns or decision.until_ns, decision.until_ns)
        return until_ns

    def _check(self) -> None:
        super()._check()
        for batcher in self._batchers.values():
            batcher._check()
        offered = 0
        for _, _, sequence in self.slots:
            if sequence.offered is not None:
                assert sequence.running is None
                assert sequence.offered is sequence.queue[0]
                offered += 1
            else:
                assert not sequence.queue or sequence.running is not None
        assert offered == sum(batcher.pending() for batcher in self._batchers.values())
