"""Memory of other processes that the front end gives this worker: arenas of other models, and clients' shared memory.

A client may shrink its file at any time, and a process that touches a mapped page beyond the end gets SIGBUS. Small
tensors are read and written by system calls, which is safe. Before a large one is copied, the file is measured: only a
client that shrinks it at that moment kills the worker. Through a mapping, 8 MB are copied in a third of the time that
`pread` and `pwrite` take.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from typing import Any

import numpy as np

from edge_serve.backends.cuda.device_data import is_on_device
from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.tensors import Buffer
from edge_serve.workers.child.memory.cuda_client_region import CudaClientRegion
from edge_serve.workers.wire.layout import OFFSET_BITS, OFFSET_MASK

#: up to this many bytes are read and written by system calls, which costs about 10 us
COPIED_BYTES = 64 * 1024
#: parts of a region that are remembered as having memory behind them. Shared by threads, so no `Memo`
_MOST_RESERVED = 1024


class ClientRegion:
    """A registered part of a file. Offsets are in the file.

    Args:
        fd: closed when nothing refers to the region any more.
    """

    __slots__ = ("__weakref__", "_byte_size", "_fd", "_offset", "_reserved", "_room", "_view", "name")

    def __init__(self, name: str, offset: int, byte_size: int, fd: int) -> None:
        self.name = name
        self._offset = offset
        self._byte_size = byte_size
        self._fd = fd
        self._view: memoryview | None = None
        self._room: memoryview | None = None
        self._reserved: set[tuple[int, int]] = set()
        weakref.finalize(self, os.close, fd)

    def read(self, offset: int, size: int, *, copy: bool = False) -> Buffer:
        """Return `size` bytes: a copy of few; of many, a read-only view of the client's memory, unless `copy`.

        Raises:
            InvalidArgument: the file has become too small.
        """
        if not size:
            return b""
        if size <= COPIED_BYTES:
            return self._few(offset, size)
        self._check(offset, size)
        if self._view is None:
            self._view = self._mapped(mmap.ACCESS_READ)
        start = offset - self._offset
        view = self._view[start : start + size]
        return np.frombuffer(view, np.uint8).copy().data if copy else view

    def _mapped(self, access: int) -> memoryview:
        """Map the whole region; called once for each kind of access."""
        try:
            return memoryview(mmap.mmap(self._fd, self._byte_size, access=access, offset=self._offset))
        except (OSError, ValueError) as error:  # ValueError: the file is smaller than what was registered
            raise InvalidArgument(f"shared memory region '{self.name}' cannot be mapped: {error}") from error

    def _few(self, offset: int, size: int) -> memoryview:
        made = np.empty(size, np.uint8).data
        rest = made
        while rest:
            count = os.preadv(self._fd, [rest], offset)
            if not count:
                raise self._too_small(offset + len(rest))
            offset += count
            rest = rest[count:]
        return made

    def _check(self, offset: int, size: int) -> None:
        if os.fstat(self._fd).st_size < offset + size:
            raise self._too_small(offset + size)

    def _too_small(self, needed: int) -> InvalidArgument:
        found = os.fstat(self._fd).st_size
        return InvalidArgument(
            f"the file of shared memory region '{self.name}' has {found} bytes now, {needed} are needed: it was made "
            "smaller after it was registered"
        )

    def write(self, offset: int, data: Buffer) -> None:
        """Copy bytes of the host or of a GPU into the client's memory.

        Raises:
            InvalidArgument: the file has become too small.
            Internal: the system has no memory for it.
            DeviceLost: the device cannot be used any more. CudaError: the copy from it failed.
        """
        if is_on_device(data):
            data = data.on_host()
        view = memoryview(data).cast("B")
        self._check(offset, len(view))
        try:
            if len(view) > COPIED_BYTES:
                self._write_many(offset, view)
                return
            while view:
                written = os.pwrite(self._fd, view, offset)
                offset += written
                view = view[written:]
        except OSError as error:
            raise Internal(f"shared memory region '{self.name}' cannot be written: {error.strerror}") from error

    def _write_many(self, offset: int, view: memoryview) -> None:
        size = len(view)
        self._reserve(offset, size)
        if self._room is None:
            self._room = self._mapped(mmap.ACCESS_WRITE)
        start = offset - self._offset
        np.copyto(np.frombuffer(self._room[start : start + size], np.uint8), np.frombuffer(view, np.uint8))

    def _reserve(self, offset: int, size: int) -> None:
        """Reserve memory for holes in the file: where the system has none, fail here and not by SIGBUS."""
        if (offset, size) not in self._reserved:
            os.posix_fallocate(self._fd, offset, size)
            if len(self._reserved) >= _MOST_RESERVED:
                self._reserved.clear()
            self._reserved.add((offset, size))


#: how long a worker waits for an arena that a batch names: its descriptor was sent before, on another channel
_WAIT_SECONDS = 10.0


class ArenaImports:
    """The worker's side. Frames come on the control thread, any other asks for the memory."""

    def __init__(self) -> None:
        self._views: dict[int, memoryview] = {}
        self._regions: dict[int, ClientRegion | CudaClientRegion] = {}
        #: arenas that cannot be had, and why; or that have not come in time
        self._failed: dict[int, str] = {}
        self._changed = threading.Condition()

    def add(self, number: int, fd: int) -> None:
        """Map the arena of an ARENA frame. One that cannot be mapped costs the requests that lie in it."""
        with self._changed:
            try:
                self._views[number] = memoryview(mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_READ))
                self._failed.pop(number, None)
            except (OSError, ValueError) as error:
                self._failed[number] = f"cannot be mapped: {error}"
            finally:
                os.close(fd)
            self._changed.notify_all()

    def add_region(self, number: int, value: dict[str, Any], fd: int) -> None:
        """Add the region of a REGION frame, with its descriptor."""
        with self._changed:
            self._regions[number] = ClientRegion(value["name"], value["offset"], value["byte_size"], fd)
            self._changed.notify_all()

    def add_cuda_region(self, number: int, value: dict[str, Any]) -> None:
        """Add the region of a CUDA_REGION frame."""
        handle = bytes.fromhex(value["handle"])
        with self._changed:
            self._regions[number] = CudaClientRegion(value["name"], value["device"], value["byte_size"], handle)
            self._changed.notify_all()

    def remove(self, number: int) -> None:
        """Remove what an ARENA_GONE frame names. Memory is unmapped with the last view of it."""
        self._views.pop(number, None)
        self._regions.pop(number, None)
        self._failed.pop(number, None)

    def region(self, place: int) -> ClientRegion | CudaClientRegion | None:
        """Return the client's memory that a place is in; None = it is in an arena."""
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
        """Return the bytes of a lent tensor, for reading.

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
