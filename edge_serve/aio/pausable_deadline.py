"""A timeout that can be paused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PausableDeadline:
    """Calls `run_out` once, after `seconds` in which it was not paused; on the event loop.

    A model whose responses a client does not read is not slow: the time in which it is made to wait does not count.
    """

    __slots__ = ("_left", "_loop", "_paused", "_run_out", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, run_out: Callable[[], None]) -> None:
        self._loop = loop
        self._run_out = run_out
        self._paused = 0
        self._left = 0.0
        self._timer: asyncio.TimerHandle | None = loop.call_later(seconds, run_out)

    def set_paused(self, paused: bool) -> None:
        """Pause for one more stream, or resume one. The time runs while no stream is paused."""
        timer = self._timer
        if timer is None:
            return
        self._paused += 1 if paused else -1
        if paused and self._paused == 1:
            self._left = max(0.0, timer.when() - self._loop.time())
            timer.cancel()
        elif not paused and not self._paused:
            self._timer = self._loop.call_later(self._left, self._run_out)

    def cancel(self) -> None:
        """Cancel the deadline: the work ended in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
