"""A timeout that can be paused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: seconds after which to look again at a clock that does not run
_RECHECK = 0.05


class PausableDeadline:
    """Calls `run_out` once, after `seconds` in which it was not paused; on the event loop.

    A model whose responses a client does not read is not slow: the time in which it is made to wait does not count.

    Args:
        time: returns the time in seconds; it may be late or stop, and is never faster than the loop's. None = the
            loop's.
    """

    __slots__ = ("_end", "_left", "_loop", "_paused", "_run_out", "_time", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        run_out: Callable[[], None],
        *,
        paused: bool = False,
        time: Callable[[], float] | None = None,
    ) -> None:
        self._loop = loop
        self._run_out = run_out
        self._paused = False
        self._left = 0.0
        self._time = time or loop.time
        self._end = self._time() + seconds
        self._timer: asyncio.TimerHandle | None = loop.call_later(seconds, self._check)
        self.set_paused(paused)

    def set_paused(self, paused: bool) -> None:
        """Pause or resume. A call that changes nothing, and any after `cancel`, has no effect."""
        if self._timer is None or paused is self._paused:
            return
        if paused:
            self._left = self.left()
            self._timer.cancel()
        else:
            self._end = self._time() + self._left
            self._timer = self._loop.call_later(self._left, self._check)
        self._paused = paused

    def _check(self) -> None:
        left = self.left()
        if left > 0:
            self._timer = self._loop.call_later(max(left, _RECHECK), self._check)
        else:
            self._run_out()

    def left(self) -> float:
        """Return the seconds until `run_out` is called, as if it was not paused. Not after `cancel`."""
        assert self._timer is not None, "the deadline is cancelled"
        return self._left if self._paused else max(0.0, self._end - self._time())

    def cancel(self) -> None:
        """Cancel the deadline: the work ended in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
