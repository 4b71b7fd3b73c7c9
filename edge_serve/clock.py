"""Time is an argument: policies take `now`, and only shells hold a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time; the same scale in every process of the machine (CLOCK_MONOTONIC)."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary start."""


class MonotonicClock:
    """The clock of the running server."""

    now_ns = staticmethod(time.monotonic_ns)
