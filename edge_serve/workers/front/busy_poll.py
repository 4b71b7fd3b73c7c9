"""Busy polling (ADR 17): while a worker computes for a lone client, the event loop polls instead of sleeping.

`PollPolicy` decides who may poll, `FreeCores` counts the cores that are free for it, `AwakeSelector` polls.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE, EpollSelector, SelectorKey
from typing import Any

from edge_serve.workers.wire.polling_wait import PollingWait

_Ready = list[tuple[SelectorKey, int]]

#: at a time; the kernel gives the others their turn next
_MOST = 128

#: seconds between looks, long enough for the kernel's counts, which are of 10 ms
_WINDOW = 0.25

#: what a core may be used by others and still count as free: a client on the same machine takes some of one
_SHARED = 0.6

_STAT = Path("/proc/stat")

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class PollPolicy:
    """Who may poll, so that those who wait never take a core from those who work. The front end's, one for a server.

    Attributes:
        poll_us: the longest that front end and worker poll; 0 = never.
        cores: that this server has to itself, as far as it knows.
        out: batches that workers have now, each of which keeps a core busy.
        recent: the instances that were asked last, at most one for each core but the front end's; the last one first.
        neighbours: who else computes on those cores; None = nobody asks.
    """

    poll_us: int = 0
    cores: int = 1
    out: int = 0
    recent: list[int] = field(default_factory=list)
    neighbours: FreeCores | None = None

    def front_end_ns(self) -> int:
        """While a batch is out, its reply is what comes next; without one, it may be anything, at any time."""
        return self.poll_us * 1000 if 0 < self.out < self.cores else 0

    def worker_us(self, instance: int, requests: int) -> int:
        """For how long an instance may poll after a batch of so many that it gets now.

        A batch of several says that clients are waiting already: then there is no core to spare and no time to win. One
        that was not among the last to be asked would poll while another works: so would the steps of an ensemble.
        """
        if self.neighbours is not None:
            self.cores = self.neighbours.cores_left()
        recent = self.recent
        expected = instance in recent
        if not expected or recent[0] != instance:
            self.recent = [instance, *(one for one in recent if one != instance)][: self.cores - 1]
        return self.poll_us if expected and requests == 1 and self.out + 1 < self.cores else 0


@dataclass(frozen=True, slots=True)
class Look:
    """What had been computed when somebody looked; seconds.

    Attributes:
        idle: for how long the cores have had nothing to do, together.
        own: what the server's processes have computed, together.
    """

    at: float
    idle: float
    own: float


def cores_left(cores: int, before: Look, now: Look) -> int:
    """Of so many, the ones that were idle or the server's own between two looks; at least 1."""
    elapsed = now.at - before.at
    left = (now.idle - before.idle + now.own - before.own) / elapsed
    return max(1, min(cores, int(left + _SHARED)))


def idle(cores: Collection[int]) -> float:
    """For how long these cores have had nothing to do, together, in seconds.

    Source: proc(5), /proc/stat: user, nice, system, idle, iowait of each core.

    Raises:
        OSError: the file cannot be read.
        ValueError, IndexError: it holds something else.
    """
    ticks = 0
    for line in _STAT.read_bytes().splitlines():
        if not line.startswith(b"cpu"):
            break
        name, *fields = line.split()
        if name != b"cpu" and int(name[3:]) in cores:
            ticks += int(fields[3]) + int(fields[4])
    return ticks / _TICKS_PER_SECOND


class FreeCores:
    """Whoever else computes on the same cores.

    Args:
        cores: numbers of those that this process may run on.
        idle_seconds: as in `Look`; raises OSError, ValueError or IndexError where that is not to be known.

    Attributes:
        own_seconds: as in `Look`.
    """

    __slots__ = ("_before", "_clock", "_cores", "_due", "_idle_seconds", "_left", "own_seconds")

    def __init__(
        self,
        cores: Collection[int],
        own_seconds: Callable[[], float] = time.process_time,
        idle_seconds: Callable[[Collection[int]], float] = idle,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.own_seconds = own_seconds
        self._cores = frozenset(cores)
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._before: Look | None = None
        self._due = 0.0
        self._left = len(self._cores)

    def cores_left(self) -> int:
        """Cheap enough for each batch: it looks four times a second at most, and says what it saw last."""
        at = self._clock()
        if at >= self._due:
            self._look(at)
        return self._left

    def _look(self, at: float) -> None:
        before, self._before = self._before, None
        self._due = at + _WINDOW
        try:
            self._before = now = Look(at, self._idle_seconds(self._cores), self.own_seconds())
        except (OSError, ValueError, IndexError):  # no such file in some sandboxes, or no descriptor just now
            self._left = len(self._cores)
            return
        if before is not None and at - before.at < 4 * _WINDOW:  # a longer time says little of now
            self._left = cores_left(len(self._cores), before, now)


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
