"""Decides whether a thread polls through its next wait: waking it takes longer than a small model computes (ADR 17)."""

from __future__ import annotations


class PollingWait:
    """Allows polling for the next wait if the last one was short.

    So a server that receives few requests never polls, and where requests stop, at most one wait is polled in vain.
    """

    __slots__ = ("_short",)

    def __init__(self) -> None:
        self._short = False

    def poll_ns(self, most_ns: int) -> int:
        """Return how long to poll before sleeping; 0 = sleep at once."""
        return most_ns if self._short else 0

    def note(self, waited_ns: int, most_ns: int) -> None:
        """Note the length of a wait. One that was longer only by the time of waking counts as short, too."""
        self._short = 2 * waited_ns <= 3 * most_ns
