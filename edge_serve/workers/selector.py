"""The event loop's selector, which polls for a worker's reply before it goes to sleep (ADR 17)."""

from __future__ import annotations

import time
from selectors import EpollSelector, SelectorKey

from edge_serve.workers.awake import Awake, Wait

_Ready = list[tuple[SelectorKey, int]]


class AwakeSelector(EpollSelector):
    """As its base; short waits for a worker are spent awake."""

    def __init__(self, awake: Awake) -> None:
        super().__init__()
        self._awake = awake
        self._wait = Wait()

    def select(self, timeout: float | None = None) -> _Ready:
        """See `selectors.BaseSelector.select`."""
        most = self._awake.front_end_ns()
        if not most or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        clock = time.monotonic_ns
        began = clock()
        poll = self._wait.poll_ns(most)
        if timeout is not None:
            poll = min(poll, int(timeout * 1e9))
        ready: _Ready = []
        while not ready and clock() - began < poll:
            ready = super().select(0)
        ready = ready or super().select(timeout)
        self._wait.took(clock() - began, most)
        return ready
