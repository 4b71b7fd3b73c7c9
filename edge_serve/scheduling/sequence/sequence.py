"""One sequence: the requests of one correlation ID, in order, its slot, and its timer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from edge_serve.errors import EdgeServeError, InvalidArgument, Unavailable
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from edge_serve.scheduling.core import Entry


class Sequence:
    """The waiting requests of one correlation ID, and the state that earlier ones left.

    An ID may be used again before its last sequence has run: requests of the next one queue behind it.

    Attributes:
        queue: the waiting requests, in the order of arrival.
        instance, slot: its place; both -1 while it has no slot.
        running: its request that executes now.
        offered: the first request of the queue, if it is in a batcher.
        ended: whether only a START may follow, for example because the last request had END.
        closed: why requests are refused until the slot is released or a START comes, though none had END; None = they
            are not.
        used_ns: when its last request arrived or finished.
        expires_ns: when it is removed from the backlog without a slot; 0 = never, or it is not there.
        clock_ns: when its timer rings next; 0 = none is set.
    """

    __slots__ = (
        "clock_ns",
        "closed",
        "ended",
        "expires_ns",
        "id",
        "instance",
        "offered",
        "queue",
        "running",
        "slot",
        "used_ns",
    )

    def __init__(self, id: int | str) -> None:
        self.id = id
        self.queue: deque[Entry] = deque()
        self.instance = -1
        self.slot = -1
        self.running: Entry | None = None
        self.offered: Entry | None = None
        self.ended = False
        self.closed: EdgeServeError | None = None
        self.used_ns = 0
        self.expires_ns = 0
        self.clock_ns = 0

    @property
    def busy(self) -> bool:
        """Whether a request of it waits or runs."""
        return bool(self.queue) or self.running is not None

    def next_deadline_ns(self) -> int:
        """Return the earliest deadline among the waiting requests and the wait for a slot; 0 = none."""
        clocks = [entry.request.deadline_ns for entry in self.queue if entry.request.deadline_ns]
        if self.expires_ns:
            clocks.append(self.expires_ns)
        return min(clocks, default=0)

    def cut(self, entry: Entry) -> list[Entry]:
        """Remove `entry` and all entries of the same start, because a sequence with a missing request is useless."""
        waiting = list(self.queue)
        position = waiting.index(entry)
        first = position
        while first and not starts(waiting[first]):
            first -= 1
        last = position + 1
        while last < len(waiting) and not ends(waiting[last - 1]) and not starts(waiting[last]):
            last += 1
        self.queue = deque(waiting[:first] + waiting[last:])
        return waiting[first:last]

    def cut_to_start(self) -> list[Entry]:
        """Remove the entries before the first START, which cannot run without their predecessors."""
        taken = []
        while self.queue and not starts(self.queue[0]):
            taken.append(self.queue.popleft())
        return taken


def starts(entry: Entry) -> bool:
    """Return whether the request has START."""
    return bool(entry.request.flags & SEQUENCE_START)


def ends(entry: Entry) -> bool:
    """Return whether the request has END."""
    return bool(entry.request.flags & SEQUENCE_END)


def no_start(request: InferRequest) -> InvalidArgument:
    """Return the error for a request without START that belongs to no open sequence."""
    return InvalidArgument(
        f"inference request for sequence {request.correlation_id} to model '{request.model_name}' must specify the "
        "START flag on the first request of the sequence"
    )


def sequence_expired() -> Unavailable:
    """Return the error for a sequence of which one request has waited too long."""
    return Unavailable("timeout of the corresponding sequence has been expired")


#: clocks of sequences that left are removed when there are this many more clocks than needed
_SLACK = 64


class Clocks:
    """A heap of (when, number, sequence); a sequence's `clock_ns` says which of its entries counts."""

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []
        self._number = 0

    def first_ns(self) -> int:
        """Return the earliest time at which a timer may ring; 0 = never."""
        return self._heap[0][0] if self._heap else 0

    def set(self, sequence: Sequence, at_ns: int, known: int) -> None:
        """Ring at `at_ns`, unless the sequence's timer rings earlier. There are `known` sequences."""
        if 0 < sequence.clock_ns <= at_ns:
            return
        heap = self._heap
        if len(heap) > 4 * known + _SLACK:
            self._remove_unneeded()
        sequence.clock_ns = at_ns
        self._number += 1
        heappush(heap, (at_ns, self._number, sequence))

    def _remove_unneeded(self) -> None:
        needed = []
        for clock in self._heap:
            at_ns, _, sequence = clock
            if sequence.clock_ns != at_ns:
                continue
            if sequence.queue:
                needed.append(clock)
            else:
                sequence.clock_ns = 0  # its next request sets one again
        self._heap[:] = needed
        heapify(self._heap)

    def ring(self, now_ns: int) -> Sequence | None:
        """Return a sequence whose timer has rung, and clear the timer. None = there is none."""
        while self._heap and self._heap[0][0] <= now_ns:
            at_ns, _, sequence = heappop(self._heap)
            if sequence.clock_ns == at_ns:
                sequence.clock_ns = 0
                return sequence
        return None

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, _, sequence in self._heap)


def earlier(one_ns: int, other_ns: int) -> int:
    """Return the earlier of two times, where 0 means none."""
    return min(one_ns, other_ns) if one_ns and other_ns else one_ns or other_ns
