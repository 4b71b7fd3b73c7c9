"""The wait-for graph of instances whose models call models: detects calls that would wait for ever.

An instance whose only thread waits for an answer continues once any of the instances that can give it does. A call is
refused if the graph leads from it to no instance that is free or at work, because none of them would ever continue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

#: a driver, and the number of one of its instances
Place = tuple[object, int]


def find_deadlock(
    place: Place, first: Collection[Place] | None, waits_for: Callable[[Place], Collection[Place] | None]
) -> set[Place]:
    """Return the instances that wait for each other for ever, with `place`; empty = it will continue.

    Args:
        first: the instances of which one must continue before `place` does; None = it does not wait.
        waits_for: returns the same for another instance.
    """
    seen, left = {place}, [first]
    while left:
        others = left.pop()
        if others is None:
            return set()
        new = set(others) - seen
        seen |= new
        left += map(waits_for, new)
    return seen
