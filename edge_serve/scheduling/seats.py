"""The second seats of instances that take their next batch while one runs (ADR 27).

Between two batches, a device with one seat waits for the reply, the decision, the frame, and the copies of the inputs.
But a batch that takes the second seat cannot grow any more. So it takes it just before the device needs it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field

from edge_serve.records import slotted
from edge_serve.scheduling.core import Run

#: how long before the device needs a batch its inputs should be there: a timer of the event loop is up to 1 ms late
MARGIN_NS = 500_000
#: a margin that is longer than any batch runs
EAGER_NS = 1 << 62


@slotted
class SeatedInstance:
    """An instance that has a second seat.

    Attributes:
        batches: rows of its batches and when they were sent, the running one first.
        since_ns: when its running batch began.
        closed: it gets no second batch any more, and is removed once it is idle or lost.
    """

    batches: deque[tuple[int, int]] = field(default_factory=deque)
    since_ns: int = 0
    closed: bool = False


class SecondSeats:
    """The instances that have a second seat, their batches, and how long batches run and travel.

    Args:
        margin_ns: how long before the expected end of a batch the inputs of the next one should be on the device.

    Attributes:
        instances: those with a second seat, by number.
    """

    def __init__(self, margin_ns: int = MARGIN_NS) -> None:
        self._margin_ns = margin_ns
        self.instances: dict[int, SeatedInstance] = {}
        #: by rows: how long batches of this size run, a moving average that follows shorter times faster
        self._run_ns: dict[int, int] = {}
        #: how long after it was sent a batch has its inputs on the device, an average that follows longer times faster
        self._travel_ns = 0

    def add(self, number: int) -> None:
        """Add an instance that is idle. No effect if it was added before."""
        self.instances.setdefault(number, SeatedInstance())

    def close(self, number: int) -> None:
        """Offer the second seat of an instance no more, and remove the instance once it is idle or lost."""
        if (instance := self.instances.get(number)) is not None:
            instance.closed = True
            self._remove_if_closed(number, instance)

    def start(self, run: Run, now_ns: int) -> None:
        """Note that a batch was sent to an instance. No effect if that has one seat."""
        if (instance := self.instances.get(run.instance)) is not None:
            if not instance.batches:
                instance.since_ns = now_ns
            instance.batches.append((sum(entry.rows or 1 for entry in run.entries), now_ns))

    def ran(self, number: int, ready_ns: int, end_ns: int) -> None:
        """Learn from the times of the older batch of an instance; see `Scheduler.ran`."""
        instance = self.instances.get(number)
        if instance is None or not instance.batches:
            return
        rows, sent_ns = instance.batches[0]
        took_ns, travelled_ns = end_ns - instance.since_ns, ready_ns - sent_ns
        if took_ns <= 0 or travelled_ns < 0:
            return
        # an unusually long run must not make the device wait in the next runs
        more_ns = took_ns - self._run_ns.setdefault(rows, took_ns)
        self._run_ns[rows] += more_ns // (8 if more_ns > 0 else 2)
        more_ns = travelled_ns - self._travel_ns
        self._travel_ns += more_ns // (2 if more_ns > 0 else 8)
        instance.since_ns = end_ns

    def end(self, number: int) -> bool:
        """Note that the older batch of an instance ended. Return whether the instance is idle, as one with one seat
        always is."""
        instance = self.instances.get(number)
        if instance is None or not instance.batches:
            return True
        instance.batches.popleft()
        self._remove_if_closed(number, instance)
        return not instance.batches

    def lost(self, number: int) -> None:
        """Note that the worker of an instance died, and its batches with it."""
        if (instance := self.instances.get(number)) is not None:
            instance.batches.clear()
            self._remove_if_closed(number, instance)

    def _remove_if_closed(self, number: int, instance: SeatedInstance) -> None:
        if instance.closed and not instance.batches:
            del self.instances[number]

    def soonest(self) -> tuple[int, int]:
        """Return the instance with a free second seat whose batch ends first, and when the seat is due; -1 = none.

        Batches of a size that has not run yet are expected to end at once.
        """
        best, best_ns = -1, 0
        for number, instance in self.instances.items():
            if len(instance.batches) == 1 and not instance.closed:
                end_ns = instance.since_ns + self._run_ns.get(instance.batches[0][0], 0)
                if best < 0 or end_ns < best_ns:
                    best, best_ns = number, end_ns
        return best, best_ns - self._travel_ns - self._margin_ns

    def _check(self) -> None:
        assert all(len(instance.batches) <= 2 for instance in self.instances.values())
        assert all(instance.batches for instance in self.instances.values() if instance.closed)
