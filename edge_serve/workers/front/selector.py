"""The event loop's selector, which polls for a worker's reply before it goes to sleep (ADR 17)."""

from __future__ import annotations

import math
import os
import select
import time
from selectors import EVENT_READ, EVENT_WRITE, EpollSelector, SelectorKey
from typing import Any

from edge_serve.workers.wire.busy_poll import PollingWait, PollPolicy

_Ready = list[tuple[SelectorKey, int]]

#: at a time; the kernel gives the others their turn next
_MOST = 128


class AwakeSelector(EpollSelector):
    """As its base; short waits for a worker are spent awake.

    It asks the kernel itself, through an object of its own for the same epoll: it does so for nearly each request, and
    its base makes room for as many events as there are connections, and looks each one up in two steps.
    """

    def __init__(self, awake: PollPolicy) -> None:
        super().__init__()
        self._awake = awake
        self._wait = PollingWait()
        self._keys: dict[int, SelectorKey] = {}
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        """See `selectors.BaseSelector.register`."""
        key = super().register(fileobj, events, data)
        self._keys[key.fd] = key
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        """See `selectors.BaseSelector.modify`."""
        key = super().modify(fileobj, events, data)
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: Any) -> SelectorKey:
        """See `selectors.BaseSelector.unregister`."""
        key = super().unregister(fileobj)
        del self._keys[key.fd]
        return key

    def close(self) -> None:
        """See `selectors.BaseSelector.close`."""
        self._epoll.close()
        self._keys.clear()
        super().close()

    def select(self, timeout: float | None = None) -> _Ready:
        """See `selectors.BaseSelector.select`."""
        most = self._awake.front_end_ns()
        if not most or (timeout is not None and timeout <= 0):
            return self._ask(timeout)
        clock = time.monotonic_ns
        began = clock()
        poll = self._wait.poll_ns(most)
        if timeout is not None:
            poll = min(poll, int(timeout * 1e9))
        ready: _Ready = []
        while not ready and clock() - began < poll:
            ready = self._ask(0)
        ready = ready or self._ask(timeout)
        self._wait.took(clock() - began, most)
        return ready

    def _ask(self, timeout: float | None) -> _Ready:
        if timeout:  # the kernel counts in milliseconds, and may not wake before the time
            timeout = max(0, math.ceil(timeout * 1e3) * 1e-3)
        keys, ready = self._keys, []
        for fd, event in self._epoll.poll(timeout, _MOST):
            key = keys.get(fd)
            if key is not None:  # an error or a hang-up wakes readers and writers
                mask = (event & ~select.EPOLLOUT and EVENT_READ) | (event & ~select.EPOLLIN and EVENT_WRITE)
                ready.append((key, mask & key.events))
        return ready
