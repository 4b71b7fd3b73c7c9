"""Time as an argument: seconds since the epoch (UTC) for documents, and a monotonic clock for waits."""

from __future__ import annotations

import time
from typing import Protocol


class TimeSource(Protocol):
    """The clock that code with time limits or waits receives as an argument."""

    def now(self) -> float:
        """Return seconds since the epoch by the system clock."""

    def monotonic(self) -> float:
        """Return seconds of the monotonic clock."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Return seconds since the epoch by the system clock."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
