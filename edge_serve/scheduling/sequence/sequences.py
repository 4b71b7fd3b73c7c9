"""The common part of both strategies: open sequences, slots, the backlog, and timeouts.

Rules: triton-inference-server/core src/sequence_batch_scheduler (SequenceBatchScheduler). A sequence gets a slot in an
instance with its first request and keeps it to its end; without a free slot it waits in the backlog, first come first
served. `direct` and `oldest` decide which of the sequences in slots run.

Unlike Triton, an ID that is used again before its last sequence has run queues behind that one and never overtakes it.
After a cancelled or late request the rest of its sequence is refused with the same error, until a START comes or its
slot is released. After a timeout in the backlog, or when the worker of an instance dies, the sequences end: further
requests need a START.

Each request of an iterative model is a sequence of its own, until the model does not reschedule it. A request with its
ID and no START is refused. Triton runs such a request with the state of the first one.

Each event changes which requests of a sequence wait or run, or whether it may continue. `_settle` derives from these
whether the sequence has a slot, waits in the backlog, or is removed.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Collection

from edge_serve.errors import Cancelled, EdgeServeError, InvalidArgument, Unavailable
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from edge_serve.scheduling.core import NOTHING, Decision, Entry, Refuse, Run, Scheduler, SequenceBatching, Wait
from edge_serve.scheduling.queue import Instances, deadline_expired, stopping
from edge_serve.scheduling.sequence.sequence import Clocks, Sequence, earlier, ends, no_start, sequence_expired, starts
from edge_serve.scheduling.sequence.slots import SequenceSlots

log = logging.getLogger(__name__)


class SequenceScheduler(Scheduler, ABC):
    """Implements `core.Scheduler` for stateful models, except the choice of what runs next.

    Args:
        slots: the number of slots in each instance.
    """

    def __init__(self, batching: SequenceBatching, slots: int, instances: int, passive: Collection[int] = ()) -> None:
        self._batching = batching
        self._idle_ns = max(1, batching.max_sequence_idle_us) * 1000
        self._instances = Instances(instances, passive)
        self.slots: SequenceSlots[Sequence] = SequenceSlots([n for n in range(instances) if n not in passive], slots)
        #: by correlation ID, the one idle for longest first
        self._known: OrderedDict[int | str, Sequence] = OrderedDict()
        self._backlog: OrderedDict[Sequence, None] = OrderedDict()
        #: waiting entries, in the order of arrival
        self._queued: dict[Entry, Sequence] = {}
        self._running: dict[int, list[Sequence]] = {n: [] for n in range(instances)}
        #: sequences whose requests have run since the last decision
        self._finished: list[Sequence] = []
        self._refusals: deque[Refuse] = deque()
        self._clocks = Clocks()
        self._idle_from_ns = 0  # no sequence reaches its idle limit before this
        self._generated_id = 0
        self._stopping = False

    @abstractmethod
    def _changed(self, sequence: Sequence) -> None:
        """Take note that the queue of a sequence in a slot has changed, or that the sequence stopped running."""

    @abstractmethod
    def _left(self, sequence: Sequence) -> None:
        """Take note that a sequence is about to release its slot."""

    @abstractmethod
    def _added(self, instance: int) -> None:
        """Add an instance."""

    @abstractmethod
    def _removed(self, instance: int) -> None:
        """Remove an instance without sequences."""

    @abstractmethod
    def _decide(self, now_ns: int) -> Run | int:
        """Return the batch for an idle instance, or until when to wait (0 = no such time)."""

    # ---- core.Scheduler -------------------------------------------------------------------------------------------

    def add(self, entry: Entry, now_ns: int) -> None:
        """See `core.Scheduler`. Refuses requests of no sequence, and after `stop` those that start one."""
        self._apply_timeouts(now_ns)
        request = entry.request
        if entry.rows > 1:
            raise InvalidArgument(
                f"inference request to model '{request.model_name}' must specify batch-size 1 due to requirements of "
                "sequence batcher"
            )
        if not request.correlation_id:
            self._assign_id(request)
        sequence = self._sequence_of(request)
        sequence.ended = self._is_last(entry)
        sequence.queue.append(entry)
        self._queued[entry] = sequence
        self._touch(sequence, now_ns)
        if sequence.slot >= 0:
            self._changed(sequence)
        else:
            self._settle(sequence)
            self._fill_slots()
            self._limit_wait(sequence, request, now_ns)
        if request.deadline_ns:
            self._clocks.set(sequence, request.deadline_ns, len(self._known))

    def next(self, now_ns: int) -> Decision:
        """See `core.Scheduler`."""
        self._apply_timeouts(now_ns)
        if self._refusals:
            return self._refusals.popleft()
        if not self._queued:
            return Wait(self._idle_from_ns) if (self._stopping or self.slots.closed) and self._known else NOTHING
        decision = self._decide(now_ns)
        if isinstance(decision, Run):
            return decision
        until_ns = earlier(decision, self._clocks.first_ns())
        if self._backlog or self.slots.closed:
            until_ns = earlier(until_ns, self._idle_from_ns)
        return Wait(until_ns) if until_ns else NOTHING

    def done(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._instances.done(instance)
        self._finished += self._running[instance]
        self._running[instance] = []

    def is_lost(self) -> bool:
        """See `core.Scheduler`."""
        return self._instances.is_lost()

    def add_instance(self, instance: int, *, passive: bool = False) -> None:
        """See `core.Scheduler`."""
        self._instances.add(instance, passive=passive)
        self._running[instance] = []
        self._added(instance)
        if not passive:
            self.slots.add(instance)
            self._fill_slots()

    def retire_instance(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._settle_finished(0)
        self.slots.close(instance)
        self._remove_if_closed(instance)

    def has_instance(self, instance: int) -> bool:
        """See `core.Scheduler`."""
        return self._instances.has(instance)

    def _remove_if_closed(self, instance: int) -> None:
        """Remove an instance that retires, if its last sequence has ended."""
        if instance in self.slots.closed and not self.slots.at(instance):
            self._instances.retire(instance)
            self.slots.discard(instance)
            self._removed(instance)
            del self._running[instance]

    def lost(self, instance: int) -> None:
        """See `core.Scheduler`. The instance's sequences are removed: their waiting requests are refused up to the next
        START."""
        self._instances.lost(instance)
        self._settle_finished(0)
        if instance not in self._running:  # it was retiring, and has just finished its last batch
            return
        self._running[instance] = []
        evicted = self.slots.remove(instance)
        for sequence in evicted:
            self._left(sequence)
            sequence.instance = sequence.slot = -1
            sequence.running = None
            for entry in sequence.cut_to_start():
                text = "the worker of the model died before the next run of this request; send it again"
                self._refuse(entry, Unavailable(text) if self._batching.iterative else no_start(entry.request))
            if not sequence.queue:
                self._require_start(sequence)
        for sequence in reversed(evicted):
            if sequence.queue:
                self._backlog[sequence] = None
                self._backlog.move_to_end(sequence, last=False)
        self._remove_if_closed(instance)
        self._fill_slots()

    def back(self, instance: int) -> None:
        """See `core.Scheduler`."""
        self._instances.back(instance)
        self.slots.restore(instance)
        self._fill_slots()

    def cancel(self, entry: Entry) -> bool:
        """See `core.Scheduler`. The rest of its sequence is refused."""
        if (sequence := self._queued.get(entry)) is not None:
            self._cut(sequence, entry, Cancelled(""))
        return sequence is not None

    def reschedule(self, entry: Entry) -> None:
        """Queue a running entry to run again, before the others of its sequence. Call it before `done`; the caller sets
        the entry's new arrival."""
        sequence = self._sequence_that_runs(entry)
        entry.request.flags = 0
        sequence.queue.appendleft(entry)
        self._queued[entry] = sequence
        if entry.request.deadline_ns:
            self._clocks.set(sequence, entry.request.deadline_ns, len(self._known))

    def undo(self, entry: Entry) -> None:
        """See `core.Scheduler`. Without its START a sequence is refused up to the next START; without its END it stays
        open."""
        sequence, flags = self._sequence_that_runs(entry), entry.request.flags & (SEQUENCE_START | SEQUENCE_END)
        if flags == SEQUENCE_START:
            for other in sequence.cut_to_start():
                self._refuse(other, no_start(other.request))
            if not sequence.queue:
                self._require_start(sequence)
        elif flags == SEQUENCE_END:
            entry.request.flags &= ~SEQUENCE_END
            if not sequence.queue:
                sequence.ended = False

    def _sequence_that_runs(self, entry: Entry) -> Sequence:
        (sequence,) = (each for running in self._running.values() for each in running if each.running is entry)
        return sequence

    def stop(self) -> None:
        """Refuse new sequences; open ones continue."""
        self._stopping = True

    @property
    def is_stateful(self) -> bool:
        """See `core.Scheduler`."""
        return True

    def has_sequence(self, correlation_id: int | str) -> bool:
        """See `core.Scheduler`."""
        return (sequence := self._known.get(correlation_id)) is not None and not sequence.ended

    def open_sequences(self) -> int:
        """See `core.Scheduler`."""
        if self._batching.iterative:
            return sum(sequence.busy for sequence in self._known.values())
        return sum(not sequence.ended and sequence.closed is None for sequence in self._known.values())

    def end_sequence(self, correlation_id: int | str) -> None:
        """See `core.Scheduler`."""
        if (sequence := self._known.get(correlation_id)) is not None:
            self._require_start(sequence)
            self._fill_slots()

    def drain(self) -> list[Entry]:
        """See `core.Scheduler`. The sequences of the entries end."""
        self._settle_finished(0)
        taken = [refusal.entry for refusal in self._refusals] + list(self._queued)
        for sequence in set(self._queued.values()):
            sequence.queue.clear()
            self._require_start(sequence)
        self._refusals.clear()
        self._queued.clear()
        return taken

    def has_idle(self) -> bool:
        """See `core.Scheduler`."""

        return bool(self._instances.idle)

    def pending(self) -> int:
        """See `core.Scheduler`."""
        return len(self._queued) + len(self._refusals)

    # ---- adding ---------------------------------------------------------------------------------------------------

    def _assign_id(self, request: InferRequest) -> None:
        """Give a request of an iterative model a correlation ID of its own if it has none."""
        if not self._batching.iterative:
            raise InvalidArgument(
                f"inference request to model '{request.model_name}' must specify a non-zero or non-empty correlation ID"
            )
        self._generated_id += 1
        while self._generated_id in self._known:
            self._generated_id += 1
        request.correlation_id = self._generated_id
        request.flags = SEQUENCE_START

    def _sequence_of(self, request: InferRequest) -> Sequence:
        """Return the sequence that a request starts or continues."""
        sequence = self._known.get(request.correlation_id)
        if not request.flags & SEQUENCE_START:
            if sequence is None or sequence.ended:
                raise no_start(request)
            if sequence.closed is not None:
                raise type(sequence.closed)(sequence.closed.message)
            return sequence
        if self._stopping:
            raise stopping(request)
        if sequence is None:
            sequence = self._known[request.correlation_id] = Sequence(request.correlation_id)
        elif sequence.closed is None and not sequence.ended:
            text = "START received for open sequence %s of model '%s': restarting the sequence"
            log.warning(text, request.correlation_id, request.model_name)
        sequence.closed = None
        return sequence

    def _is_last(self, entry: Entry) -> bool:
        """Return whether only a START may follow a request."""
        return self._batching.iterative or ends(entry)

    def _limit_wait(self, sequence: Sequence, request: InferRequest, now_ns: int) -> None:
        """Set the time until which a sequence waits for a slot, if the request has a timeout."""
        if request.timeout_us and sequence.slot < 0:
            expires_ns = now_ns + request.timeout_us * 1000
            sequence.expires_ns = min(sequence.expires_ns or expires_ns, expires_ns)
            self._clocks.set(sequence, sequence.expires_ns, len(self._known))

    def _fill_slots(self) -> None:
        while self._backlog:
            sequence = next(iter(self._backlog))
            place = self.slots.take(sequence)
            if place is None:
                return
            del self._backlog[sequence]
            sequence.instance, sequence.slot = place
            sequence.expires_ns = 0
            self._changed(sequence)

    # ---- running --------------------------------------------------------------------------------------------------

    def _run(self, instance: int, sequences: list[Sequence], rows: int = 0) -> Run:
        """Make a batch of the first requests of these sequences; see `Run.rows`."""
        self._running[instance] = sequences
        entries = []
        for sequence in sequences:
            entry = sequence.running = sequence.queue.popleft()
            sequence.offered = None
            del self._queued[entry]
            entries.append(entry)
        return Run(instance, entries, [sequence.slot for sequence in sequences], rows)

    def _settle_finished(self, now_ns: int) -> None:
        """Continue the sequences whose request has run, or remove those that have ended."""
        finished, self._finished = self._finished, []
        for sequence in finished:
            entry, sequence.running = sequence.running, None
            assert entry is not None, "its instance was lost before"
            if now_ns:
                self._touch(sequence, now_ns)
            if sequence.queue and sequence.queue[0] is not entry and self._is_last(entry):
                self._release_slot(sequence)  # the next sequence of this ID waits in the backlog like the others
            self._settle(sequence)
        if finished:
            self._fill_slots()

    # ---- after each event -----------------------------------------------------------------------------------------

    def _settle(self, sequence: Sequence) -> None:
        """Release the slot of a sequence that does not continue, add it to the backlog if it waits for a slot, and
        remove it if nothing is left of it. After its slot only a START may follow. The caller fills released slots."""
        if sequence.slot >= 0:
            self._changed(sequence)
            if not (sequence.ended or sequence.closed) or sequence.busy:
                return
            self._release_slot(sequence)
            sequence.ended, sequence.closed = True, None
        if sequence.queue:
            self._backlog.setdefault(sequence)
            return
        self._backlog.pop(sequence, None)
        sequence.expires_ns = 0
        if sequence.closed is None:
            self._remove_sequence(sequence)

    def _require_start(self, sequence: Sequence) -> None:
        """Let only a START follow the requests that a sequence has."""
        sequence.ended, sequence.closed = True, None
        self._settle(sequence)

    def _release_slot(self, sequence: Sequence) -> None:
        self._left(sequence)
        instance = sequence.instance
        self.slots.release(instance, sequence.slot)
        sequence.instance = sequence.slot = -1
        self._remove_if_closed(instance)

    def _remove_sequence(self, sequence: Sequence) -> None:
        if self._known.get(sequence.id) is sequence:
            del self._known[sequence.id]

    def _refuse(self, entry: Entry, error: EdgeServeError) -> None:
        del self._queued[entry]
        self._refusals.append(Refuse(entry, error))

    def _cut(self, sequence: Sequence, entry: Entry, error: EdgeServeError) -> None:
        """Remove a waiting entry, and refuse all entries of the same start, including those that are still to come."""
        last = sequence.queue[-1]
        taken = sequence.cut(entry)
        if taken[-1] is last and not sequence.ended:
            sequence.closed = error
        del self._queued[entry]
        for other in taken:
            if other is not entry:
                self._refuse(other, error)
        self._settle(sequence)
        self._fill_slots()

    # ---- clocks ---------------------------------------------------------------------------------------------------

    def _apply_timeouts(self, now_ns: int) -> None:
        if self._finished:
            self._settle_finished(now_ns)
        while (ringing := self._clocks.ring(now_ns)) is not None:
            self._expire(ringing, now_ns)
        while now_ns >= self._idle_from_ns:
            first = next(iter(self._known.values()), None)
            self._idle_from_ns = (now_ns if first is None else first.used_ns) + self._idle_ns
            if first is None or now_ns < self._idle_from_ns:
                return
            if first.busy:
                self._touch(first, now_ns)
            else:
                self._require_start(first)
                self._fill_slots()

    def _touch(self, sequence: Sequence, now_ns: int) -> None:
        sequence.used_ns = now_ns
        self._known.move_to_end(sequence.id)

    def _expire(self, sequence: Sequence, now_ns: int) -> None:
        if 0 < sequence.expires_ns <= now_ns:
            for entry in sequence.queue:
                self._refuse(entry, sequence_expired())
            sequence.queue.clear()
            self._settle(sequence)
        while late := next((e for e in sequence.queue if 0 < e.request.deadline_ns <= now_ns), None):
            self._cut(sequence, late, sequence_expired())
            self._refusals.append(Refuse(late, deadline_expired(late.request)))
        following_ns = sequence.next_deadline_ns()
        if following_ns:
            self._clocks.set(sequence, following_ns, len(self._known))

    # ---- invariants -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._instances._check()
        self.slots._check()
        assert all(self.slots.at(instance) for instance in self.slots.closed), "an empty instance is kept"
        placed = {sequence: (instance, slot) for instance, slot, sequence in self.slots}
        sequences = set(self._known.values())
        assert placed.keys() | self._backlog.keys() <= sequences, "a slot is taken by an unknown sequence"
        assert not placed.keys() & self._backlog.keys()
        waiting = {entry: sequence for sequence in sequences for entry in sequence.queue}
        assert waiting == self._queued
        finishing = set(self._finished)
        for sequence in sequences.union(self._clocks):
            assert not sequence.expires_ns or sequence in self._backlog, "its timer would refuse requests in a slot"
        for sequence in sequences:
            assert self._known[sequence.id] is sequence
            assert (sequence.instance, sequence.slot) == placed.get(sequence, (-1, -1))
            assert (sequence in self._backlog) == (sequence.slot < 0 and bool(sequence.queue))
            assert sequence.slot >= 0 or sequence.busy or sequence.closed is not None
            if sequence.slot >= 0 and not sequence.busy:
                assert not sequence.ended, "a sequence that has ended keeps its slot"
                assert sequence.closed is None, "a sequence that is refused keeps its slot"
            if sequence.running is not None and sequence not in finishing:
                assert sequence in self._running[sequence.instance]
            if sequence.slot < 0 and sequence.queue:
                assert starts(sequence.queue[0]), "a sequence would begin in its middle"
            if sequence.closed is not None:
                assert not sequence.ended
            deadline_ns = sequence.next_deadline_ns()
            assert not deadline_ns or 0 < sequence.clock_ns <= deadline_ns
            assert sequence.used_ns + self._idle_ns >= self._idle_from_ns
