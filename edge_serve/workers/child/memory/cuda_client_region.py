"""A client's memory of a GPU, as a worker uses it (ADR 29).

The worker opens the handle with the first tensor that lies there, because that may make a CUDA context. It closes it
when nothing refers to the region any more. Backends that take device memory get its address, and others a copy.
"""

from __future__ import annotations

import threading

from edge_serve.backends.cuda.api import CudaApi, CudaError
from edge_serve.backends.cuda.device_data import DeviceData, address_of, copy, is_on_device, on_device, release_with
from edge_serve.errors import InvalidArgument, Unavailable
from edge_serve.messages.tensors import Buffer


class CudaClientRegion:
    """A registered part of a GPU's memory. It is used as a `ClientRegion`; offsets are in the region."""

    __slots__ = ("__weakref__", "_handle", "_lock", "_pointer", "byte_size", "device", "name")

    def __init__(self, name: str, device: int, byte_size: int, handle: bytes) -> None:
        self.name = name
        self.device = device
        self.byte_size = byte_size
        self._handle = handle
        self._lock = threading.Lock()
        self._pointer = 0

    def read(self, offset: int, size: int, *, copy: bool = False) -> Buffer:
        """Return `size` bytes, copied to the host.

        Raises:
            InvalidArgument: the memory is gone. DeviceLost: the device cannot be used any more.
            Unavailable: CUDA cannot be used here. CudaError: the copy failed.
        """
        return self.on_device(offset, size).on_host()

    def on_device(self, offset: int, size: int) -> DeviceData:
        """Return `size` bytes where they are. Raises as `read`."""
        return DeviceData(self._open() + offset, size, self.device, self)

    def write(self, offset: int, data: Buffer | DeviceData) -> None:
        """Copy bytes of the host or of a GPU into the client's memory. Raises as `read`."""
        device = data.device if is_on_device(data) else self.device
        copy(self._open() + offset, address_of(data), len(data), device)

    def _opened(self, cuda: CudaApi) -> int:
        """Open the handle. Its memory may be another one than at the registration: a client can free and allocate."""
        pointer = cuda.ipc_open(self._handle)
        found = cuda.allocation_size(pointer)
        if found < self.byte_size:
            cuda.ipc_close(pointer)
            raise InvalidArgument(
                f"CUDA shared memory region '{self.name}' has {self.byte_size} bytes, but the memory of its handle now "
                f"has {found}: register it again"
            )
        return pointer

    def _open(self) -> int:
        """Return the address of the region. Opened by the first thread that asks."""
        with self._lock:
            if not self._pointer:
                try:
                    with on_device(self.device) as cuda:
                        self._pointer = self._opened(cuda)
                except CudaError as error:
                    raise InvalidArgument(
                        f"CUDA shared memory region '{self.name}' cannot be opened: {error.message}: does the client "
                        "that registered it still run? Register it again"
                    ) from error
                except Unavailable as error:
                    raise Unavailable(
                        f"CUDA shared memory region '{self.name}' cannot be used by this model: {error.message}"
                    ) from error
                release_with(self, cuda, self.device, cuda.ipc_close, self._pointer)
            return self._pointer
