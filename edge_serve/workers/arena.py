"""Tensor memory: one sparse, sealed memfd per model version, which the front end alone divides into slots.

Both processes map it once; pages come on first use, and `trim` gives back those that have been idle. A memfd has no
name: nothing stays behind when either side is killed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator

from edge_serve.aio.callbacks import notify
from edge_serve.errors import Unavailable

PAGE = mmap.PAGESIZE
#: a worker that shrinks the file must not kill the front end with SIGBUS
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
#: how much one call of `trim` punches out; the kernel frees about 4 MiB a millisecond
TRIM_BYTES = 16 << 20

#: bytes of a label that the kernel takes are 249 (memfd_create(2))
_LONGEST_LABEL = 200

_IDLE = re.compile(b"\x02+")
_AGE = bytes.maketrans(b"\x01", b"\x02")


def default_capacity() -> int:
    """Address space of an arena: 4 GiB, or twice the machine's memory where that is less."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(4 << 30, -(-2 * ram // PAGE) * PAGE)


class Budget:
    """Bytes that all slots of the server may hold together."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, nbytes: int) -> bool:
        """Account for `nbytes`; False, and nothing taken, when they do not fit."""
        if self.used + nbytes > self.limit:
            return False
        self.used += nbytes
        return True

    def give(self, nbytes: int) -> None:
        """`nbytes` are free again."""
        self.used -= nbytes


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
        """First page of `count` consecutive ones, now in use; None when there is no such gap."""
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

    def give(self, start: int, count: int) -> None:
        """`count` pages from `start`, taken earlier, are free again."""
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
        """(first page, count) of every gap, in order."""
        return zip(self._starts, self._counts, strict=True)

    def largest(self) -> int:
        """Pages of the largest gap."""
        return max(self._counts, default=0)

    def _check(self) -> None:
        end = -1
        for start, count in self.free():
            assert count > 0, "an empty gap"
            assert start > end, "gaps overlap, touch, or are out of order"
            end = start + count
        assert end <= self.pages, "a gap reaches beyond the end"
        assert sum(self._counts) + self.used == self.pages, "pages were lost"


class Slot:
    """A piece of an arena; implements `messages.infer.Lease`.

    Attributes:
        capacity: bytes asked for; `view` is that long.
    """

    __slots__ = ("_pages", "arena", "capacity", "offset")

    def __init__(self, arena: Arena, offset: int, capacity: int, pages: int) -> None:
        self.arena = arena
        self.offset = offset
        self.capacity = capacity
        self._pages = pages

    @property
    def view(self) -> memoryview:
        """The bytes, writable."""
        return self.arena.view[self.offset : self.offset + self.capacity]

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        pages, self._pages = self._pages, 0
        if pages:
            self.arena.give(self.offset // PAGE, pages)


def _made(name: str, size: int) -> tuple[int, mmap.mmap]:
    """A sealed file without a name in any directory, and the map of it."""
    label = os.fsencode(f"edge-serve:{name}")[:_LONGEST_LABEL]
    fd = -1
    try:
        fd = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)  # type: ignore[arg-type]  # bytes will do
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        return fd, mmap.mmap(fd, size)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise Unavailable(f"no tensor memory for model '{name}': {error.strerror}") from error


class Arena:
    """The tensor memory of one model version.

    Args:
        name: for the kernel's listing (`/proc/<pid>/fd`) and for messages.
        budget: shared by all arenas of the server.
        capacity: address space, not memory.

    Raises:
        Unavailable: the machine has no descriptor or no address space left.

    Attributes:
        on_close: called when it closes: other models' workers may have been lent it.
    """

    def __init__(self, name: str, budget: Budget, capacity: int = 0) -> None:
        self.name = name
        self.size = -(-(capacity or default_capacity()) // PAGE) * PAGE
        self.fd, self._map = _made(name, self.size)
        self.view = memoryview(self._map)
        self._budget = budget
        self._extents = Extents(self.size // PAGE)
        # one byte a page: 0 has no memory, 1 has and was used since the last trim, 2 has and was idle then
        self._states = bytearray(self.size // PAGE)
        self._high = 0  # no page from here on was ever used
        self.on_close: list[Callable[[Arena], None]] = []

    @property
    def used_bytes(self) -> int:
        """Bytes of all slots, in whole pages."""
        return self._extents.used * PAGE

    def allocate(self, nbytes: int) -> Slot:
        """A slot of `nbytes`, with memory behind every page.

        Raises:
            Unavailable: the budget, the arena or the machine's memory does not hold that much now.
        """
        pages = -(-nbytes // PAGE) or 1
        size = pages * PAGE
        budget = self._budget
        if not budget.take(size):
            raise Unavailable(
                f"no tensor memory for {nbytes} bytes of model '{self.name}': "
                f"{budget.used} of {budget.limit} bytes are in use; try again, or raise the limit"
            )
        start = self._extents.take(pages)
        if start is None:
            budget.give(size)
            raise Unavailable(
                f"no tensor memory for {nbytes} bytes of model '{self.name}': {self.used_bytes} of {self.size} bytes "
                f"of its arena are in use and the largest gap has {self._extents.largest() * PAGE}"
            )
        self._populate(start, pages)
        return Slot(self, start * PAGE, nbytes, pages)

    def _populate(self, start: int, pages: int) -> None:
        """Reserve memory now, so that a machine without any refuses here and not by SIGBUS at the first write."""
        end = start + pages
        states = self._states
        cold = states.find(0, start, end)
        if cold >= 0 or self.fd < 0:
            try:
                os.posix_fallocate(self.fd, cold * PAGE, (end - cold) * PAGE)
            except OSError as error:
                self.give(start, pages)
                raise Unavailable(
                    f"no memory for {pages * PAGE} bytes of tensors of model '{self.name}': {error.strerror}"
                ) from error
        states[start:end] = b"\x01" * pages
        if end > self._high:
            self._high = end

    def give(self, start: int, pages: int) -> None:
        """Pages of a slot are free again (called by `Slot.release`)."""
        self._extents.give(start, pages)
        self._budget.give(pages * PAGE)

    def trim(self, limit: int = TRIM_BYTES) -> int:
        """Give back the memory of pages that were free during the whole time since the last period.

        Call it once a period, and again while it returns `limit`: then there is more.

        Returns:
            Bytes given back.
        """
        left = limit // PAGE
        for start, end in self._touched_gaps():
            for run in _IDLE.finditer(bytes(self._states[start:end])):
                first, pages = start + run.start(), min(run.end() - run.start(), left)
                self._map.madvise(mmap.MADV_REMOVE, first * PAGE, pages * PAGE)
                self._states[first : first + pages] = bytes(pages)
                left -= pages
                if not left:
                    return limit
        for start, end in self._touched_gaps():
            self._states[start:end] = self._states[start:end].translate(_AGE)
        return limit - left * PAGE

    def _touched_gaps(self) -> list[tuple[int, int]]:
        high = self._high
        return [(start, min(start + count, high)) for start, count in self._extents.free() if start < high]

    def close(self) -> None:
        """No new slots; the mapping goes when the last view of it does."""
        if self.fd >= 0:
            for tell in list(self.on_close):
                notify(tell, self)
            self.on_close.clear()
            os.close(self.fd)
            self.fd = -1
            self.view = memoryview(b"")
            self._states = bytearray()  # a MiB of it: whoever still knows this arena should not keep that
            self._high = 0
            del self._map
