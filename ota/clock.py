"""Time as an argument: seconds since the epoch (UTC) for documents, and a monotonic clock for waits."""

from __future__ import annotations

import time
from typing import Protocol


class TimeSource(Protocol):
    """What code that measures or waits is given."""

    def now(self) -> float:
        """Seconds since the epoch, as the system's clock has it."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Seconds since the epoch, as the system's clock has it."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
