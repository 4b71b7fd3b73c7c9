"""The wait-for graph of instances whose models call models: detects calls that would wait for ever.

An instance whose only thread waits for an answer continues once any of the instances that can give it does. A call is
refused if the graph leads from it to no instance that is free or at work, because none of them would ever continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: a driver, and the number of one of its instances
Place = tuple[object, int]
#: returns the instances of which one must continue; None once the wait has ended
WaitsFor = Callable[[], "Iterable[Place] | None"]


class WaitForGraph:
    """The instances that wait for an answer."""

    def __init__(self) -> None:
        self._waiting: dict[Place, WaitsFor] = {}

    def try_wait(self, place: Place, waits_for: WaitsFor) -> bool:
        """Add an instance that waits. Return False, and add nothing, if it would wait for ever."""
        before = self._waiting.get(place)
        if not self.add(place, waits_for):
            return True
        if before is None:
            del self._waiting[place]
        else:
            self._waiting[place] = before
        return False

    def add(self, place: Place, waits_for: WaitsFor) -> set[Place]:
        """Add an instance that waits. Return the instances that now wait for each other for ever, with it; empty = it
        will continue."""
        self._waiting[place] = waits_for
        seen, left = {place}, [place]
        while left:
            waits = self._waiting.get(left.pop())
            others = waits() if waits is not None else None
            if others is None:
                return set()
            new = set(others) - seen
            seen |= new
            left += new
        return seen

    def remove(self, place: Place) -> None:
        """Remove an instance: it has an answer."""
        self._waiting.pop(place, None)
