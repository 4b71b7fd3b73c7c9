"""Free-space map of an arena: which pages are free."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Extents:
    """Which pages are free: first fit, neighbours are merged.

    First fit keeps the use at the low end, so the same warm pages serve again and again.
    """

    __slots__ = ("_counts", "_starts", "pages", "used")

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.used = 0
        self._starts = [0]
        self._counts = [pages]

    def take(self, count: int) -> int | None:
        """Take `count` consecutive pages. Return the first; None = there is no such gap."""
        counts = self._counts
        for i, free in enumerate(counts):
            if free >= count:
                start = self._starts[i]
                if free == count:
                    del self._starts[i], counts[i]
                else:
                    self._starts[i] = start + count
                    counts[i] = free - count
                self.used += count
                return start
        return None

    def take_at(self, start: int, count: int) -> None:
        """Take `count` pages from `start`, all of which are free."""
        starts, counts = self._starts, self._counts
        i = bisect_right(starts, start) - 1
        before, after = start - starts[i], starts[i] + counts[i] - start - count
        gaps = [(first, size) for first, size in ((starts[i], before), (start + count, after)) if size]
        starts[i : i + 1] = [first for first, _ in gaps]
        counts[i : i + 1] = [size for _, size in gaps]
        self.used += count

    def release(self, start: int, count: int) -> None:
        """Release `count` pages from `start`, which were taken earlier."""
        starts, counts = self._starts, self._counts
        i = bisect_left(starts, start)
        joins_next = i < len(starts) and starts[i] == start + count
        joins_previous = i > 0 and starts[i - 1] + counts[i - 1] == start
        if joins_previous and joins_next:
            counts[i - 1] += count + counts[i]
            del starts[i], counts[i]
        elif joins_previous:
            counts[i - 1] += count
        elif joins_next:
            starts[i] = start
            counts[i] += count
        else:
            starts.insert(i, start)
            counts.insert(i, count)
        self.used -= count

    def free(self) -> Iterator[tuple[int, int]]:
        """Return the first page and the number of pages of every gap, in order."""
        return zip(self._starts, self._counts, strict=True)

    def largest(self) -> int:
        """Return the number of pages of the largest gap."""
        return max(self._counts, default=0)

    def _check(self) -> None:
        end = -1
        for start, count in self.free():
            assert count > 0, "an empty gap"
            assert start > end, "gaps overlap, touch, or are out of order"
            end = start + count
        assert end <= self.pages, "a gap reaches beyond the end"
        assert sum(self._counts) + self.used == self.pages, "pages were lost"
