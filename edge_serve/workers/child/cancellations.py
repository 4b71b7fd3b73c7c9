"""Marks of requests whose clients have disconnected."""

from __future__ import annotations

from collections.abc import Callable
from weakref import finalize

from edge_serve.workers.child.batch import cancel_key


class Cancellations:
    """Marks of requests whose clients have gone. A mark is removed with the last response of its request. If an
    iterative model reschedules the request, the mark is removed when the model can no longer ask for it (`suspend`).

    The control thread adds marks, the threads that answer requests remove them. There is no lock: `add` looks only
    after it has added whether the request has been answered, and answering removes the mark last.

    Attributes:
        marks: `cancel_key`s; read by models' `is_cancelled`.
    """

    __slots__ = ("_latest", "_open", "marks")

    def __init__(self) -> None:
        self.marks: set[int] = set()
        #: requests of `open` whose last response has not been sent, and those of `suspend`
        self._open: set[int] = set()
        #: the newest batch that has begun (decoupled) or is done: an older request is open, or has been answered
        self._latest = 0

    def add(self, batch_id: int, index: int) -> None:
        """Mark a request, also one whose batch has not arrived yet: CANCEL may overtake it on its own channel."""
        key = cancel_key(batch_id, index)
        self.marks.add(key)
        if batch_id <= self._latest and key not in self._open:
            self.marks.discard(key)

    def done(self, batch_id: int) -> None:
        """Remove the marks of the requests of this batch and of all before it, which have been answered, except those
        of `suspend`."""
        self._latest = batch_id
        if self.marks:
            done = [key for key in tuple(self.marks) if key >> 16 <= batch_id and key not in self._open]
            self.marks.difference_update(done)

    def open(self, batch_id: int, count: int) -> None:
        """Note that a decoupled model begins a batch. Its requests are open until `close`."""
        self._open.update(range(cancel_key(batch_id, 0), cancel_key(batch_id, count)))
        self._latest = batch_id

    def suspend(self, key: int, is_cancelled: Callable[[], bool]) -> None:
        """Keep a request that is to run again open until its `BackendRequest.is_cancelled` is discarded.

        A model may keep its response sender, which asks that between two runs, and also if no run follows.
        """
        self._open.add(key)
        finalize(is_cancelled, self.close, key).atexit = False

    def close(self, key: int) -> None:
        """Remove the mark of a request of `open` whose last response has been sent, or of one of `suspend` for which
        the model can no longer ask."""
        self._open.discard(key)
        self.marks.discard(key)
