"""The instances of a model, and which of them are idle.

Triton wakes any of the threads that wait for a batch, so clients see no order. Here the instance used last comes first,
because its caches are warm, and an unused one is woken only under load.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import Any


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
        busy: the number of busy instances, including retiring ones.
    """

    __slots__ = ("_state", "busy", "idle")

    def __init__(self, count: int, passive: Collection[int] = ()) -> None:
        self._state = {n: InstanceState.PASSIVE if n in passive else InstanceState.IDLE for n in range(count)}
        self.idle = [n for n in reversed(range(count)) if self._state[n] is InstanceState.IDLE]
        self.busy = 0

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
        number = self.idle.pop()
        self._state[number] = InstanceState.BUSY
        self.busy += 1
        return number

    def use(self, number: int) -> None:
        """Make this idle instance busy.

        Raises:
            ValueError: it is not idle.
        """
        self.idle.remove(number)
        self._state[number] = InstanceState.BUSY
        self.busy += 1

    def done(self, number: int) -> None:
        """Make an instance idle that has finished. No effect on an instance that was lost meanwhile."""
        state = self._state.get(number)
        if state is InstanceState.BUSY:
            self._state[number] = InstanceState.IDLE
            self.idle.append(number)
            self.busy -= 1
        elif state is InstanceState.RETIRING:
            del self._state[number]
            self.busy -= 1

    def lost(self, number: int) -> None:
        """Mark an instance whose worker died, in whatever state it was."""
        state = self._state.get(number)
        if state is InstanceState.RETIRING:
            self.done(number)
            return
        if state is InstanceState.IDLE:
            self.idle.remove(number)
        elif state is InstanceState.BUSY:
            self.busy -= 1
        if state is not InstanceState.PASSIVE and state is not None:
            self._state[number] = InstanceState.LOST

    def back(self, number: int) -> None:
        """Make a lost instance idle again, queued behind the warm ones."""
        if self._state.get(number) is InstanceState.LOST:
            self._state[number] = InstanceState.IDLE
            self.idle.insert(0, number)

    def count(self) -> int:
        """Return the number of instances, idle or not."""
        return len(self._state)

    def passive(self) -> list[int]:
        """Return the numbers of those that never get work."""
        return [n for n, state in self._state.items() if state is InstanceState.PASSIVE]

    def _check(self) -> None:
        assert self.busy == sum(state in (InstanceState.BUSY, InstanceState.RETIRING) for state in self._state.values())
        assert sorted(self.idle) == sorted(n for n, state in self._state.items() if state is InstanceState.IDLE)


class RankedInstances(Instances):
    """Takes the idle instance of the lowest rank; among equal ones, the one used last.

    Args:
        rank: returns the rank of an idle instance; called each time.
    """

    __slots__ = ("_rank",)

    def __init__(self, count: int, passive: Collection[int], rank: Callable[[int], Any]) -> None:
        super().__init__(count, passive)
        self._rank = rank

    def take(self) -> int:
        """See `Instances.take`."""
        if len(self.idle) > 1:
            best = min(reversed(self.idle), key=self._rank)
            self.idle.remove(best)
            self.idle.append(best)
        return super().take()
