"""Busy polling (ADR 17): the event loop polls for a worker's reply instead of sleeping, where that costs no one a core.

A lone client's request wakes the front end and the worker in turn, and waking a thread takes longer than a small model
computes. `PollPolicy` decides which side may poll and for how long, `FreeCores` counts the cores that other programs
leave, and `PollingSelector` is the event loop's selector, which polls. The worker's wait is in `child/instance`.
"""

from __future__ import annotations

import logging
import math
import os
import select
import time
from collections.abc import Callable, Collection
from dataclasses import field
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE, EpollSelector, SelectorKey
from typing import Any

from edge_serve.records import frozen, slotted
from edge_serve.workers.wire.polling_wait import PollingWait

log = logging.getLogger(__name__)

_Ready = list[tuple[SelectorKey, int]]

#: events that one call returns; the kernel returns the others first at the next call
_MOST = 128
#: seconds between samples, long enough for the kernel's counters, which advance in steps of 10 ms
_WINDOW = 0.25
#: part of a core that other programs may use while it counts as free: a client on the same machine uses some
_SHARED = 0.6
_STAT = Path("/proc/stat")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@slotted
class PollPolicy:
    """Decides which threads may poll, so that a polling thread never takes a core from a computing one.

    The front end has one for the whole server.

    Attributes:
        poll_us: the longest time for which front end and worker poll; 0 = never.
        cores: cores that this server has to itself, as far as it knows.
        out: batches in flight, each of which keeps a core busy.
        recent: the instances of the latest batches, latest first: at most one for each core but the front end's.
        free_cores: counts the cores that other programs leave; None = all of them.
    """

    poll_us: int = 0
    cores: int = 1
    out: int = 0
    recent: list[int] = field(default_factory=list)
    free_cores: FreeCores | None = None

    def front_end_ns(self) -> int:
        """Return the longest time for which the front end may poll now.

        It polls only while a batch is in flight: then the next event is a reply, and comes soon.
        """
        return self.poll_us * 1000 if 0 < self.out < self.cores else 0

    def worker_us(self, instance: int, requests: int) -> int:
        """Return the longest time for which an instance may poll after its next batch, which has so many requests.

        After a batch of several, clients are waiting already: no core is idle, and polling gains nothing. An instance
        that is not among the latest would poll while another one works, as the steps of an ensemble would.
        """
        if self.free_cores is not None:
            self.cores = self.free_cores.count()
        recent = self.recent
        expected = instance in recent
        if not expected or recent[0] != instance:
            self.recent = [instance, *(one for one in recent if one != instance)][: self.cores - 1]
        return self.poll_us if expected and requests == 1 and self.out + 1 < self.cores else 0


def make_poll_policy(poll_us: int) -> PollPolicy:
    """Return the policy for this machine. It never polls on one core, on battery, or under a CPU quota."""
    cores = os.sched_getaffinity(0)
    if not poll_us or len(cores) == 1:
        return PollPolicy(0, len(cores))
    reason = "on battery" if is_on_battery() else "under a CPU quota" if has_cpu_quota(len(cores)) else ""
    if reason:
        log.debug("busy polling is off: the server was started %s", reason)
        return PollPolicy(0, len(cores))
    return PollPolicy(poll_us, len(cores), free_cores=FreeCores(cores))


def is_on_battery(supplies: Path = Path("/sys/class/power_supply")) -> bool:
    """Return whether a battery of this machine (not of a mouse, say) discharges.

    Source: the kernel's Documentation/ABI/testing/sysfs-class-power.
    """
    return any(
        _read(supply / "type") == "Battery"
        and _read(supply / "scope") != "Device"
        and _read(supply / "status") == "Discharging"
        for supply in supplies.glob("*")
    )


def has_cpu_quota(
    cores: int, membership: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")
) -> bool:
    """Return whether the process's control group, or one above it, has a quota (`cpu.max`) of less than all cores.

    A polling thread uses up the quota that computing needs. Only version 2 of control groups is examined.
    """
    _, found, path = _read(membership).rpartition("0::/")
    group = groups / path if found else groups
    for one in (group, *group.parents):
        quota, _, period = _read(one / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(quota) < cores * int(period):
            return True
        if one == groups:
            break
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):  # not on this machine
        return ""


@frozen
class CpuSample:
    """CPU time at one moment; seconds.

    Attributes:
        idle: idle time of all cores, added up.
        own: CPU time of the server's processes, added up.
    """

    at: float
    idle: float
    own: float


def free_between(cores: int, before: CpuSample, now: CpuSample) -> int:
    """Return how many of the cores were idle or used by the server itself between two samples; at least 1."""
    elapsed = now.at - before.at
    free = (now.idle - before.idle + now.own - before.own) / elapsed
    return max(1, min(cores, int(free + _SHARED)))


def idle_seconds(cores: Collection[int]) -> float:
    """Return the idle time of these cores, added up.

    Source: proc(5), /proc/stat: user, nice, system, idle, iowait of each core.

    Raises:
        OSError: the file cannot be read.
        ValueError, IndexError: the file has another format.
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
    """Counts the cores that other programs leave to this server.

    Args:
        cores: numbers of those that this process may run on.
        read_idle: as `idle_seconds`.

    Attributes:
        own_seconds: returns the CPU time of the server's processes.
    """

    __slots__ = ("_before", "_clock", "_cores", "_due", "_free", "_read_idle", "own_seconds")

    def __init__(
        self,
        cores: Collection[int],
        own_seconds: Callable[[], float] = time.process_time,
        read_idle: Callable[[Collection[int]], float] = idle_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.own_seconds = own_seconds
        self._cores = frozenset(cores)
        self._read_idle = read_idle
        self._clock = clock
        self._before: CpuSample | None = None
        self._due = 0.0
        self._free = len(self._cores)

    def count(self) -> int:
        """Return the number of free cores, from samples at most four times a second: cheap enough for each batch."""
        at = self._clock()
        if at >= self._due:
            self._sample(at)
        return self._free

    def _sample(self, at: float) -> None:
        before, self._before = self._before, None
        self._due = at + _WINDOW
        try:
            self._before = now = CpuSample(at, self._read_idle(self._cores), self.own_seconds())
        except (OSError, ValueError, IndexError):  # some sandboxes hide the file, or no descriptor is left
            self._free = len(self._cores)
            return
        if before is not None and at - before.at < 4 * _WINDOW:  # a longer window says little about the present
            self._free = free_between(len(self._cores), before, now)


class PollingSelector(EpollSelector):
    """The event loop's selector: polls through short waits for a worker's reply.

    It calls the kernel through its own object for the same epoll. Its base class would allocate room for as many events
    as there are connections in each call, and look up each event in two steps.
    """

    def __init__(self, policy: PollPolicy) -> None:
        super().__init__()
        self._policy = policy
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
        most = self._policy.front_end_ns()
        if not most or (timeout is not None and timeout <= 0):
            return self._poll_kernel(timeout)
        clock = time.monotonic_ns
        began = clock()
        poll = self._wait.poll_ns(most)
        if timeout is not None:
            poll = min(poll, int(timeout * 1e9))
        ready: _Ready = []
        while not ready and clock() - began < poll:
            ready = self._poll_kernel(0)
        ready = ready or self._poll_kernel(timeout)
        self._wait.note(clock() - began, most)
        return ready

    def _poll_kernel(self, timeout: float | None) -> _Ready:
        if timeout:  # epoll counts in milliseconds; round up, so that it does not return before the time
            timeout = max(0, math.ceil(timeout * 1e3) * 1e-3)
        keys, ready = self._keys, []
        for fd, event in self._epoll.poll(timeout, _MOST):
            key = keys.get(fd)
            if key is not None:  # an error or a hang-up wakes readers and writers
                mask = (event & ~select.EPOLLOUT and EVENT_READ) | (event & ~select.EPOLLIN and EVENT_WRITE)
                ready.append((key, mask & key.events))
        return ready
