"""A clock for tests, which do not wait."""

from __future__ import annotations

from dataclasses import dataclass, field

NOW = 1_800_000_000.0


@dataclass
class FakeClock:
    """Time that passes in sleeps only."""

    seconds: float = NOW
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds
