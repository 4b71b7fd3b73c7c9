"""The second seats of instances that take their next batch while one runs (ADR 27).

Between two batches, a device with one seat waits for the reply, the decision, the frame, and the copies of the inputs.
But a batch that takes the second seat cannot grow any more. So it takes it just before the device needs it.
"""

from __future__ import annotations

from collections import deque

from edge_serve.scheduling.core import Run

#: how long before the device needs a batch its inputs should be there: a timer of the event loop is up to 1 ms late
MARGIN_NS = 500_000
#: a margin that is longer than any batch runs
EAGER_NS = 1 << 62


class SecondSeats:
    """The instances that have a second seat, their batches, and how long batches run and travel.

    Args:
        margin_ns: how long before the expected end of a batch the inputs of the next one should be on the device.

    Attributes:
        batches: by instance: rows of its batches and when they were sent, the running one first. Empty = no instance
            has a second seat.
    """

    def __init__(self, margin_ns: int = MARGIN_NS) -> None:
        self._margin_ns = margin_ns
        self.batches: dict[int, deque[tuple[int, int]]] = {}
        #: by instance: when its running batch began
        self._since_ns: dict[int, int] = {}
        #: by rows: how long batches of this size run, a moving average that follows shorter times faster
        self._run_ns: dict[int, int] = {}
        #: how long after it was sent a batch has its inputs on the device, an average that follows longer times faster
        self._travel_ns = 0
        #: instances that get no second batch any more
        self._closed: set[int] = set()

    def add(self, instance: int) -> None:
        """Add an instance that is idle. No effect if it was added before."""
        self.batches.setdefault(instance, deque())

    def close(self, instance: int) -> None:
        """Offer the second seat of an instance no more, and remove the instance once it is idle or lost."""
        if self.batches.get(instance):
            self._closed.add(instance)
        else:
            self.batches.pop(instance, None)

    def start(self, run: Run, now_ns: int) -> None:
        """Note that a batch was sent to an instance. No effect if that has one seat."""
        batches = self.batches.get(run.instance)
        if batches is not None:
            if not batches:
                self._since_ns[run.instance] = now_ns
            batches.append((sum(entry.rows or 1 for entry in run.entries), now_ns))

    def ran(self, instance: int, ready_ns: int, end_ns: int) -> None:
        """Learn from the times of the older batch of an instance; see `Scheduler.ran`."""
        batches = self.batches.get(instance)
        if not batches:
            return
        rows, sent_ns = batches[0]
        took_ns, travelled_ns = end_ns - self._since_ns[instance], ready_ns - sent_ns
        if took_ns <= 0 or travelled_ns < 0:
            return
        # an unusually long run must not make the device wait in the next runs
        more_ns = took_ns - self._run_ns.setdefault(rows, took_ns)
        self._run_ns[rows] += more_ns // (8 if more_ns > 0 else 2)
        more_ns = travelled_ns - self._travel_ns
        self._travel_ns += more_ns // (2 if more_ns > 0 else 8)
        self._since_ns[instance] = end_ns

    def end(self, instance: int) -> bool:
        """Note that the older batch of an instance ended. Return whether the instance is idle, as one with one seat
        always is."""
        batches = self.batches.get(instance)
        if batches:
            batches.popleft()
            if not batches and instance in self._closed:
                self.lost(instance)
        return not batches

    def lost(self, instance: int) -> None:
        """Note that the worker of an instance died, and its batches with it."""
        if instance in self._closed:
            self._closed.discard(instance)
            del self.batches[instance]
        elif instance in self.batches:
            self.batches[instance].clear()

    def soonest(self) -> tuple[int, int]:
        """Return the instance with a free second seat whose batch ends first, and when the seat is due; -1 = none.

        Batches of a size that has not run yet are expected to end at once.
        """
        best, best_ns = -1, 0
        for instance, batches in self.batches.items():
            if len(batches) == 1 and instance not in self._closed:
                end_ns = self._since_ns[instance] + self._run_ns.get(batches[0][0], 0)
                if best < 0 or end_ns < best_ns:
                    best, best_ns = instance, end_ns
        return best, best_ns - self._travel_ns - self._margin_ns

    def _check(self) -> None:
        assert all(len(batches) <= 2 for batches in self.batches.values())
        assert all(self.batches.get(instance) for instance in self._closed)
