"""A recorder that keeps the marks of traces."""

from __future__ import annotations

from itertools import count

from edge_serve.messages.trace import Trace


class Steps:
    """A clock that goes on by one at each look."""

    now = 0

    def now_ns(self) -> int:
        """One more than last time."""
        self.now += 1
        return self.now


class Collected(Steps):
    """Implements `trace.Recorder`."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self._ids = count(100)

    def next_id(self) -> int:
        """From 100 on."""
        return next(self._ids)

    def collect(self, trace: Trace) -> None:
        """Keep it."""
        self.traces.append(trace)
