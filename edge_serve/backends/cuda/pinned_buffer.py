"""Pinned host memory that grows."""

from __future__ import annotations

import ctypes

from edge_serve.backends.cuda.api import CudaApi
from edge_serve.backends.cuda.memory import allocate_pinned

_LEAST = 4096


class PinnedBuffer:
    """Pinned memory for one batch at a time, as large as the largest one needed.

    Attributes:
        view: the memory; empty until `reserve`.
        address: of its first byte.
    """

    __slots__ = ("_cuda", "address", "view")

    def __init__(self, cuda: CudaApi) -> None:
        self._cuda = cuda
        self.address = 0
        self.view = memoryview(b"")

    def reserve(self, nbytes: int) -> None:
        """Make `view` at least so long. Its content is lost, so nothing may still copy from or to it.

        Raises:
            CudaError: there is not enough memory.
        """
        if nbytes > len(self.view):
            self.close()
            size = max(_LEAST, 1 << (nbytes - 1).bit_length())
            self.address = allocate_pinned(self._cuda, size)
            self.view = memoryview((ctypes.c_char * size).from_address(self.address)).cast("B")

    def close(self) -> None:
        """Release the memory."""
        if self.address:
            self.view = memoryview(b"")
            address, self.address = self.address, 0
            self._cuda.free_host(address)
