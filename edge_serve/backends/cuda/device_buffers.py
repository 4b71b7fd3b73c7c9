"""Buffers in the memory of a device, one for each tensor of a batch."""

from __future__ import annotations

from edge_serve.backends.cuda.api import CudaApi
from edge_serve.backends.cuda.memory import ADVICE, allocate
from edge_serve.errors import Internal

#: backends want addresses of at least this alignment; cudaMalloc gives it
_LEAST_BYTES = 256


class DeviceBuffers:
    """Device memory for the tensors of one batch at a time, by their names.

    A buffer is cleared when it is allocated. A warm-up, or the capture of a CUDA graph, runs before the first batch has
    filled it, and a kernel that takes an index from uninitialised memory reads anywhere.
    """

    def __init__(self, cuda: CudaApi) -> None:
        self._cuda = cuda
        #: name -> address, bytes
        self._buffers: dict[str, tuple[int, int]] = {}

    def size(self, name: str) -> int:
        """Return the bytes of a buffer; 0 = there is none."""
        return self._buffers.get(name, (0, 0))[1]

    def reserve(self, name: str, nbytes: int, most: int = 0, advice: str = ADVICE) -> int:
        """Return the address of a buffer of at least `nbytes`. A larger one replaces a buffer that is too small, whose
        content is lost, so nothing may still use that.

        Args:
            most: bytes of a new buffer, if they are more.
            advice: what to do if there is not enough memory.

        Raises:
            OutOfMemory: there is not enough. CudaError: the device fails.
        """
        pointer, size = self._buffers.get(name, (0, 0))
        if pointer and nbytes <= size:
            return pointer
        if pointer:
            del self._buffers[name]
            self._cuda.free(pointer)
        size = max(nbytes, most, _LEAST_BYTES)
        pointer = allocate(self._cuda, size, advice)
        self._buffers[name] = (pointer, size)
        self._cuda.memset_async(pointer, 0, size, 0)
        self._cuda.stream_synchronize(0)
        return pointer

    def place(self, name: str, nbytes: int) -> int:
        """Return the address of a reserved buffer, for a run that uses `nbytes` of it.

        Raises:
            Internal: the buffer is smaller, and the run would use the memory behind it.
        """
        pointer, size = self._buffers[name]
        if nbytes > size:
            raise Internal(f"tensor '{name}' of this batch takes {nbytes} bytes, and has {size} bytes on the device")
        return pointer

    def close(self) -> None:
        """Free the buffers. Nothing may use them any more."""
        while self._buffers:
            _, (pointer, _) = self._buffers.popitem()
            self._cuda.free(pointer)
