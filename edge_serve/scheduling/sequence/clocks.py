"""Timers of sequences: one for each, set to the earliest time that was asked for."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from edge_serve.scheduling.sequence.sequence import Sequence

#: clocks of sequences that left are removed when there are this many more clocks than needed
_SLACK = 64


class Clocks:
    """A heap of (when, number, sequence); a sequence's `clock_ns` says which of its entries counts."""

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []
        self._number = 0

    def first_ns(self) -> int:
        """Return the earliest time at which a timer may ring; 0 = never."""
        return self._heap[0][0] if self._heap else 0

    def set(self, sequence: Sequence, at_ns: int, known: int) -> None:
        """Ring at `at_ns`, unless the sequence's timer rings earlier. There are `known` sequences."""
        if 0 < sequence.clock_ns <= at_ns:
            return
        heap = self._heap
        if len(heap) > 4 * known + _SLACK:
            heap[:] = [c for c in heap if c[2].clock_ns == c[0] and c[2].queue]
            heapify(heap)
        sequence.clock_ns = at_ns
        self._number += 1
        heappush(heap, (at_ns, self._number, sequence))

    def ring(self, now_ns: int) -> Sequence | None:
        """Return a sequence whose timer has rung, and clear the timer. None = there is none."""
        while self._heap and self._heap[0][0] <= now_ns:
            at_ns, _, sequence = heappop(self._heap)
            if sequence.clock_ns == at_ns:
                sequence.clock_ns = 0
                return sequence
        return None


def earlier(one_ns: int, other_ns: int) -> int:
    """Return the earlier of two times, where 0 means none."""
    return min(one_ns, other_ns) if one_ns and other_ns else one_ns or other_ns
