"""`CudaApi` over PyCUDA: the primary context, IPC, no graphs. Imported where PyCUDA is installed only.

PyCUDA wraps handles of the driver in objects. This module keeps the objects, and passes their handles on as numbers. An
event has no handle there, so its number means something to this module alone.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from pycuda import driver

from edge_serve.backends.cuda.api import ERRORS, NOT_SUPPORTED, STICKY, CudaApi, CudaError

_INVALID_VALUE, _INVALID_HANDLE, _UNKNOWN = 1, 400, 999
#: for a text that `ERRORS` does not have: to this number the runtime adds an error of the driver that it does not know
_UNLISTED, _UNLISTED_NAME = 10_000, "cudaErrorApiFailureBase"
#: cudaError_t by the driver's text of an error, by which PyCUDA reports it
_CODES = {text: code for code, (_, text) in ERRORS.items()}
#: CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP; the flags of a registration have the same numbers
_PINNED = 0x01 | 0x02
#: CU_STREAM_NON_BLOCKING; CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING
_NON_BLOCKING, _BLOCKING, _NO_TIMING = 0x01, 0x01, 0x02
#: of one row of a two-dimensional copy, whose length the driver limits to 2 GiB - 1
_MOST_BYTES = 1 << 30
#: PyBUF_WRITE
_WRITABLE = 0x200
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.argtypes, _view.restype = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int), ctypes.py_object


def _call(call: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call PyCUDA.

    Args:
        call: the function of the CUDA runtime that does the same, for the message.

    Raises:
        CudaError: it failed.
    """
    try:
        return function(*arguments)
    except driver.Error as error:
        text = _text(error)
        code = _code_of(text) or _unlisted(text)
        raise CudaError(call, code, ERRORS.get(code, (_UNLISTED_NAME,))[0], text) from error


def _text(error: Exception) -> str:
    return str(error).partition("failed: ")[2] or str(error)


def _code_of(text: str) -> int:
    """Return the cudaError_t of a text; 0 = it is not in `ERRORS`."""
    return _CODES.get(text) or _CODES.get(text.partition(" - ")[0], 0)


def _unlisted(text: str) -> int:
    """Return the cudaError_t of a text that is not in `ERRORS`. Most are refusals, as of memory that cannot be mapped:
    only the device itself shows whether it is lost.
    """
    try:
        driver.mem_get_info()
    except driver.Error as error:
        if _text(error) == text or _code_of(_text(error)) in STICKY:
            return _UNKNOWN
    return _UNLISTED


@functools.cache
def _libcuda() -> Any:
    """Return the driver's own library, for the registration of memory: PyCUDA's ends the process (2026.1)."""
    return ctypes.CDLL("libcuda.so.1")


def _call_driver(call: str, function: str, *arguments: Any) -> None:
    """Call the driver's own library, in the context that PyCUDA has made current.

    Raises:
        CudaError: it failed.
    """
    code = int(getattr(_libcuda(), function)(*arguments))
    if code:
        raise CudaError(call, code, *ERRORS.get(code, (f"cudaError{code}", "see cudaError_t in driver_types.h")))


def _refused(call: str, code: int) -> CudaError:
    return CudaError(call, code, *ERRORS[code])


class _Pushed:
    """The context that the calling thread has pushed on its stack, until this object is released.

    The thread must pop it before its end: PyCUDA ends the process if a thread ends with a context on its stack.
    """

    def __init__(self, device: int) -> None:
        self.device = device

    def __del__(self) -> None:
        driver.Context.pop()


class PyCuda:
    """Implements `CudaApi`."""

    has_graphs = False

    def __init__(self) -> None:
        _call("cudaGetDeviceCount", driver.init)
        self._lock = threading.Lock()
        self._contexts: dict[int, Any] = {}
        self._thread = threading.local()
        self._allocations: dict[int, Any] = {}
        self._pinned: dict[int, Any] = {}
        self._streams: dict[int, Any] = {}
        self._events: dict[int, Any] = {}
        #: an object for each time that the memory was opened: the driver counts, and each of them closes it once
        self._opened: dict[int, list[Any]] = {}
        self._numbers = itertools.count(1)
        atexit.register(self._detach)

    def device_count(self) -> int:
        return int(_call("cudaGetDeviceCount", driver.Device.count))

    def set_device(self, device: int) -> None:
        pushed = getattr(self._thread, "pushed", None)
        if pushed is not None and pushed.device == device:
            return
        with self._lock:  # one object for a device: PyCUDA compares objects, not contexts
            context = self._contexts.get(device)
            if context is None:
                found = _call("cudaSetDevice", driver.Device, device)
                context = self._contexts[device] = _call("cudaSetDevice", found.retain_primary_context)
        del pushed
        self._pop()
        _call("cudaSetDevice", context.push)
        self._thread.pushed = _Pushed(device)

    def _pop(self) -> None:
        """Pop the context of the calling thread."""
        self._thread.__dict__.pop("pushed", None)

    def get_device(self) -> int:
        pushed = getattr(self._thread, "pushed", None)
        return 0 if pushed is None else int(pushed.device)

    def _detach(self) -> None:
        """Release the contexts: PyCUDA would do so with the wrong function, and warn that it fails."""
        self._pop()
        for context in self._contexts.values():
            context.detach()

    def has_context(self, device: int) -> bool:
        flags, is_active = ctypes.c_uint(), ctypes.c_int()
        _call_driver(
            "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState", device, ctypes.byref(flags),
            ctypes.byref(is_active),
        )  # fmt: skip
        return bool(is_active)

    def capability(self, device: int) -> tuple[int, int]:
        major, minor = _call("cudaDeviceGetAttribute", driver.Device(device).compute_capability)
        return int(major), int(minor)

    def is_integrated(self, device: int) -> bool:
        found = driver.Device(device)
        return bool(_call("cudaDeviceGetAttribute", found.get_attribute, driver.device_attribute.INTEGRATED))

    def memory_info(self) -> tuple[int, int]:
        free, total = _call("cudaMemGetInfo", driver.mem_get_info)
        return int(free), int(total)

    def peek_at_last_error(self) -> None:
        """Ask for the free memory: the driver keeps no last error, but a device that is lost answers no question."""
        _call("cudaPeekAtLastError", driver.mem_get_info)

    def allocation_size(self, pointer: int) -> int:
        start, nbytes = _call("cuMemGetAddressRange", driver.mem_get_address_range, pointer)
        return int(start) + int(nbytes) - pointer

    def malloc(self, nbytes: int) -> int:
        made = _call("cudaMalloc", driver.mem_alloc, nbytes)
        self._allocations[int(made)] = made
        return int(made)

    def free(self, pointer: int) -> None:
        _call("cudaFree", _taken(self._allocations, pointer, "cudaFree", _INVALID_VALUE).free)

    def host_alloc(self, nbytes: int) -> int:
        made = _call("cudaHostAlloc", driver.pagelocked_empty, max(1, nbytes), np.uint8, "C", _PINNED)
        self._pinned[made.ctypes.data] = made
        return int(made.ctypes.data)

    def free_host(self, pointer: int) -> None:
        _call("cudaFreeHost", _taken(self._pinned, pointer, "cudaFreeHost", _INVALID_VALUE).base.free)

    def host_register(self, pointer: int, nbytes: int) -> None:
        size = ctypes.c_size_t(nbytes)
        _call_driver("cudaHostRegister", "cuMemHostRegister_v2", ctypes.c_void_p(pointer), size, _PINNED)

    def host_unregister(self, pointer: int) -> None:
        _call_driver("cudaHostUnregister", "cuMemHostUnregister", ctypes.c_void_p(pointer))

    def host_device_pointer(self, pointer: int) -> int:
        found, start = ctypes.c_uint64(), ctypes.c_void_p(pointer)
        _call_driver("cudaHostGetDevicePointer", "cuMemHostGetDevicePointer_v2", ctypes.byref(found), start, 0)
        return found.value

    def memcpy_async(self, target: int, source: int, nbytes: int, stream: int) -> None:
        runs = self._stream(stream, "cudaMemcpyAsync")
        for start in range(0, nbytes, _MOST_BYTES):
            size = min(_MOST_BYTES, nbytes - start)
            copy = driver.Memcpy2D()  # the one copy of PyCUDA for which the driver finds out where the memory is
            copy.set_src_unified(_buffer(source + start, size))
            copy.set_dst_unified(_buffer(target + start, size))
            copy.width_in_bytes = copy.src_pitch = copy.dst_pitch = size  # a pitch below the width is invalid
            copy.height = 1
            if runs is None:
                _call("cudaMemcpyAsync", copy, False)
            else:
                _call("cudaMemcpyAsync", copy, runs)

    def memset_async(self, pointer: int, value: int, nbytes: int, stream: int) -> None:
        runs = self._stream(stream, "cudaMemsetAsync")
        _call("cudaMemsetAsync", driver.memset_d8_async, pointer, value, nbytes, runs)

    def stream_priority_range(self) -> tuple[int, int]:
        """Return one priority: PyCUDA has none."""
        return 0, 0

    def stream_create(self, priority: int = 0) -> int:
        made = _call("cudaStreamCreateWithPriority", driver.Stream, _NON_BLOCKING)
        self._streams[int(made.handle)] = made
        return int(made.handle)

    def stream_destroy(self, stream: int) -> None:
        _taken(self._streams, stream, "cudaStreamDestroy", _INVALID_HANDLE)  # with its last reference it is destroyed

    def stream_synchronize(self, stream: int) -> None:
        runs = self._stream(stream, "cudaStreamSynchronize")
        _call("cudaStreamSynchronize", (driver.Context if runs is None else runs).synchronize)

    def stream_wait_event(self, stream: int, event: int) -> None:
        runs, found = self._stream(stream, "cudaStreamWaitEvent"), self._event(event, "cudaStreamWaitEvent")
        if runs is None:
            _call("cudaStreamWaitEvent", found.synchronize)
        else:
            _call("cudaStreamWaitEvent", runs.wait_for_event, found)

    def event_create(self, *, timing: bool = False, blocking: bool = False) -> int:
        number = next(self._numbers)
        flags = (0 if timing else _NO_TIMING) | (_BLOCKING if blocking else 0)
        self._events[number] = _call("cudaEventCreateWithFlags", driver.Event, flags)
        return number

    def event_destroy(self, event: int) -> None:
        _taken(self._events, event, "cudaEventDestroy", _INVALID_HANDLE)

    def event_record(self, event: int, stream: int) -> None:
        _call("cudaEventRecord", self._event(event, "cudaEventRecord").record, self._stream(stream, "cudaEventRecord"))

    def event_synchronize(self, event: int) -> None:
        _call("cudaEventSynchronize", self._event(event, "cudaEventSynchronize").synchronize)

    def event_elapsed_time(self, start: int, end: int) -> float:
        first, last = (self._event(one, "cudaEventElapsedTime") for one in (start, end))
        return float(_call("cudaEventElapsedTime", last.time_since, first))

    def begin_capture(self, stream: int) -> None:
        raise _refused("cudaStreamBeginCapture", NOT_SUPPORTED)

    def end_capture(self, stream: int) -> int:
        raise _refused("cudaStreamEndCapture", NOT_SUPPORTED)

    def graph_launch(self, graph: int, stream: int) -> None:
        raise _refused("cudaGraphLaunch", NOT_SUPPORTED)

    def graph_destroy(self, graph: int) -> None:
        raise _refused("cudaGraphExecDestroy", NOT_SUPPORTED)

    def ipc_open(self, handle: bytes) -> int:
        made = _call("cudaIpcOpenMemHandle", driver.IPCMemoryHandle, bytearray(handle))
        with self._lock:
            self._opened.setdefault(int(made), []).append(made)
        return int(made)

    def ipc_close(self, pointer: int) -> None:
        with self._lock:
            opened = _taken(self._opened, pointer, "cudaIpcCloseMemHandle", _INVALID_VALUE)
            made = opened.pop()
            if opened:
                self._opened[pointer] = opened
        _call("cudaIpcCloseMemHandle", made.close)

    def _stream(self, stream: int, call: str) -> Any:
        """Return the object of a stream; None = the default stream."""
        if not stream:
            return None
        found = self._streams.get(stream)
        if found is None:
            raise _refused(call, _INVALID_HANDLE)
        return found

    def _event(self, event: int, call: str) -> Any:
        found = self._events.get(event)
        if found is None:
            raise _refused(call, _INVALID_HANDLE)
        return found


def _taken(table: dict[int, Any], number: int, call: str, otherwise: int) -> Any:
    """Remove an object from a table and return it.

    Raises:
        CudaError: the table has none of this number, with this code.
    """
    found = table.pop(number, None)
    if found is None:
        raise _refused(call, otherwise)
    return found


def _buffer(pointer: int, nbytes: int) -> Any:
    """Return memory as the buffer that PyCUDA wants, of the host or of the device: PyCUDA takes its address alone."""
    return _view(pointer, nbytes, _WRITABLE)


@functools.cache
def make() -> CudaApi:
    """Return the one of this process."""
    return PyCuda()
