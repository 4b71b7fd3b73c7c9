"""A timeout that can be paused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PausableDeadline:
    """Calls `run_out` once, after `seconds` in which it was not paused; on the event loop.

    A model whose responses a client does not read is not slow: the time in which it is made to wait does not count.
    """

    __slots__ = ("_left", "_loop", "_paused", "_run_out", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, run_out: Callable[[], None], *, paused: bool = False
    ) -> None:
        self._loop = loop
        self._run_out = run_out
        self._paused = False
        self._left = 0.0
        self._timer: asyncio.TimerHandle | None = loop.call_later(seconds, run_out)
        self.set_paused(paused)

    def set_paused(self, paused: bool) -> None:
        """Pause or resume. A call that changes nothing, and any after `cancel`, has no effect."""
        if self._timer is None or paused is self._paused:
            return
        if paused:
            self._left = self.left()
            self._timer.cancel()
        else:
            self._timer = self._loop.call_later(self._left, self._run_out)
        self._paused = paused

    def left(self) -> float:
        """Return the seconds until `run_out` is called, as if it was not paused. Not after `cancel`."""
        assert self._timer is not None, "the deadline is cancelled"
        return self._left if self._paused else max(0.0, self._timer.when() - self._loop.time())

    def cancel(self) -> None:
        """Cancel the deadline: the work ended in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
