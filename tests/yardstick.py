"""A limit of CPU time that follows the speed of the machine while a test runs.

Machines of CI are shared. A neighbour on the same host makes each instruction slower, and some hosts count the time
that they take away as CPU time of the guest. So the same turn of a loop costs 3 ms on one day and 6 ms on another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: CPU seconds of one piece of work on the machine for which the limits were set: two quiet cores of a virtual machine
NOMINAL = 0.005
#: seconds between two pieces: the yardstick takes about a tenth of one core
PAUSE = 0.04
_ROUNDS = 150_000


def piece() -> float:
    """Do a fixed piece of work, and return its CPU time in seconds."""
    began = time.thread_time()
    found = 0
    for number in range(_ROUNDS):
        found += number
    return time.thread_time() - began


class Yardstick:
    """The slowest piece of work of a time: `slowest` CPU seconds."""

    def __init__(self) -> None:
        self.slowest = piece()

    def allows(self, seconds: float) -> float:
        """Return a limit of CPU time that is `seconds` on a quiet machine, and longer as far as this one was slower."""
        return seconds * max(1.0, self.slowest / NOMINAL)

    def _measure(self, over: threading.Event) -> None:
        while not over.wait(PAUSE):
            self.slowest = max(self.slowest, piece())


@contextmanager
def yardstick() -> Iterator[Yardstick]:
    """Measure the machine in a thread while the body runs."""
    measured, over = Yardstick(), threading.Event()
    thread = threading.Thread(target=measured._measure, args=(over,))
    thread.start()
    try:
        yield measured
    finally:
        over.set()
        thread.join()
