"""Decides whether the next wait is polled through: to wake a thread costs more than a small model computes (ADR 17)."""

from __future__ import annotations


class PollingWait:
    """Whether the next wait is worth polling through: when the one before it was short. Nothing is polled for on a
    server that is asked now and then, and at most one wait too many where requests stop."""

    __slots__ = ("_short",)

    def __init__(self) -> None:
        self._short = False

    def poll_ns(self, most_ns: int) -> int:
        """For how long to poll before going to sleep; 0 = sleep at once."""
        return most_ns if self._short else 0

    def took(self, waited_ns: int, most_ns: int) -> None:
        """The wait is over. One that was longer only by what waking takes counts as short too."""
        self._short = 2 * waited_ns <= 3 * most_ns
