"""Divides the cores among the runs of this process. Pure, without torch.

torch gives every run a thread for each core by default. Runs beside each other then have more threads than cores, and
the threads of a run wait for each other by polling: two instances on two cores answered fewer requests than one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: how long after runs beside each other a single run still gets a share only, nanoseconds. Between two batches an
#: instance runs nothing for a moment, in which the other one must not take its cores.
_MEMORY_NS = 100_000_000


class Cores:
    """Counts the runs, and says how many threads each one gets: all cores alone, a share beside others.

    Where there are several instances, a run alone is in a thread that they share. OpenMP keeps helpers for each thread
    that has run with several threads. With more helpers than cores it stops polling early in every run, and a run takes
    9.5 ms in place of 7 ms.

    Args:
        count: of the cores that this process may use.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._instances = 0
        self._alone = ThreadPoolExecutor(1, thread_name_prefix="torch")
        self._running = 0
        #: the most runs beside each other lately, and until when they count
        self._most = 1
        self._until_ns = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """An instance was opened."""
        with self._lock:
            self._instances += 1

    def remove(self) -> None:
        """An instance was closed."""
        with self._lock:
            self._instances -= 1

    def run(self, work: Callable[[int], T], now_ns: int) -> T:
        """Call `work` with its number of threads, and return its result."""
        threads = self.acquire(now_ns)
        try:
            if threads < 2 or threads < self.count or self._instances < 2:
                return work(threads)
            return self._alone.submit(work, threads).result()
        finally:
            self.release()

    def acquire(self, now_ns: int) -> int:
        """Acquire threads for a run that begins now. Return their number."""
        with self._lock:
            self._running += 1
            if now_ns >= self._until_ns:
                self._most = 1
            if self._running > 1:
                self._most = max(self._most, self._running)
                self._until_ns = now_ns + _MEMORY_NS
            return max(1, self.count // self._most)

    def release(self) -> None:
        """Release the threads of a run that has ended."""
        with self._lock:
            self._running -= 1
