"""A time limit for work that may have to stand still through no fault of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PausableDeadline:
    """Calls `run_out` once, after `seconds` in which nothing was held; on the event loop.

    A model whose responses a client does not read is not slow: the time in which it is made to wait does not count.
    """

    __slots__ = ("_held", "_left", "_loop", "_run_out", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, run_out: Callable[[], None]) -> None:
        self._loop = loop
        self._run_out = run_out
        self._held = 0
        self._left = 0.0
        self._timer: asyncio.TimerHandle | None = loop.call_later(seconds, run_out)

    def hold(self, held: bool) -> None:
        """One more stream is held, or one of them goes on."""
        timer = self._timer
        if timer is None:
            return
        self._held += 1 if held else -1
        if held and self._held == 1:
            self._left = max(0.0, timer.when() - self._loop.time())
            timer.cancel()
        elif not held and not self._held:
            self._timer = self._loop.call_later(self._left, self._run_out)

    def cancel(self) -> None:
        """Cancel the deadline: the work ended in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
