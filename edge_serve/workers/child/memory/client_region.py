"""Reads and writes a client's shared memory.

The client may shrink its file at any time, and a process that touches a mapped page beyond the end gets SIGBUS. Small
tensors are read and written by system calls, which is safe. Before a large one is copied, the file is measured: only a
client that shrinks it at that moment kills the worker. Through a mapping, 8 MB are copied in a third of the time that
`pread` and `pwrite` take.
"""

from __future__ import annotations

import mmap
import os
import weakref

import numpy as np

from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.tensors import Buffer

#: up to this many bytes are read and written by system calls, which costs about 10 us
COPIED_BYTES = 64 * 1024
#: parts of a region that are remembered as having memory behind them
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
        """`size` bytes: a copy of few; of many, a view of the client's memory that cannot be written to, unless `copy`.

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
        """The whole region; made once for each kind of access."""
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
        """Put `data` into the client's memory.

        Raises:
            InvalidArgument: the file has become too small.
            Internal: the system has no memory for it.
        """
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
        """Files of shared memory have holes: where the system has no memory for one, fail here and not by SIGBUS."""
        if (offset, size) not in self._reserved:
            os.posix_fallocate(self._fd, offset, size)
            if len(self._reserved) >= _MOST_RESERVED:
                self._reserved.clear()
            self._reserved.add((offset, size))
