"""Divides the cores among the runs of this process. Pure, without torch.

torch gives every run a thread for each core by default. Runs beside each other then have more threads than cores, and
the threads of a run wait for each other by polling: two instances on two cores answered fewer requests than one.
"""

from __future__ import annotations

import threading

#: how long after runs beside each other a single run still gets a share only, nanoseconds. Between two batches an
#: instance runs nothing for a moment, in which the other one must not take its cores.
_MEMORY_NS = 100_000_000


class Cores:
    """Counts the runs, and says how many threads each one gets: all cores alone, a share beside others.

    Args:
        count: of the cores that this process may use.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._running = 0
        #: the most runs beside each other lately, and until when they count
        self._most = 1
        self._until_ns = 0
        self._lock = threading.Lock()

    def begin(self, now_ns: int) -> int:
        """Return the number of threads for a run that begins now."""
        with self._lock:
            self._running += 1
            if now_ns >= self._until_ns:
                self._most = 1
            if self._running > 1:
                self._most = max(self._most, self._running)
                self._until_ns = now_ns + _MEMORY_NS
            return max(1, self.count // self._most)

    def end(self) -> None:
        """A run has ended."""
        with self._lock:
            self._running -= 1
