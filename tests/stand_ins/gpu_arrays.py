"""Arrays in the memory of the stand-in GPU, which exchange DLPack capsules, as PyTorch does on a real one."""

from __future__ import annotations

from typing import Any

import numpy as np
from cuda.bindings.runtime import host

from edge_serve.backends.cuda.device_data import DeviceData
from edge_serve.backends.python.api import dlpack
from edge_serve.messages.tensors import from_numpy_type

Array = np.ndarray[Any, Any]


class GpuArray:
    """An array on a device, freed with the last reference to it.

    Attributes:
        asked_streams: of `__dlpack__`, in order.
    """

    def __init__(self, array: Array, device: int = 0) -> None:
        self.shape, self.dtype, self.device = array.shape, array.dtype, device
        self.asked_streams: list[object] = []
        self._lent: DeviceData | None = None
        before = host.get_device()
        host.set_device(device)
        self.pointer = host.malloc(max(1, array.nbytes))
        host.set_device(before)
        self._copy(self.pointer, np.ascontiguousarray(array).ctypes.data)

    @classmethod
    def from_dlpack(cls, tensor: Any) -> GpuArray:
        """Return an array over the memory of another producer."""
        kind, device = tensor.__dlpack_device__()
        assert kind == dlpack.CUDA
        found, _ = dlpack.take(tensor.__dlpack__(stream=1))
        assert isinstance(found, dlpack.OnGpu)
        self = cls.__new__(cls)
        self.shape, self.dtype, self.device = found.shape, found.datatype.numpy, device
        self.asked_streams = []
        self.pointer, self._lent = found.data.pointer, found.data
        return self

    def numpy(self) -> Array:
        """Return a copy on the host."""
        made = np.empty(self.shape, self.dtype)
        self._copy(made.ctypes.data, self.pointer)
        return made

    def _copy(self, target: int, source: int) -> None:
        nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        host.memcpy_async(target, source, nbytes, 0)
        host.stream_synchronize(0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(self, stream: object = None) -> object:
        self.asked_streams.append(stream)
        datatype = from_numpy_type(self.dtype)
        assert datatype is not None
        nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        return dlpack.export_gpu(DeviceData(self.pointer, nbytes, self.device, self), datatype, tuple(self.shape))

    def __del__(self) -> None:
        if hasattr(self, "pointer") and self._lent is None:
            host.free(self.pointer)
