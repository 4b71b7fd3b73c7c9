"""A stand-in for `pycuda.driver` over the host CudaApi. Workers of tests find it in `tests/stand_ins`.

It has the names that edge_serve/backends/cuda/pycuda.py uses. It is as strict as PyCUDA about contexts: a call needs
one on the stack of its thread, and objects can be released only where theirs is on top.
`stacks` has the contexts of all threads.
"""

# ruff: noqa: N802 (the names of the driver's own library)
from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings.runtime import host

from edge_serve.backends.cuda.api import CudaError


class Error(Exception):
    pass


class MemoryError(Error):
    pass


class LogicError(Error):
    pass


class LaunchError(Error):
    pass


class RuntimeError(Error):
    pass


#: thread -> the contexts that it has pushed
stacks: defaultdict[int, list[Context]] = defaultdict(list)
#: the driver's texts (cuGetErrorString) where the host CudaApi has none, or the runtime's, which differ
_TEXTS = {
    46: "CUDA-capable device(s) is/are busy or unavailable",
    205: "mapping of buffer object failed",
    217: "peer access is not supported between these two devices",
    304: "OS call failed or operation not supported on this OS",
    600: "device not ready",
    702: "the launch timed out and was terminated",
    711: "peer mapping resources exhausted",
    712: "part or all of the requested memory range is already mapped",
    719: "unspecified launch failure",
    999: "unknown error",
}
_KINDS: dict[int, type[Error]] = {2: MemoryError, 100: RuntimeError, 702: LaunchError, 719: LaunchError}


def _driver(routine: str, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except CudaError as error:
        text = _TEXTS.get(error.code) or error.message.rpartition(": ")[2]
        raise _KINDS.get(error.code, LogicError)(f"{routine} failed: {text}") from None


def _in_context(routine: str, call: Callable[..., Any], *arguments: Any) -> Any:
    if not stacks[threading.get_ident()]:
        raise LogicError(f"{routine} failed: invalid device context")
    return _driver(routine, call, *arguments)


def init(flags: int = 0) -> None:
    if not host.device_count():
        raise RuntimeError("cuInit failed: no CUDA-capable device is detected")


class device_attribute:  # noqa: N801 (the name of the genuine module)
    INTEGRATED = 18


class Device:
    def __init__(self, number: int) -> None:
        if not 0 <= number < host.device_count():
            raise LogicError("cuDeviceGet failed: invalid device ordinal")
        self._number = number

    @staticmethod
    def count() -> int:
        return int(host.device_count())

    def compute_capability(self) -> tuple[int, int]:
        major, minor = host.capability(self._number)
        return major, minor

    def get_attribute(self, attr: int) -> int:
        assert attr == device_attribute.INTEGRATED
        return int(host.is_integrated(self._number))

    def retain_primary_context(self) -> Context:
        return Context(self._number)


class Context:
    def __init__(self, number: int) -> None:
        self._number = number

    def push(self) -> None:
        stacks[threading.get_ident()].append(self)
        _driver("cuCtxPushCurrent", host.set_device, self._number)

    @staticmethod
    def pop() -> None:
        stack = stacks[threading.get_ident()]
        if not stack:
            raise LogicError("context::pop failed: invalid device context - cannot pop non-current context")
        stack.pop()
        if stack:
            host.set_device(stack[-1]._number)

    def detach(self) -> None:
        pass

    @staticmethod
    def synchronize() -> None:
        _in_context("cuCtxSynchronize", host.stream_synchronize, 0)


class _Owned:
    """An object of a context, which can be released only where that context is on top."""

    def __init__(self, routine: str, make: Callable[..., Any], *arguments: Any) -> None:
        self._release: Callable[[], Any] | None = None
        self._value = _in_context(routine, make, *arguments)
        self._context = stacks[threading.get_ident()][-1]

    def _owns(self, release: Callable[..., Any], *arguments: Any) -> None:
        self._release = lambda: release(*arguments)

    def _end(self, routine: str) -> None:
        if self._release is None:
            raise LogicError(f"{routine} failed: invalid resource handle")
        stack = stacks[threading.get_ident()]
        if not stack or stack[-1] is not self._context:
            raise LogicError("cannot activate out-of-thread context")
        release, self._release = self._release, None
        _driver(routine, release)

    def __del__(self) -> None:
        if getattr(self, "_release", None) is not None:
            self._end("destructor")

    def __int__(self) -> int:
        return int(self._value)


class DeviceAllocation(_Owned):
    def __init__(self, nbytes: int) -> None:
        super().__init__("cuMemAlloc", host.malloc, nbytes)
        self._owns(host.free, self._value)

    def free(self) -> None:
        self._end("device_allocation::free")


def mem_alloc(nbytes: int) -> DeviceAllocation:
    return DeviceAllocation(nbytes)


def mem_get_info() -> tuple[int, int]:
    found: tuple[int, int] = _in_context("cuMemGetInfo", host.memory_info)
    return found


def mem_get_address_range(ptr: int) -> tuple[int, int]:
    """Return a range that ends where the genuine one does."""
    return ptr, int(_in_context("cuMemGetAddressRange", host.allocation_size, ptr))


class PagelockedHostAllocation(_Owned):
    def __init__(self, nbytes: int, flags: int) -> None:
        super().__init__("cuMemHostAlloc", host.host_alloc, nbytes)
        self._owns(host.free_host, self._value)

    def free(self) -> None:
        self._end("pagelocked_host_allocation::free")

    def get_device_pointer(self) -> int:
        return int(_in_context("cuMemHostGetDevicePointer", host.host_device_pointer, self._value))


class _Array:
    """As much of a NumPy array as counts: the genuine one is such an array, whose base is the allocation."""

    def __init__(self, base: _Owned, address: int, nbytes: int) -> None:
        self.base, self.nbytes = base, nbytes
        self.ctypes = type("", (), {"data": address})


def pagelocked_empty(shape: int, dtype: Any, order: str = "C", mem_flags: int = 0) -> _Array:
    nbytes = shape * np.dtype(dtype).itemsize
    made = PagelockedHostAllocation(nbytes, mem_flags)
    return _Array(made, int(made), nbytes)


class _Libcuda:
    """The driver's own library: what the adapter calls there, because PyCUDA's `register_host_memory` crashes."""

    def cuMemHostRegister_v2(self, p: ctypes.c_void_p, bytesize: ctypes.c_size_t, flags: int) -> int:
        return self._code(host.host_register, p.value, bytesize.value)

    def cuMemHostUnregister(self, p: ctypes.c_void_p) -> int:
        return self._code(host.host_unregister, p.value)

    def cuMemHostGetDevicePointer_v2(self, pdptr: Any, p: ctypes.c_void_p, flags: int) -> int:
        def find() -> None:
            pdptr._obj.value = host.host_device_pointer(p.value)

        return self._code(find)

    def cuDevicePrimaryCtxGetState(self, dev: int, flags: Any, active: Any) -> int:
        active._obj.value = host.has_context(dev)
        return 0

    def _code(self, call: Callable[..., Any], *arguments: Any) -> int:
        if not stacks[threading.get_ident()]:
            return 201
        try:
            call(*arguments)
        except CudaError as error:
            return error.code
        return 0


libcuda = _Libcuda()


class Stream(_Owned):
    def __init__(self, flags: int = 0) -> None:
        super().__init__("cuStreamCreate", host.stream_create)
        self._owns(host.stream_destroy, self._value)

    @property
    def handle(self) -> int:
        return int(self._value)

    def synchronize(self) -> None:
        _in_context("cuStreamSynchronize", host.stream_synchronize, self._value)

    def wait_for_event(self, evt: Event) -> None:
        _in_context("cuStreamWaitEvent", host.stream_wait_event, self._value, int(evt))


class Event(_Owned):
    def __init__(self, flags: int = 0) -> None:
        super().__init__("cuEventCreate", lambda: host.event_create(timing=not flags & 2))
        self._owns(host.event_destroy, self._value)

    def record(self, stream: Stream | None = None) -> Event:
        _in_context("cuEventRecord", host.event_record, self._value, int(stream) if stream else 0)
        return self

    def synchronize(self) -> Event:
        _in_context("cuEventSynchronize", host.event_synchronize, self._value)
        return self

    def time_since(self, event: Event) -> float:
        return float(_in_context("cuEventElapsedTime", host.event_elapsed_time, int(event), self._value))


class Memcpy2D:
    width_in_bytes = height = src_pitch = dst_pitch = 0

    def set_src_unified(self, buf: Any) -> None:
        self._source = np.frombuffer(buf, np.uint8).ctypes.data

    def set_dst_unified(self, buf: Any) -> None:
        self._target = np.frombuffer(buf, np.uint8).ctypes.data

    def __call__(self, stream: Stream | bool) -> None:
        assert self.height == 1
        if min(self.src_pitch, self.dst_pitch) < self.width_in_bytes:  # cuMemcpy2D demands it, also of a single row
            raise LogicError("cuMemcpy2DAsync failed: invalid argument")
        number = int(stream) if isinstance(stream, Stream) else 0
        _in_context("cuMemcpy2DAsync", host.memcpy_async, self._target, self._source, self.width_in_bytes, number)
        if not isinstance(stream, Stream):  # the one without a stream is synchronous
            host.stream_synchronize(0)


def memset_d8_async(dest: int, data: int, size: int, stream: Stream | None = None) -> None:
    _in_context("cuMemsetD8Async", host.memset_async, dest, data, size, int(stream) if stream else 0)


def mem_get_ipc_handle(devptr: int) -> bytearray:
    return bytearray(_in_context("cuIpcGetMemHandle", host.ipc_handle, devptr))


class IPCMemoryHandle(_Owned):
    def __init__(self, obj: bytearray, flags: int = 1) -> None:
        if not isinstance(obj, bytearray) or len(obj) != 64:
            raise LogicError("event_from_ipc_handle failed: invalid argument - argument is not a bytes array")
        super().__init__("cuIpcOpenMemHandle", host.ipc_open, bytes(obj))
        self._owns(host.ipc_close, self._value)

    def close(self) -> None:
        self._end("ipc_mem_handle::close")
