"""Maps the arenas of other models and clients' shared memory regions that the front end lends this worker."""

from __future__ import annotations

import mmap
import os
import threading
from contextlib import suppress
from typing import Any

from edge_serve.errors import Internal
from edge_serve.workers.child.memory.client_region import ClientRegion
from edge_serve.workers.wire.layout import OFFSET_BITS, OFFSET_MASK

#: how long a worker waits for an arena that a batch names: its descriptor was sent before, on another channel
_WAIT_SECONDS = 10.0


class ArenaImports:
    """The worker's side. Frames come on the control thread, any other asks for the memory."""

    def __init__(self) -> None:
        self._views: dict[int, memoryview] = {}
        self._regions: dict[int, ClientRegion] = {}
        #: arenas that cannot be had, and why; or that have not come in time
        self._failed: dict[int, str] = {}
        self._changed = threading.Condition()

    def add(self, number: int, fd: int) -> None:
        """ARENA arrived, with its descriptor. One that cannot be mapped costs the requests that lie in it."""
        view, failed = None, ""
        try:
            view = memoryview(mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            failed = f"cannot be mapped: {error}"
        finally:
            os.close(fd)
        with self._changed:
            if view is not None:
                self._views[number] = view
                self._failed.pop(number, None)
            else:
                self._failed[number] = failed
            self._changed.notify_all()

    def add_region(self, number: int, value: dict[str, Any], fd: int) -> None:
        """REGION arrived, with its descriptor."""
        with self._changed:
            self._regions[number] = ClientRegion(value["name"], value["offset"], value["byte_size"], fd)
            self._changed.notify_all()

    def remove(self, number: int) -> None:
        """ARENA_GONE arrived. The mapping goes when the last view of it does."""
        with suppress(KeyError):
            del self._views[number]
        self._regions.pop(number, None)
        self._failed.pop(number, None)

    def region(self, place: int) -> ClientRegion | None:
        """The client's memory that a place is in; None when it is in an arena."""
        number = place >> OFFSET_BITS
        found = self._regions.get(number)
        if found is None and number and number not in self._views:
            with self._changed:
                self._changed.wait_for(
                    lambda: number in self._regions or number in self._views or number in self._failed, _WAIT_SECONDS
                )
            found = self._regions.get(number)
        return found

    def at(self, place: int, size: int) -> memoryview:
        """The bytes of a lent tensor, for reading.

        Raises:
            Internal: its arena has not come, or cannot be mapped.
        """
        number, offset = place >> OFFSET_BITS, place & OFFSET_MASK
        view = self._views.get(number)
        if view is None:
            with self._changed:
                self._changed.wait_for(lambda: number in self._views or number in self._failed, _WAIT_SECONDS)
            view = self._views.get(number)
            if view is None:  # the next request need not wait as long
                reason = self._failed.setdefault(number, f"did not arrive within {_WAIT_SECONDS:g} s")
                raise Internal(f"the memory of an input {reason}")
        return view[offset : offset + size]
