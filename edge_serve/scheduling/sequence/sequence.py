"""One sequence: the requests of one correlation id, in order, and where it sits."""

from __future__ import annotations

from collections import deque

from edge_serve.errors import EdgeServeError, InvalidArgument, Unavailable
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from edge_serve.scheduling.core import Entry


class Sequence:
    """The requests of one correlation id that wait, and what became of the earlier ones.

    An id may be used again before its last sequence has run: requests of the next one queue behind it.

    Attributes:
        queue: what waits, in the order of arrival.
        instance, seat: where it sits; both -1 while it has no seat.
        running: its request that executes now.
        offered: the head of the queue, when it was handed to a batcher.
        ended: the last request that came had END: nothing but a START may follow.
        closed: why requests are refused until the next START; None = they are not.
        used_ns: when it was last heard of.
        expires_ns: when it leaves the backlog for want of a seat; 0 = never.
        clock_ns: when a clock rings for it next; 0 = none is set.
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
        "seat",
        "used_ns",
    )

    def __init__(self, id: int | str) -> None:
        self.id = id
        self.queue: deque[Entry] = deque()
        self.instance = -1
        self.seat = -1
        self.running: Entry | None = None
        self.offered: Entry | None = None
        self.ended = False
        self.closed: EdgeServeError | None = None
        self.used_ns = 0
        self.expires_ns = 0
        self.clock_ns = 0

    @property
    def busy(self) -> bool:
        """Something of it waits or runs."""
        return bool(self.queue) or self.running is not None

    def next_deadline_ns(self) -> int:
        """The earliest deadline among what waits, and that of the wait for a seat; 0 = none."""
        clocks = [entry.request.deadline_ns for entry in self.queue if entry.request.deadline_ns]
        if self.expires_ns and self.seat < 0:
            clocks.append(self.expires_ns)
        return min(clocks, default=0)

    def cut(self, entry: Entry) -> list[Entry]:
        """Take out `entry` and all that belong to the same start: a sequence with a hole in it is of no use."""
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
        """Take out what cannot run without what ran before it: everything in front of the first START."""
        taken = []
        while self.queue and not starts(self.queue[0]):
            taken.append(self.queue.popleft())
        return taken


def starts(entry: Entry) -> bool:
    """It has START."""
    return bool(entry.request.flags & SEQUENCE_START)


def ends(entry: Entry) -> bool:
    """It has END."""
    return bool(entry.request.flags & SEQUENCE_END)


def no_start(request: InferRequest) -> InvalidArgument:
    """It belongs to no sequence that is known."""
    return InvalidArgument(
        f"inference request for sequence {request.correlation_id} to model '{request.model_name}' must specify the "
        "START flag on the first request of the sequence"
    )


def sequence_expired() -> Unavailable:
    """One request of its sequence has waited too long."""
    return Unavailable("timeout of the corresponding sequence has been expired")


def worker_lost() -> Unavailable:
    """An iterative model's worker died between two runs of a request."""
    return Unavailable("the worker of the model died before the next run of this request; send it again")
