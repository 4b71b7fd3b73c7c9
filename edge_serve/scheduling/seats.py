"""The second seats of instances that take their next batch while one runs (ADR 27).

Between two batches, a device with one seat waits for the reply, the decision, the frame, and the copies of the inputs.
But a batch that takes the second seat cannot grow any more. So it takes it just before the device needs it.
"""

from __future__ import annotations

from edge_serve.scheduling.core import Run

#: how long before the expected end of the running batch the next one is sent. It covers the way to the worker, the
#: copies of its inputs, and a timer of the event loop, which is up to 1 ms late
LEAD_NS = 1_000_000
#: a lead that is longer than any batch runs
EAGER_NS = 1 << 62


class SecondSeats:
    """The instances that have a second seat, their batches, and how long batches run.

    Args:
        lead_ns: how long before the expected end of the running batch the second seat is due.
    """

    __slots__ = ("_closed", "_lead_ns", "_mean_ns", "_rows", "_since_ns")

    def __init__(self, lead_ns: int = LEAD_NS) -> None:
        self._lead_ns = lead_ns
        #: by instance: the rows of its batches, the running one first
        self._rows: dict[int, list[int]] = {}
        #: by instance: when its running batch began
        self._since_ns: dict[int, int] = {}
        #: by rows: how long batches of this size run, a moving average
        self._mean_ns: dict[int, int] = {}
        #: instances that get no second batch any more
        self._closed: set[int] = set()

    def add(self, instance: int) -> None:
        """Add an instance that is idle. No effect if it was added before."""
        self._rows.setdefault(instance, [])

    def close(self, instance: int) -> None:
        """Offer the second seat of an instance no more, and remove the instance once it is idle or lost."""
        if self._rows.get(instance):
            self._closed.add(instance)
        else:
            self._rows.pop(instance, None)

    def start(self, run: Run, now_ns: int) -> None:
        """Note that a batch was sent to an instance. No effect if that has one seat."""
        rows = self._rows.get(run.instance)
        if rows is None:
            return
        if not rows:
            self._since_ns[run.instance] = now_ns
        rows.append(sum(entry.rows or 1 for entry in run.entries))

    def end(self, instance: int, end_ns: int) -> bool:
        """Note that the running batch of an instance ended; `end_ns` 0 = it was not executed. Return whether the
        instance is idle, as one with one seat always is."""
        rows = self._rows.get(instance)
        if not rows:
            return True
        size = rows.pop(0)
        took_ns = end_ns - self._since_ns[instance]
        if took_ns > 0:
            mean_ns = self._mean_ns.get(size, took_ns)
            self._mean_ns[size] = mean_ns + (took_ns - mean_ns) // 4
            self._since_ns[instance] = end_ns
        if not rows and instance in self._closed:
            self.lost(instance)
        return not rows

    def lost(self, instance: int) -> None:
        """Note that the worker of an instance died, and its batches with it."""
        if instance in self._closed:
            self._closed.discard(instance)
            del self._rows[instance]
        elif instance in self._rows:
            self._rows[instance] = []

    def soonest(self) -> tuple[int, int]:
        """Return the instance with a free second seat whose batch ends first, and when the seat is due; -1 = none.

        Batches of a size that has not run yet are expected to end at once.
        """
        best, best_ns = -1, 0
        for instance, rows in self._rows.items():
            if len(rows) == 1 and instance not in self._closed:
                due_ns = self._since_ns[instance] + self._mean_ns.get(rows[0], 0) - self._lead_ns
                if best < 0 or due_ns < best_ns:
                    best, best_ns = instance, due_ns
        return best, best_ns

    def _check(self) -> None:
        assert all(len(rows) <= 2 for rows in self._rows.values())
        assert all(self._rows.get(instance) for instance in self._closed)
