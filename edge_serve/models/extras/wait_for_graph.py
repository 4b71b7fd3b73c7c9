"""Which instances wait for which, while models call models: so that nobody waits for ever in a circle.

An instance whose only thread waits for an answer goes on once any of the instances that can give it does. A call is
refused when following these leads to no instance that is free or at work: then none of them would ever go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: whose instance, and its number
Place = tuple[object, int]
#: the instances of which one must go on; None once nobody waits any more
WaitsFor = Callable[[], "Iterable[Place] | None"]


class WaitForGraph:
    """The instances that wait for an answer."""

    def __init__(self) -> None:
        self._waiting: dict[Place, WaitsFor] = {}

    def begin(self, place: Place, waits_for: WaitsFor) -> bool:
        """An instance waits from now on; False, and nothing is noted, when it would wait for ever."""
        before = self._waiting.get(place)
        if not self.note(place, waits_for):
            return True
        if before is None:
            del self._waiting[place]
        else:
            self._waiting[place] = before
        return False

    def note(self, place: Place, waits_for: WaitsFor) -> set[Place]:
        """An instance waits from now on; those that wait for each other for ever, it among them. None: it goes on."""
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

    def forget(self, place: Place) -> None:
        """It has an answer."""
        self._waiting.pop(place, None)
