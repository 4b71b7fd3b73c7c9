"""A bounded queue that one daemon thread writes out: callers wait for no disk, no pipe and no socket."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: bytes that may wait to be written
MOST_BYTES = 1 << 20
#: how long the end of a process waits until everything is written, seconds
END_SECONDS = 1.0


class Sink(Generic[T]):
    """Writes items in their order. The thread starts with the first item.

    When more than `most` bytes would wait, the sink discards items until everything that waits is written. Then it
    writes one item that says how many were discarded.

    Args:
        write: writes one item; called in the thread. It may block, and must not raise.
        gap: makes the item that says how many items were discarded.
        name: of the thread.
    """

    def __init__(
        self, write: Callable[[T], object], gap: Callable[[int], T], name: str, most: int = MOST_BYTES
    ) -> None:
        self._write = write
        self._gap = gap
        self._name = name
        self._most = most
        # its lock is reentrant: a finalizer that runs in `put` may log
        self._changed = threading.Condition()
        #: items and their sizes; the first one is being written
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._discarded = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, item: T, size: int) -> None:
        """Write `item`, of `size` bytes, as soon as possible. Never blocks."""
        with self._changed:
            if self._closed:
                return
            if self._discarded or (self._items and self._bytes + size > self._most):
                self._discarded += 1
            else:
                self._append(item, size)
            if self._thread is None:
                self._start()

    def flush(self, seconds: float) -> bool:
        """Wait at most so long until everything is written; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._items, seconds)

    def close(self, seconds: float) -> bool:
        """Write what waits, at most so long, and end the thread; whether everything is written.

        If not, the thread still uses what it writes to.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return self.flush(seconds)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        with contextlib.suppress(RuntimeError):  # the machine lets no thread start now: the next item tries again
            thread.start()
            self._thread = thread

    def _append(self, item: T, size: int) -> None:
        self._items.append((item, size))
        self._bytes += size
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._closed)
                if not self._items:
                    return
                item, size = self._items[0]
            self._write(item)
            with self._changed:
                self._bytes -= size
                self._items.popleft()
                if self._discarded and not self._items:
                    self._append(self._gap(self._discarded), 0)
                    self._discarded = 0
                self._changed.notify_all()
