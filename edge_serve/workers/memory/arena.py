"""Tensor memory: one sparse, sealed memfd per model version, which the front end alone divides into slots.

Both processes map it once. Memory comes when a slot is first used, and `trim` returns pages that have been idle. What
takes the kernel long (clearing pages, freeing them) is done in threads. A memfd has no name: nothing stays behind when
either side is killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import mmap
import os
import re
from collections.abc import Callable, Sequence
from functools import partial

from edge_serve.aio.bulk_copy import work
from edge_serve.aio.tasks import notify
from edge_serve.errors import Unavailable
from edge_serve.workers.memory.extents import Extents
from edge_serve.workers.memory.pages import PAGE, dispose, punch, reserve
from edge_serve.workers.memory.pinned import PinnedPages, PinnedPool

log = logging.getLogger(__name__)

#: seconds; pages are idle when no slot had them for two whole periods (one, if they are many): after 1 to 1.5 seconds
PERIOD = 0.5
#: a worker that shrinks the file must not kill the front end with SIGBUS
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
#: bytes that `trim` withdraws from use at once, while a thread returns them
TRIM_BYTES = 64 << 20
#: bytes of a label that the kernel takes are 249 (memfd_create(2))
_LONGEST_LABEL = 200

# The state of a page is a byte. 0: it has no memory. 1, 2, 3: it has, and was used in this period, the last one, or
# neither. 4: it may have memory, because a thread failed to reserve or to return it.

_UNTOUCHED, _FAILED = 0, 4
#: what a slot has to reserve
_RESERVE = bytes.maketrans(b"\x00\x04", b"\x01\x01")
#: what can be returned
_IDLE_RUN = re.compile(b"[\x03\x04]+")
#: with so many touched pages free, those that were free for one whole period are idle: much takes long to return
_MANY = (256 << 20) // PAGE
_SOON_IDLE_RUN = re.compile(b"[\x02-\x04]+")
_AGE = bytes.maketrans(b"\x01\x02", b"\x02\x03")


def default_capacity() -> int:
    """Return the address space of an arena: 4 GiB, or twice the machine's memory where that is less."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(4 << 30, -(-2 * ram // PAGE) * PAGE)


class Budget:
    """Bytes that all slots of the server may hold together.

    Attributes:
        pinned: the pool for pages that workers register with a device.
        refused: slots that did not fit now, but would fit if others were released.
        warm: arenas that have memory, used or idle.
    """

    __slots__ = ("limit", "pinned", "refused", "used", "warm")

    def __init__(self, limit: int, pinned: PinnedPool | None = None) -> None:
        self.limit = limit
        self.used = self.refused = 0
        self.pinned = pinned or PinnedPool()
        self.warm: set[Arena] = set()

    def take(self, nbytes: int) -> bool:
        """Account for `nbytes`; False, and nothing taken, when they do not fit."""
        if self.used + nbytes > self.limit:
            self.refused += nbytes <= self.limit
            return False
        self.used += nbytes
        return True

    def release(self, nbytes: int) -> None:
        """Release `nbytes`."""
        self.used -= nbytes


class Slot:
    """A piece of an arena; implements `messages.infer.Lease`.

    Attributes:
        capacity: bytes asked for; `view` is that long.
        is_ready: there is memory behind every page. Until then nothing may be read or written.
        error: why there is none; the slot is of no use then.
    """

    __slots__ = ("_done", "_pages", "_released", "arena", "capacity", "error", "is_ready", "offset")

    def __init__(self, arena: Arena, offset: int, capacity: int, pages: int) -> None:
        self.arena = arena
        self.offset = offset
        self.capacity = capacity
        self.is_ready = True
        self.error: Unavailable | None = None
        self._pages = pages
        self._done: Callable[[], None] | None = None
        self._released = False

    @property
    def view(self) -> memoryview:
        """The bytes, writable."""
        return self.arena.view[self.offset : self.offset + self.capacity]

    def skip(self, count: int) -> None:
        """See `messages.infer.Room`."""
        self.offset += count
        self.capacity -= count

    def when_ready(self, done: Callable[[], None]) -> None:
        """Call `done` when `is_ready` or `error` is set, unless the slot is released before. At once if it is."""
        if self.is_ready:
            done()
        else:
            self._done = done

    def populated(self, error: Unavailable | None) -> None:
        """Note that the thread that populates the slot has ended (called by the arena)."""
        self.is_ready, self.error = True, error
        done, self._done = self._done, None
        if self._released:
            self._release_pages()
        elif done is not None:
            notify(done)

    def release(self) -> None:
        """Release the pages; a second call does nothing. Pages that a thread populates are released after that."""
        self._released, self._done = True, None
        if self.is_ready:
            self._release_pages()

    def _release_pages(self) -> None:
        pages, self._pages = self._pages, 0
        if pages:
            self.arena.release(self.offset // PAGE, pages)


class AcquiredPieces:
    """Pieces of an arena that stay as they are until `release`, whether or not their slots are released before;
    implements `messages.infer.Lease`."""

    __slots__ = ("_deferred", "_pieces", "arena")

    #: no view has all of them
    offset = -1
    view = memoryview(b"")

    def __init__(self, arena: Arena, pieces: Sequence[tuple[int, int]]) -> None:
        self.arena = arena
        self._pieces = pieces
        #: released pages, as (first, count)
        self._deferred: list[tuple[int, int]] = []

    def defer(self, start: int, pages: int) -> bool:
        """Take over released pages (called by the arena). Return False if no piece lies in them."""
        low, high = start * PAGE, (start + pages) * PAGE
        if not any(offset < high and offset + size > low for offset, size in self._pieces):
            return False
        self._deferred.append((start, pages))
        return True

    def release(self) -> None:
        """Release the pages whose slots were released meanwhile; a second call does nothing."""
        self.arena.acquired.discard(self)
        deferred, self._deferred = self._deferred, []
        for start, pages in deferred:
            self.arena.release(start, pages)


def _made(name: str, size: int) -> tuple[int, mmap.mmap]:
    """Make a sealed file without a name in any directory. Return its descriptor, and the map of it."""
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
        fd: -1 = it is closed.
        pinned: the pages that stay, because a worker has registered them with a device.
        on_close: called when it closes: other models' workers may have it mapped.
        acquired: pieces that are in use beyond their slots.
    """

    def __init__(self, name: str, budget: Budget, capacity: int = 0) -> None:
        self.name = name
        self.size = -(-(capacity or default_capacity()) // PAGE) * PAGE
        self.fd, self._map = _made(name, self.size)
        self.view = memoryview(self._map)
        self._file = self.fd
        self._budget = budget
        self._extents = Extents(self.size // PAGE)
        #: of each page up to the highest that may have memory
        self._states = bytearray()
        #: jobs of threads on the file
        self._jobs = 0
        #: threads that return pages now, and what waits for their end
        self._returning = 0
        self._after_return: list[Callable[[], None]] = []
        self.pinned = PinnedPages(self, budget.pinned)
        self.on_close: list[Callable[[Arena], None]] = []
        self.acquired: set[AcquiredPieces] = set()

    @property
    def used_bytes(self) -> int:
        """Bytes of all slots, in whole pages."""
        return self._extents.used * PAGE

    def allocate(self, nbytes: int) -> Slot:
        """Allocate a slot of `nbytes`. A large one whose pages have no memory is not ready: see `Slot.when_ready`.

        Raises:
            Unavailable: the budget, the arena or the machine's memory does not hold that much now.
        """
        if self.fd < 0:
            raise Unavailable(f"no tensor memory for {nbytes} bytes: model '{self.name}' was unloaded")
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
            budget.release(size)
            budget.refused += size <= self.size
            raise Unavailable(
                f"no tensor memory for {nbytes} bytes of model '{self.name}': {self.used_bytes} of {self.size} bytes "
                f"of its arena are in use and the largest gap has {self._extents.largest() * PAGE}"
            )
        slot = Slot(self, start * PAGE, nbytes, pages)
        end, states = start + pages, self._states
        if end > len(states):
            states += bytes(end - len(states))
        unreserved = states.find(_UNTOUCHED, start, end)  # memchr; a pattern is 30 times slower
        failed = states.find(_FAILED, start, unreserved if unreserved >= 0 else end)
        first = failed if failed >= 0 else unreserved
        states[start:end] = b"\x01" * pages
        if first >= 0:
            self._populate(slot, first, end)
        return slot

    def _populate(self, slot: Slot, start: int, end: int) -> None:
        """Reserve memory now, so that a machine without any refuses here and not by SIGBUS at the first write."""
        slot.is_ready = False
        self._jobs += 1
        self._budget.warm.add(self)

        def done(error: Exception | None) -> None:
            self._jobs -= 1
            if error is not None:
                self._states[start:end] = b"\x04" * (end - start)
            slot.populated(self._no_memory(slot, error))
            self._tear_down()

        size = (end - start) * PAGE
        work(size, partial(reserve, self.fd, start * PAGE, size), done)
        if slot.error is not None:
            slot.release()
            raise slot.error

    def _no_memory(self, slot: Slot, error: Exception | None) -> Unavailable | None:
        if error is None:
            return None
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        made = Unavailable(f"no memory for {slot.capacity} bytes of tensors of model '{self.name}': {reason}")
        made.__cause__ = error
        return made

    def acquire(self, pieces: Sequence[tuple[int, int]]) -> AcquiredPieces:
        """Acquire pieces of allocated slots, as (offset, bytes)."""
        made = AcquiredPieces(self, pieces)
        self.acquired.add(made)
        return made

    def release(self, start: int, pages: int) -> None:
        """Release the pages of a slot (called by `Slot`)."""
        if self.acquired and any(one.defer(start, pages) for one in self.acquired):
            return
        self._extents.release(start, pages)
        self._budget.release(pages * PAGE)
        if self.fd < 0:
            self._tear_down()

    # ---- returning memory to the system ---------------------------------------------------------------------------

    def age(self) -> None:
        """Age free pages at the end of a period: those that were free for two whole ones are idle."""
        for start, end in self._touched_gaps():
            self._states[start:end] = self._states[start:end].translate(_AGE)

    async def trim(self, limit: int = TRIM_BYTES) -> int:
        """Return the memory of all idle pages. Those that a thread is about to return, `limit` bytes at most, are not
        allocated meanwhile.

        Returns:
            Bytes returned.
        """
        total = 0
        while runs := self._withdraw(limit // PAGE):
            size = sum(pages for _, pages in runs) * PAGE
            returned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            work(size, partial(punch, self._file, runs), partial(self._put_back, runs, returned))
            await asyncio.shield(returned)
            total += size
        return total

    def _withdraw(self, most: int) -> list[tuple[int, int]]:
        """Take idle pages, as (first, count), out of the free ones."""
        if self.fd < 0:
            return []
        runs = []
        gaps = self._touched_gaps()
        idle_run = _IDLE_RUN if sum(end - start for start, end in gaps) < _MANY else _SOON_IDLE_RUN
        for start, end in gaps:
            for run in idle_run.finditer(bytes(self._states[start:end])):
                pages = min(run.end() - run.start(), most)
                runs.append((start + run.start(), pages))
                most -= pages
                if not most:
                    break
            if not most:
                break
        for first, pages in runs:
            self._extents.take_at(first, pages)
        if runs:
            self._jobs += 1
            self._returning += 1
        return runs

    def _put_back(self, runs: list[tuple[int, int]], returned: asyncio.Future[None], error: Exception | None) -> None:
        self._jobs -= 1
        self._returning -= 1
        for first, pages in runs:
            self._extents.release(first, pages)
            self._states[first : first + pages] = bytes(pages) if error is None else b"\x04" * pages
        end = len(self._states.rstrip(b"\0"))
        del self._states[end:]
        if not end:
            self._budget.warm.discard(self)
        if not self._returning:
            waiting, self._after_return = self._after_return, []
            for start in waiting:
                start()
        if not returned.done():
            if error is None:
                returned.set_result(None)
            else:
                returned.set_exception(error)
        self._tear_down()

    def _touched_gaps(self) -> list[tuple[int, int]]:
        """Return the free pages that have memory and may be trimmed, as (first, end)."""
        low, high = self.pinned.count, len(self._states)
        return [
            (max(start, low), min(start + count, high))
            for start, count in self._extents.free()
            if start < high and start + count > low
        ]

    def pin(self, first: int, pages: int, done: Callable[[Exception | None], None]) -> None:
        """Reserve memory for the pages from `first` up to `pages`, which are not trimmed any more (see `PinnedPages`),
        once no thread returns pages.
        """
        self._jobs += 1

        def reserved(error: Exception | None) -> None:
            self._jobs -= 1
            if error is None and self.fd >= 0:
                states = self._states
                states += bytes(max(0, pages - len(states)))
                states[first:pages] = states[first:pages].translate(_RESERVE)
                self._budget.warm.add(self)
            done(error)
            self._tear_down()

        def start() -> None:
            size = (pages - first) * PAGE
            work(size, partial(reserve, self._file, first * PAGE, size), reserved)

        if self._returning:
            self._after_return.append(start)
        else:
            start()

    def close(self) -> None:
        """Refuse new slots from now on. The memory is returned with the last slot."""
        if self.fd >= 0:
            for tell in list(self.on_close):
                notify(tell, self)
            self.on_close.clear()
            self.fd = -1
            self.view = memoryview(b"")
            self._tear_down()

    def _tear_down(self) -> None:
        """Return all memory, once the arena is closed and neither a slot nor a thread needs it."""
        if self.fd >= 0 or self._file < 0 or self._jobs or self._extents.used:
            return
        file, self._file = self._file, -1
        touched = len(self._states)
        self._states = bytearray()
        self._budget.warm.discard(self)
        work(touched * PAGE, partial(dispose, self._map, file, touched), _ignore)
        del self._map


async def trim_idle(budget: Budget) -> None:
    """Trim all arenas of a budget until cancelled."""
    while True:
        await asyncio.sleep(PERIOD)
        for arena in list(budget.warm):
            try:
                arena.age()
                await arena.trim()
            except Exception:
                log.exception("trimming the tensor memory of model %s failed", arena.name)


def _ignore(error: Exception | None) -> None:
    """Do nothing: nothing depends on the outcome."""
