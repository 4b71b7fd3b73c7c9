"""A stand-in for `cuda.bindings.runtime` over the host CudaApi. Workers of tests find it in `tests/stand_ins`.

It has the functions that edge_serve/backends/cuda/bindings.py calls, with their names, arguments and results; a test
compares them with the genuine module. The devices are those of the stand-in libcuda (tests/devices/libcuda.cpp).
"""

# ruff: noqa: N801, N802, N803, N815 (the names of the genuine module)
from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from edge_serve.backends.cuda.api import OLD_DRIVER, CudaError
from tests.backends.cuda.host import TEXTS, HostCuda


def _described(name: str, otherwise: int) -> int:
    fields = dict(field.split("=") for field in os.environ.get("STAND_IN_CUDA", "").split())
    return int(fields.get(name, otherwise))


#: the devices of this process, for the stand-in of TensorRT
host = HostCuda(_described("devices", 2), _described("memory", 1 << 30), integrated=bool(_described("integrated", 0)))

#: of the driver, and of the runtime in cuda-bindings
_DRIVER, _RUNTIME = _described("version", 13000), 13000
#: "cudaIpcOpenMemHandle=719@1": the second such call of each process fails with this code
if _script := os.environ.get("STAND_IN_CUDA_FAILS"):
    _call, _, _rest = _script.partition("=")
    host.fail(_call, *map(int, _rest.split("@")))

_NAMES = {
    0: "cudaSuccess",
    OLD_DRIVER: "cudaErrorInsufficientDriver",
    **{code: name for code, (name, _) in TEXTS.items()},
}


class cudaError_t(IntEnum):
    _ignore_ = "code name"
    for code, name in _NAMES.items():
        vars()[name] = code


class cudaDeviceAttr(IntEnum):
    cudaDevAttrUnifiedAddressing = 41
    cudaDevAttrIntegrated = 18
    cudaDevAttrComputeCapabilityMajor = 75
    cudaDevAttrComputeCapabilityMinor = 76


class cudaMemcpyKind(IntEnum):
    cudaMemcpyDefault = 4


class cudaStreamCaptureMode(IntEnum):
    cudaStreamCaptureModeThreadLocal = 1


CUDA_IPC_HANDLE_SIZE = 64


class cudaIpcMemHandle_t:
    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(64)

    def getPtr(self) -> int:
        return ctypes.addressof(self._bytes)


def _status(call: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """Return what the genuine function returns: its status, and its values."""
    try:
        value = call(*arguments)
    except CudaError as error:
        return (_code(error.code),)
    values = value if isinstance(value, tuple) else () if value is None else (value,)
    return (cudaError_t(0), *values)


def _code(code: int) -> Any:
    return cudaError_t(code) if code in _NAMES else code


def cudaGetDeviceCount() -> tuple[Any, ...]:
    return (cudaError_t(OLD_DRIVER),) if _DRIVER // 1000 < _RUNTIME // 1000 else _status(host.device_count)


def cudaDriverGetVersion() -> tuple[Any, int]:
    return cudaError_t(0), _DRIVER


def cudaRuntimeGetVersion() -> tuple[Any, int]:
    return cudaError_t(0), _RUNTIME


def cudaDeviceGetAttribute(attr: Any, device: int) -> tuple[Any, ...]:
    if attr == cudaDeviceAttr.cudaDevAttrUnifiedAddressing:
        return cudaError_t(0), 1
    if attr == cudaDeviceAttr.cudaDevAttrIntegrated:
        return cudaError_t(0), int(host.is_integrated(device))
    return cudaError_t(0), host.capability(device)[attr == cudaDeviceAttr.cudaDevAttrComputeCapabilityMinor]


def cudaGetDevice() -> tuple[Any, ...]:
    return _status(host.get_device)


def cudaSetDevice(device: int) -> tuple[Any, ...]:
    return _status(host.set_device, device)


def cudaMemGetInfo() -> tuple[Any, ...]:
    return _status(host.memory_info)


def cudaPeekAtLastError() -> tuple[Any, ...]:
    return _status(host.peek_at_last_error)


def cudaGetLastError() -> tuple[Any, ...]:
    return (cudaError_t(0),)


def cudaGetErrorName(error: int) -> tuple[Any, bytes]:
    return cudaError_t(0), _NAMES.get(int(error), f"cudaError{int(error)}").encode()


def cudaGetErrorString(error: int) -> tuple[Any, bytes]:
    return cudaError_t(0), TEXTS.get(int(error), ("", "scripted"))[1].encode()


def cudaMalloc(size: int) -> tuple[Any, ...]:
    if size < 0:
        raise OverflowError("can't convert negative value to size_t")
    return _status(host.malloc, size)


def cudaFree(devPtr: int) -> tuple[Any, ...]:
    return _status(host.free, devPtr)


def cudaHostAlloc(size: int, flags: int) -> tuple[Any, ...]:
    return _status(host.host_alloc, size)


def cudaFreeHost(ptr: int) -> tuple[Any, ...]:
    return _status(host.free_host, ptr)


def cudaHostRegister(ptr: int, size: int, flags: int) -> tuple[Any, ...]:
    return _status(host.host_register, ptr, size)


def cudaHostUnregister(ptr: int) -> tuple[Any, ...]:
    return _status(host.host_unregister, ptr)


def cudaHostGetDevicePointer(pHost: int, flags: int) -> tuple[Any, ...]:
    return _status(host.host_device_pointer, pHost)


def cudaMemcpyAsync(dst: Any, src: Any, count: int, kind: Any, stream: int) -> tuple[Any, ...]:
    return _status(host.memcpy_async, _address(dst), _address(src), count, stream)


def cudaMemsetAsync(devPtr: int, value: int, count: int, stream: int) -> tuple[Any, ...]:
    return _status(host.memset_async, devPtr, value, count, stream)


def _address(memory: Any) -> int:
    """Return the address of memory that is a number, or a buffer."""
    if isinstance(memory, int):
        return memory
    if isinstance(memory, bytes):
        memory = ctypes.c_char_p(memory)
        return ctypes.cast(memory, ctypes.c_void_p).value or 0
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def cudaDeviceGetStreamPriorityRange() -> tuple[Any, ...]:
    return _status(host.stream_priority_range)


def cudaStreamCreate() -> tuple[Any, ...]:
    return _status(host.stream_create)


def cudaStreamCreateWithPriority(flags: int, priority: int) -> tuple[Any, ...]:
    return _status(host.stream_create, priority)


def cudaStreamDestroy(stream: int) -> tuple[Any, ...]:
    return _status(host.stream_destroy, stream)


def cudaStreamSynchronize(stream: int) -> tuple[Any, ...]:
    return _status(host.stream_synchronize, stream)


def cudaStreamWaitEvent(stream: int, event: int, flags: int) -> tuple[Any, ...]:
    return _status(host.stream_wait_event, stream, event)


def cudaEventCreateWithFlags(flags: int) -> tuple[Any, ...]:
    return _status(lambda: host.event_create(timing=not flags & 2, blocking=bool(flags & 1)))


def cudaEventDestroy(event: int) -> tuple[Any, ...]:
    return _status(host.event_destroy, event)


def cudaEventRecord(event: int, stream: int) -> tuple[Any, ...]:
    return _status(host.event_record, event, stream)


def cudaEventSynchronize(event: int) -> tuple[Any, ...]:
    return _status(host.event_synchronize, event)


def cudaEventElapsedTime(start: int, end: int) -> tuple[Any, ...]:
    return _status(host.event_elapsed_time, start, end)


def cudaStreamBeginCapture(stream: int, mode: Any) -> tuple[Any, ...]:
    return _status(host.begin_capture, stream)


def cudaStreamEndCapture(stream: int) -> tuple[Any, ...]:
    return _status(host.end_capture, stream)


def cudaGraphInstantiate(graph: int, flags: int) -> tuple[Any, ...]:
    return cudaError_t(0), graph


def cudaGraphDestroy(graph: int) -> tuple[Any, ...]:
    return (cudaError_t(0),)  # the host's graph is the instance, which lives on


def cudaGraphLaunch(graphExec: int, stream: int) -> tuple[Any, ...]:
    return _status(host.graph_launch, graphExec, stream)


def cudaGraphExecDestroy(graphExec: int) -> tuple[Any, ...]:
    return _status(host.graph_destroy, graphExec)


def cudaIpcGetMemHandle(devPtr: int) -> tuple[Any, ...]:
    def handle() -> cudaIpcMemHandle_t:
        made = cudaIpcMemHandle_t()
        ctypes.memmove(made.getPtr(), host.ipc_handle(devPtr), 64)
        return made

    return _status(handle)


def cudaIpcOpenMemHandle(handle: cudaIpcMemHandle_t, flags: int) -> tuple[Any, ...]:
    return _status(host.ipc_open, ctypes.string_at(handle.getPtr(), 64))


def cudaIpcCloseMemHandle(devPtr: int) -> tuple[Any, ...]:
    return _status(host.ipc_close, devPtr)
