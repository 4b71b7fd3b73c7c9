"""`preserve_ordering`: responses leave in the order in which their requests were taken into batches."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class ResponseOrder(Generic[T]):
    """Delays responses until those of all earlier requests have left. A request may have any number of responses; the
    last one is marked final, and each place must see one."""

    __slots__ = ("_early", "_first", "_next")

    def __init__(self) -> None:
        self._next = 0
        #: the place whose responses may leave now
        self._first = 0
        #: place -> (its responses, whether the last one is among them)
        self._early: dict[int, tuple[list[T], bool]] = {}

    def enter(self) -> int:
        """Return a place for the next request."""
        place = self._next
        self._next += 1
        return place

    def ready(self, place: int, response: T, final: bool = True) -> list[T]:
        """Return the responses that may leave now, in order."""
        if place != self._first:
            earlier, _ = self._early.get(place, ([], False))
            earlier.append(response)
            self._early[place] = (earlier, final)
            return []
        leaving = [response]
        while final:
            self._first += 1
            following, final = self._early.pop(self._first, ([], False))
            leaving.extend(following)
        return leaving
