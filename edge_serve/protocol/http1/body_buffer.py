"""Ordinary memory for a body that arrives in parts.

A large body has pages of its own. The kernel provides them when they are written to, so a declared length costs
nothing, and growing moves no bytes. A bytearray would be copied, or cleared, as a whole.
"""

from __future__ import annotations

import mmap

from edge_serve.messages.tensors import Buffer

#: larger bodies have pages of their own
SMALL = 1 << 20


def pages(size: int) -> mmap.mmap:
    """Map `size` bytes, whose pages the kernel provides when they are written to."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class BodyBuffer:
    """A growing buffer of bytes; `len` returns their number."""

    __slots__ = ("_pages", "_size", "_small")

    def __init__(self) -> None:
        self._small = bytearray()
        self._pages: mmap.mmap | None = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, data: memoryview) -> None:
        """Append bytes."""
        size = self._size + len(data)
        if size <= SMALL:
            self._small += data
        else:
            self._reserve(size)[self._size : size] = data
        self._size = size

    def _reserve(self, size: int) -> mmap.mmap:
        if self._pages is None:
            self._pages = pages(max(4 * SMALL, size))
            self._pages[: self._size] = self._small
            self._small = bytearray()
        elif size > len(self._pages):
            self._pages.resize(max(2 * len(self._pages), size))
        return self._pages

    def take(self) -> Buffer:
        """Return all bytes, and leave the buffer empty."""
        small, size = self._small, self._size
        found: Buffer = small if self._pages is None else memoryview(self._pages)[:size]
        self._small, self._pages, self._size = bytearray(), None, 0
        return found
