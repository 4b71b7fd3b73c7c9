"""The interface of every scheduler: its input (`Entry`), its decisions (`Run`, `Refuse`, `Wait`), and its settings.

A scheduler decides and never acts: no clock, no sockets, no tasks. `models/run/driver.py` calls it, owns the wake-ups
and carries out what `next` returns. Time is CLOCK_MONOTONIC nanoseconds, passed as an argument.

If the rate limiter is on, it stands between the decision and the worker: one arbiter over all models (`rate_limiter`)
lets a `Run` wait for its resources, as Triton lets a payload wait. The instance counts as busy meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from typing import Any, Protocol

from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest
from edge_serve.records import entity, frozen, slotted


@entity
class Entry:
    """A request as a scheduler sees it; compared by identity.

    Attributes:
        rows: its batch size; 1 when the model has no batch dimension.
        shape_key: entries whose keys are equal may share a batch.
        level: the priority level at which it was queued, set by the scheduler.
        timeout_at_ns: when its queue timeout expires, set by the scheduler; 0 = never.
        ticket: its number in the queue, set by the scheduler.
    """

    request: InferRequest
    rows: int
    shape_key: Hashable
    arrival_ns: int
    level: int = 0
    timeout_at_ns: int = 0
    ticket: int = 0


@slotted
class Run:
    """The decision to execute `entries` as one batch on an idle `instance`, which is busy until `done` or `lost`, or as
    the next batch of one that has a second seat.

    Attributes:
        slots: for stateful models, the slot of each entry's sequence in the instance.
        rows: if an entry's slot is its row in the batch, the number of rows: those without an entry are filled with
            null requests. 0 = the entries are the rows.
        each: execute the entries one after the other, each alone; one hop to the worker serves them all.
    """

    instance: int
    entries: list[Entry]
    slots: Sequence[int] = ()
    rows: int = 0
    each: bool = False


@slotted
class Refuse:
    """The decision to answer `entry`, which is no longer queued, with `error`. Statistics count it as REJECTED."""

    entry: Entry
    error: EdgeServeError


@slotted
class Wait:
    """The decision to do nothing before `until_ns`, or before the next event if that is None."""

    until_ns: int | None = None


Decision = Run | Refuse | Wait

#: the decision of an idle scheduler, shared because it is returned so often
NOTHING = Wait()


class Sequences(Protocol):
    """Questions about open sequences. The defaults are for a scheduler or a runner without sequences."""

    def has_sequence(self, correlation_id: int | str) -> bool:
        """Return whether a sequence of this ID is open, so that requests without START belong to it."""
        return False

    def open_sequences(self) -> int:
        """Return how many sequences may still continue."""
        return 0

    def end_sequence(self, correlation_id: int | str) -> None:
        """End a sequence, because its ID was started anew in another version. Its slot becomes free, and further
        requests here need a START."""
        return


class Scheduler(Sequences, Protocol):
    """A scheduling policy. After any event the driver calls `next` until it returns Wait."""

    def add(self, entry: Entry, now_ns: int) -> None:
        """Queue an entry.

        Raises:
            EdgeServeError: the entry is refused: Unavailable if the queue is full or the scheduler is stopping.
        """

    def next(self, now_ns: int) -> Decision:
        """Return the next decision."""

    def done(self, instance: int) -> None:
        """Note that an instance finished its batch, and is idle again, unless it has a second one."""

    def grow(self, entries: Sequence[Entry]) -> list[Entry]:
        """Remove and return the queued entries that fit into a decided batch, which waits for the rate limiter."""
        return []

    def undo(self, entry: Entry) -> None:
        """Note that a running entry never reached its instance, so the model does not know of its START or END. Call it
        before `done`."""
        return

    def lost(self, instance: int) -> None:
        """Note that an instance's worker died. It gets no work until `back`."""

    def back(self, instance: int) -> None:
        """Note that an instance has a worker (again), and is idle."""

    def is_lost(self) -> bool:
        """Return whether a worker died, and no instance that takes new work has one."""

    def add_instance(self, instance: int, *, passive: bool = False) -> None:
        """Add an instance that is idle; a passive one gets no work. No other had its number before."""

    def retire_instance(self, instance: int) -> None:
        """Give no new work to an instance. Its open sequences continue there to their end; then it is removed."""

    def add_second_seat(self, instance: int) -> None:
        """Note that an idle instance takes its next batch while one runs. Without effect where each batch needs the
        one before it, as in sequences."""
        return

    def ran(self, instance: int, ready_ns: int, end_ns: int) -> None:
        """Note when the inputs of an instance's older batch were on its device, and when the batch ended; 0 = it was
        not executed. Called before `done`, if an instance has a second seat."""
        return

    def has_instance(self, instance: int) -> bool:
        """Return whether an instance was not removed."""

    def cancel(self, entry: Entry) -> bool:
        """Remove a queued entry. Return False if it is not queued (running, or answered)."""

    def stop(self) -> None:
        """Refuse everything added from now on; queued entries still run."""

    def drain(self) -> list[Entry]:
        """Remove and return the queued entries, in the order in which they would have run. The caller answers them."""

    def pending(self) -> int:
        """Return the number of queued entries."""

    def has_idle(self) -> bool:
        """Return whether an instance is idle."""

    @property
    def gathers(self) -> bool:
        """Whether a busy instance takes all entries: call `next` once for all that arrive together, not for each."""
        return False

    def prefer(self, rank: Callable[[int], Any]) -> None:
        """Take the idle instance of the lowest rank from now on, if any would do."""
        return

    def pace(self, execution_ns: int) -> None:
        """Record the time of an execution, if decisions depend on it."""
        return

    @property
    def is_stateful(self) -> bool:
        """Whether entries belong to sequences."""
        return False


def label(request: InferRequest) -> str:
    """Return the words that Triton puts before many of its texts (`InferenceRequest::LogRequest`)."""
    return f"[request id: {request.id or '<id_unknown>'}] "


@frozen
class QueuePolicy:
    """ModelQueuePolicy of model_config.proto.

    Attributes:
        delay_on_timeout: timeout_action DELAY rather than REJECT.
        max_queue_size: 0 = unlimited.
    """

    delay_on_timeout: bool = False
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@frozen
class DynamicBatching:
    """The settings of the dynamic batcher (ModelDynamicBatching of model_config.proto).

    Attributes:
        max_batch_size: 1 when the model has no batch dimension.
        priority_levels: 0 = no priorities.
        eager: take the second seat of an instance as soon as it is free (`optimization.eager_batching`).
    """

    max_batch_size: int
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    priority_levels: int = 0
    default_priority_level: int = 0
    default_policy: QueuePolicy = field(default_factory=QueuePolicy)
    policies: dict[int, QueuePolicy] = field(default_factory=dict)
    eager: bool = False


@frozen
class SequenceBatching:
    """The settings of the sequence batcher (ModelSequenceBatching of model_config.proto).

    Attributes:
        max_batch_size: 1 when the model has no batch dimension.
        oldest: the strategy is `oldest` rather than `direct`.
        max_candidate_sequences, preferred_batch_sizes: of `oldest`.
        minimum_slot_utilization: of `direct`.
        max_queue_delay_us: of either.
        iterative: requests without a correlation id are sequences of their own.
    """

    max_batch_size: int
    max_sequence_idle_us: int = 1_000_000
    oldest: bool = False
    max_candidate_sequences: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    minimum_slot_utilization: float = 0.0
    iterative: bool = False
