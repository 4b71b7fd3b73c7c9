"""The kernel's side of an arena: memory for pages of its file, and their return. Both take long: for threads."""

from __future__ import annotations

import ctypes
import mmap
import os

PAGE = mmap.PAGESIZE
#: bytes of one call to the kernel, which holds the file's lock meanwhile: about a millisecond
STEP = 4 << 20

#: fallocate(2): the pages are returned, the size of the file stays
_PUNCH_HOLE = 0x01 | 0x02
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


def reserve(fd: int, offset: int, size: int) -> None:
    """Reserve memory step by step.

    Raises:
        OSError: there is none.
    """
    for start in range(offset, offset + size, STEP):
        os.posix_fallocate(fd, start, min(STEP, offset + size - start))


def punch(fd: int, runs: list[tuple[int, int]]) -> None:
    """Return the memory of runs of pages step by step.

    Raises:
        OSError: the kernel refuses.
    """
    for first, pages in runs:
        end = (first + pages) * PAGE
        for start in range(first * PAGE, end, STEP):
            if _libc.fallocate(fd, _PUNCH_HOLE, start, min(STEP, end - start)):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def dispose(mapped: mmap.mmap, fd: int, pages: int) -> None:
    """Return the memory, then the file and its address space: each would take long for all pages at once."""
    try:
        punch(fd, [(0, pages)])
    finally:
        os.close(fd)
