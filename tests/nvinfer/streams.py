"""Connects the stand-in libnvinfer to the host CudaApi: its memory, and its work in the order of a stream."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import c_int, c_size_t, c_void_p
from typing import Any

from cuda.bindings.runtime import host

from edge_serve.backends.cuda.api import CudaError
from tests.nvinfer.library import loaded

_CALLS = {
    "count": ctypes.CFUNCTYPE(c_int),
    "allocate": ctypes.CFUNCTYPE(c_void_p, c_size_t),
    "release": ctypes.CFUNCTYPE(c_int, c_void_p),
    "launch": ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p),
    "synchronize": ctypes.CFUNCTYPE(c_int, c_void_p),
    "record": ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p),
    "copy": ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p),
}


class _Device(ctypes.Structure):
    """`Device` of device.hpp."""

    _fields_ = list(_CALLS.items())


class _Execution:
    """An execution of the stand-in, which a stream runs, and a graph again and again."""

    def __init__(self, library: Any, address: int) -> None:
        self._library, self._address = library, address

    def __call__(self) -> None:
        code = self._library.standInRun(self._address)
        if code:
            raise CudaError("launch", code, "", "")

    def __del__(self) -> None:
        self._library.standInRelease(self._address)


class HostDevice:
    """The functions of `Device` over the host CudaApi."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def count(self) -> int:
        return int(host.device_count())

    def allocate(self, size: int) -> int:
        try:
            return int(host.malloc(size))
        except CudaError:
            return 0

    def release(self, pointer: int) -> int:
        return 0 if sys.is_finalizing() else _code(host.free, pointer)

    def launch(self, stream: int | None, execution: int) -> int:
        return _code(host.run, _Execution(self._library, execution), stream or 0)

    def synchronize(self, stream: int | None) -> int:
        return _code(host.stream_synchronize, stream or 0)

    def record(self, event: int, stream: int | None) -> int:
        return _code(host.event_record, event, stream or 0)

    def copy(self, target: int, source: int, nbytes: int, stream: int | None) -> int:
        return _code(host.memcpy_async, target, source, nbytes, stream or 0) or self.synchronize(stream)


def _code(call: Callable[..., Any], *arguments: Any) -> int:
    try:
        call(*arguments)
    except CudaError as error:
        return error.code
    return 0


#: what the library calls must live as long as it may call
_kept: list[Any] = []


def connect(version: str) -> None:
    """Give the stand-in that the bindings have loaded the devices of this process."""
    library = loaded(version)
    for function in (library.standInRun, library.standInRelease):
        function.argtypes = [c_void_p]
    device = HostDevice(library)
    functions = _Device(**{name: kind(getattr(device, name)) for name, kind in _CALLS.items()})
    library.standInUse(ctypes.byref(functions))
    _kept.append(functions)
