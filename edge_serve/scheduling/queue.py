"""The queue of a model, and the instances that its entries wait for.

Rules: triton-inference-server/core src/scheduler_utils.cc (PriorityQueue, PolicyQueue). Level 1 is served first; within
a level the order is arrival, and entries whose timeout ran out under the policy DELAY come after the others.

Everything is O(1) amortised, except timeouts, which are O(log n) unless they are added in the order in which they end.
The queue keeps no reference to an entry that left, because a request may hold megabytes.

Triton wakes any of the threads that wait for a batch, so clients see no order of instances. Here the instance used last
comes first, because its caches are warm, and an unused one is woken only under load.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import attrgetter
from typing import Any

from edge_serve.errors import Unavailable
from edge_serve.messages.infer import InferRequest
from edge_serve.scheduling.core import Entry, QueuePolicy, Refuse, label

#: clocks of entries that left are removed when there are this many more clocks than needed
_SLACK = 64

_number = attrgetter("number")


class Level:
    """One priority level: entries by ticket, in the order in which they are served."""

    __slots__ = ("delayed", "fresh", "number", "policy")

    def __init__(self, number: int, policy: QueuePolicy) -> None:
        self.number = number
        self.policy = policy
        self.fresh: OrderedDict[int, Entry] = OrderedDict()
        self.delayed: OrderedDict[int, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self.fresh) + len(self.delayed)

    def get(self, ticket: int) -> Entry | None:
        """Return the entry with this ticket, if it is still queued."""
        return self.fresh.get(ticket) or self.delayed.get(ticket)


class PriorityQueue:
    """Entries that wait for an instance.

    Attributes:
        rows: their batch sizes together; an empty batch counts as one row, as in Triton.
        version: changes whenever the queue does, unless an entry came in at the end.
    """

    def __init__(self, default_policy: QueuePolicy, policies: Mapping[int, QueuePolicy] | None = None) -> None:
        self.rows = 0
        self.version = 0
        self._default_policy = default_policy
        self._policies = policies or {}
        self._count = 0
        self._last_ticket = 0
        self._levels: dict[int, Level] = {}
        #: levels with entries, the first to be served first
        self._active: list[Level] = []
        #: heap of (when, ticket, level); clocks of entries that left are removed when they are the first
        self._clocks: list[tuple[int, int, Level]] = []

    def __len__(self) -> int:
        return self._count

    def add(self, entry: Entry, number: int, now_ns: int) -> None:
        """Queue an entry at priority level `number`; sets its ticket, level and timeout.

        Raises:
            Unavailable: the level is full.
        """
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = Level(number, self._policies.get(number, self._default_policy))
        waiting, policy = len(level.fresh) + len(level.delayed), level.policy
        if policy.max_queue_size and waiting >= policy.max_queue_size:
            raise Unavailable(f"{label(entry.request)}Exceeds maximum queue size")
        if not waiting:
            insort(self._active, level, key=_number)
        if level is not self._active[-1] or level.delayed:
            self.version += 1
        entry.ticket = self._last_ticket = ticket = self._last_ticket + 1
        entry.level = number
        level.fresh[ticket] = entry
        self.rows += entry.rows or 1
        self._count += 1
        timeout_us = _timeout_us(policy, entry.request) if policy.default_timeout_us else 0
        entry.timeout_at_ns = now_ns + timeout_us * 1000 if timeout_us else 0
        if timeout_us or entry.request.deadline_ns:
            self._start_clocks(entry, level)

    def walk(self) -> Iterator[Entry]:
        """Iterate over the entries in the order in which they are served. The queue must not change meanwhile."""
        if len(self._active) == 1 and not self._active[0].delayed:
            return iter(self._active[0].fresh.values())
        return chain.from_iterable(part.values() for level in self._active for part in (level.fresh, level.delayed))

    def take(self, count: int) -> list[Entry]:
        """Remove and return the first `count` entries, or all when there are fewer."""
        taken: list[Entry] = []
        rows = 0
        while self._active and len(taken) < count:
            level = self._active[0]
            part = level.fresh or level.delayed
            for _ in range(min(len(part), count - len(taken))):
                entry = part.popitem(last=False)[1]
                rows += entry.rows or 1
                taken.append(entry)
            if not level:
                del self._active[0]
        self.rows -= rows
        self.version += 1
        self._count -= len(taken)
        return taken

    def cancel(self, entry: Entry) -> bool:
        """Remove an entry. Return False if it is not queued."""
        level = self._levels.get(entry.level)
        if level is None or level.get(entry.ticket) is not entry:
            return False
        self._remove(entry, level)
        return True

    def expire(self, now_ns: int) -> Refuse | None:
        """Remove one entry whose timeout or deadline is over; delay those whose policy asks for it. Call until None."""
        while self._clocks and self._clocks[0][0] <= now_ns:
            at_ns, ticket, level = heappop(self._clocks)
            entry = level.get(ticket)
            if entry is None:
                continue
            if at_ns != entry.request.deadline_ns and level.policy.delay_on_timeout:
                level.delayed[ticket] = level.fresh.pop(ticket)
                entry.timeout_at_ns = 0
                self.version += 1
                continue
            self._remove(entry, level)
            late = at_ns == entry.request.deadline_ns
            return Refuse(entry, deadline_expired(entry.request) if late else Unavailable("Request timeout expired"))
        return None

    def next_expiry_ns(self) -> int:
        """Return when `expire` must be called next; 0 = never, as things stand."""
        while self._clocks:
            at_ns, ticket, level = self._clocks[0]
            if level.get(ticket) is not None:
                return at_ns
            heappop(self._clocks)
        return 0

    def _remove(self, entry: Entry, level: Level) -> None:
        if level.fresh.pop(entry.ticket, None) is None:
            del level.delayed[entry.ticket]
        if not level:
            self._active.remove(level)
        self.rows -= entry.rows or 1
        self.version += 1
        self._count -= 1

    def _start_clocks(self, entry: Entry, level: Level) -> None:
        clocks = self._clocks
        if len(clocks) > 4 * self._count + _SLACK:  # an entry has two at most: more than half are of entries that left
            clocks[:] = [clock for clock in clocks if clock[2].get(clock[1]) is not None]
            heapify(clocks)
        if entry.timeout_at_ns:
            heappush(clocks, (entry.timeout_at_ns, entry.ticket, level))
        if entry.request.deadline_ns and entry.request.deadline_ns != entry.timeout_at_ns:
            heappush(clocks, (entry.request.deadline_ns, entry.ticket, level))

    def _check(self) -> None:
        waiting = list(self.walk())
        assert len(waiting) == self._count == len({entry.ticket for entry in waiting})
        assert self.rows == sum(max(1, entry.rows) for entry in waiting)
        assert [level.number for level in self._active] == sorted(n for n, level in self._levels.items() if level)
        clocks = set(self._clocks)
        assert all(self._clocks[(i - 1) // 2][0] <= self._clocks[i][0] for i in range(1, len(self._clocks)))
        for number, level in self._levels.items():
            assert list(level.fresh) == sorted(level.fresh)
            for ticket, entry in chain(level.fresh.items(), level.delayed.items()):
                assert (entry.ticket, entry.level) == (ticket, number)
                for at_ns in (entry.timeout_at_ns, entry.request.deadline_ns):
                    assert not at_ns or (at_ns, ticket, level) in clocks


def _timeout_us(policy: QueuePolicy, request: InferRequest) -> int:
    """Return the timeout of a request. It may shorten the default where the policy allows it, never lengthen it."""
    if policy.allow_timeout_override and 0 < request.timeout_us < policy.default_timeout_us:
        return request.timeout_us
    return policy.default_timeout_us


def stopping(request: InferRequest) -> Unavailable:
    """Return the error for a request that came after `Scheduler.stop`."""
    text = "Server is stopping, scheduler for model has stopped accepting new inference requests"
    return Unavailable(label(request) + text)


def deadline_expired(request: InferRequest) -> Unavailable:
    """Return the error for a request that was not started before its deadline."""
    return Unavailable(f"{label(request)}Request deadline expired: not started within its 'timeout-ms'")


class InstanceState(Enum):
    """The state of an instance. A PASSIVE one (`instance_group.passive`) never gets work. A RETIRING one is busy, and
    is removed after that."""

    IDLE = 0
    BUSY = 1
    LOST = 2
    PASSIVE = 3
    RETIRING = 4


class Instances:
    """The instances of one model by number.

    Attributes:
        idle: numbers of the idle instances; the last one is the next to be used.
        rank: returns the rank of an idle instance, called each time: the one of the lowest is used, and among equal
            ones the one used last; None = there are no ranks.
    """

    __slots__ = ("_state", "idle", "rank")

    def __init__(self, count: int, passive: Collection[int] = ()) -> None:
        self._state = {n: InstanceState.PASSIVE if n in passive else InstanceState.IDLE for n in range(count)}
        self.idle = [n for n in reversed(range(count)) if self._state[n] is InstanceState.IDLE]
        self.rank: Callable[[int], Any] | None = None

    def add(self, number: int, *, passive: bool = False) -> None:
        """Add an instance that is idle. No other had its number before."""
        self._state[number] = InstanceState.PASSIVE if passive else InstanceState.IDLE
        if not passive:
            self.idle.insert(0, number)

    def retire(self, number: int) -> None:
        """Remove an instance; a busy one gets no more work, and is removed when it is done or lost."""
        state = self._state.get(number)
        if state is InstanceState.BUSY:
            self._state[number] = InstanceState.RETIRING
        elif state is not None and state is not InstanceState.RETIRING:
            if state is InstanceState.IDLE:
                self.idle.remove(number)
            del self._state[number]

    def has(self, number: int) -> bool:
        """Return whether an instance was not removed."""
        return number in self._state

    def take(self) -> int:
        """Make an idle instance busy, and return its number.

        Raises:
            IndexError: none is idle.
        """
        if self.rank is not None and len(self.idle) > 1:
            number = min(reversed(self.idle), key=self.rank)
            self.idle.remove(number)
        else:
            number = self.idle.pop()
        self._state[number] = InstanceState.BUSY
        return number

    def use(self, number: int) -> None:
        """Make this idle instance busy.

        Raises:
            ValueError: it is not idle.
        """
        self.idle.remove(number)
        self._state[number] = InstanceState.BUSY

    def done(self, number: int) -> None:
        """Make an instance idle that has finished. No effect on an instance that was lost meanwhile."""
        state = self._state.get(number)
        if state is InstanceState.BUSY:
            self._state[number] = InstanceState.IDLE
            self.idle.append(number)
        elif state is InstanceState.RETIRING:
            del self._state[number]

    def lost(self, number: int) -> None:
        """Mark an instance whose worker died, in whatever state it was."""
        state = self._state.get(number)
        if state is InstanceState.RETIRING:
            del self._state[number]
        elif state is not None and state is not InstanceState.PASSIVE:
            if state is InstanceState.IDLE:
                self.idle.remove(number)
            self._state[number] = InstanceState.LOST

    def back(self, number: int) -> None:
        """Make a lost instance idle again, queued behind the warm ones."""
        if self._state.get(number) is InstanceState.LOST:
            self._state[number] = InstanceState.IDLE
            self.idle.insert(0, number)

    def is_lost(self) -> bool:
        """Return whether an instance is lost, and no other is idle or busy."""
        states = set(self._state.values())
        return InstanceState.LOST in states and states.isdisjoint((InstanceState.IDLE, InstanceState.BUSY))

    def _check(self) -> None:
        assert sorted(self.idle) == sorted(n for n, state in self._state.items() if state is InstanceState.IDLE)
