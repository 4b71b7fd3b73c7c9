"""The slots for sequences: a fixed number in each instance. The lowest free slot is taken first, so instances fill
evenly."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class SequenceSlots(Generic[T]):
    """Assigns sequences to slots of instances. Memory grows with the slots ever taken, not with `count`.

    Attributes:
        closed: instances whose free slots are not taken any more.
    """

    def __init__(self, instances: Collection[int], count: int) -> None:
        self._count = count
        self._taken: dict[int, dict[int, T]] = {instance: {} for instance in instances}
        #: slots below this one were taken at some time
        self._fresh = dict.fromkeys(instances, 0)
        #: heap of (slot, instance): released slots, and the first fresh one of each instance
        self._free = [(0, instance) for instance in instances]
        self._away: set[int] = set()
        self.closed: set[int] = set()
        heapify(self._free)

    def add(self, instance: int) -> None:
        """Add an instance with all its slots free."""
        self._taken[instance] = {}
        self._fresh[instance] = 0
        heappush(self._free, (0, instance))

    def close(self, instance: int) -> None:
        """Assign no more slots in an instance. Those that are taken stay taken until they are released."""
        self.closed.add(instance)
        self._free = [free for free in self._free if free[1] != instance]
        heapify(self._free)

    def discard(self, instance: int) -> None:
        """Remove an instance without sequences."""
        self._taken.pop(instance, None)
        self._fresh.pop(instance, None)
        self._away.discard(instance)
        self.closed.discard(instance)

    def take(self, sequence: T) -> tuple[int, int] | None:
        """Take the lowest free slot, and return (instance, slot); None if all are taken."""
        if not self._free:
            return None
        slot, instance = heappop(self._free)
        if slot == self._fresh[instance]:
            self._fresh[instance] = slot + 1
            if slot + 1 < self._count:
                heappush(self._free, (slot + 1, instance))
        self._taken[instance][slot] = sequence
        return instance, slot

    def release(self, instance: int, slot: int) -> None:
        """Release a slot."""
        del self._taken[instance][slot]
        if instance not in self.closed:
            heappush(self._free, (slot, instance))

    def at(self, instance: int) -> dict[int, T]:
        """Return the sequences in an instance, by slot."""
        return self._taken.get(instance, {})

    def remove(self, instance: int) -> list[T]:
        """Release all slots of an instance that was lost. Return its sequences, by slot."""
        if instance not in self._taken or instance in self._away:
            return []
        self._away.add(instance)
        taken = self._taken[instance]
        self._taken[instance] = {}
        self._free = [free for free in self._free if free[1] != instance]
        heapify(self._free)
        return [taken[slot] for slot in sorted(taken)]

    def restore(self, instance: int) -> None:
        """Make all slots of an instance available that was lost."""
        if instance in self._away:
            self._away.remove(instance)
            self._fresh[instance] = 0
            if instance not in self.closed:
                heappush(self._free, (0, instance))

    def __iter__(self) -> Iterator[tuple[int, int, T]]:
        for instance, taken in self._taken.items():
            for slot, sequence in taken.items():
                yield instance, slot, sequence

    def _check(self) -> None:
        assert len(set(self._free)) == len(self._free)
        for instance, taken in self._taken.items():
            free = {slot for slot, where in self._free if where == instance}
            assert not free & taken.keys()
            if instance in self.closed:
                assert not free
                continue
            if instance in self._away:
                assert not free
                assert not taken
                continue
            fresh = self._fresh[instance]
            assert free | taken.keys() == set(range(min(fresh + 1, self._count)))
