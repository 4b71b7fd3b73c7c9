"""`CudaApi` over NVIDIA's `cuda-bindings`: the primary context, graphs, IPC. Imported where it is installed only."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, cast

from cuda.bindings import driver, runtime

from edge_serve.backends.cuda.api import OLD_DRIVER, CudaApi, CudaError

_ERRORS = runtime.cudaError_t
_COPY = runtime.cudaMemcpyKind.cudaMemcpyDefault
_CAPTURE = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
#: cudaHostAllocPortable | cudaHostAllocMapped; cudaHostRegisterPortable | cudaHostRegisterMapped
_PINNED = 0x01 | 0x02
#: cudaStreamNonBlocking; cudaEventBlockingSync, cudaEventDisableTiming; cudaIpcMemLazyEnablePeerAccess
_NON_BLOCKING, _BLOCKING, _NO_TIMING, _LAZY = 0x01, 0x01, 0x02, 0x01
#: bytes of cudaIpcMemHandle_t
_IPC_BYTES = 64


def _call(function: Any, *arguments: Any) -> Any:
    """Call the runtime. Return its results without the status: None, a value, or a tuple.

    Raises:
        CudaError: the call failed.
    """
    status, *values = function(*arguments)
    if status != _ERRORS.cudaSuccess:
        raise _error(function.__name__, status)
    return values[0] if len(values) == 1 else tuple(values) or None


def _error(call: str, status: Any) -> CudaError:
    runtime.cudaGetLastError()  # takes an error that is not sticky: the next call would return it again
    _, name = runtime.cudaGetErrorName(status)
    _, text = runtime.cudaGetErrorString(status)
    return CudaError(call, int(status), name.decode(), text.decode())


def _on_driver() -> str:
    """Return the reason for OLD_DRIVER: a driver serves CUDA of its own major version and of older ones."""
    driver, library = _call(runtime.cudaDriverGetVersion), _call(runtime.cudaRuntimeGetVersion)
    if not driver:
        return "no NVIDIA driver is loaded; install one, or check that the device files are there (ls /dev/nvidia*)"
    have, major = f"CUDA {driver // 1000}.{driver % 1000 // 10}", driver // 1000
    return (
        f"the driver supports {have}, and cuda-bindings here needs CUDA {library // 1000}; install the ones that fit "
        f"(pip install 'cuda-bindings=={major}.*'), or a newer driver"
    )


class CudaBindings:
    """Implements `CudaApi`."""

    has_graphs = True

    def device_count(self) -> int:
        try:
            return int(_call(runtime.cudaGetDeviceCount))
        except CudaError as error:
            if error.code != OLD_DRIVER:
                raise
            raise CudaError("cudaGetDeviceCount", OLD_DRIVER, "cudaErrorInsufficientDriver", _on_driver()) from error

    def set_device(self, device: int) -> None:
        _call(runtime.cudaSetDevice, device)

    def get_device(self) -> int:
        return int(_call(runtime.cudaGetDevice))

    def has_context(self, device: int) -> bool:
        status, _, is_active = driver.cuDevicePrimaryCtxGetState(device)
        return status == driver.CUresult.CUDA_SUCCESS and bool(is_active)

    def capability(self, device: int) -> tuple[int, int]:
        attributes = runtime.cudaDeviceAttr
        major = attributes.cudaDevAttrComputeCapabilityMajor
        minor = attributes.cudaDevAttrComputeCapabilityMinor
        get = runtime.cudaDeviceGetAttribute
        return int(_call(get, major, device)), int(_call(get, minor, device))

    def is_integrated(self, device: int) -> bool:
        return bool(_call(runtime.cudaDeviceGetAttribute, runtime.cudaDeviceAttr.cudaDevAttrIntegrated, device))

    def memory_info(self) -> tuple[int, int]:
        return cast("tuple[int, int]", _call(runtime.cudaMemGetInfo))

    def peek_at_last_error(self) -> None:
        (status,) = runtime.cudaPeekAtLastError()
        if status != _ERRORS.cudaSuccess:
            raise _error("cudaPeekAtLastError", status)

    def allocation_size(self, pointer: int) -> int:
        status, start, nbytes = driver.cuMemGetAddressRange(pointer)
        if status != driver.CUresult.CUDA_SUCCESS:  # its codes of memory are those of cudaError_t
            raise _error("cuMemGetAddressRange", runtime.cudaError_t(int(status)))
        return int(start) + int(nbytes) - pointer

    def malloc(self, nbytes: int) -> int:
        return int(_call(runtime.cudaMalloc, nbytes))

    def free(self, pointer: int) -> None:
        _call(runtime.cudaFree, pointer)

    def host_alloc(self, nbytes: int) -> int:
        return int(_call(runtime.cudaHostAlloc, nbytes, _PINNED))

    def free_host(self, pointer: int) -> None:
        _call(runtime.cudaFreeHost, pointer)

    def host_register(self, pointer: int, nbytes: int) -> None:
        _call(runtime.cudaHostRegister, pointer, nbytes, _PINNED)

    def host_unregister(self, pointer: int) -> None:
        _call(runtime.cudaHostUnregister, pointer)

    def host_device_pointer(self, pointer: int) -> int:
        return int(_call(runtime.cudaHostGetDevicePointer, pointer, 0))

    def memcpy_async(self, target: int, source: int, nbytes: int, stream: int) -> None:
        _call(runtime.cudaMemcpyAsync, target, source, nbytes, _COPY, stream)

    def memset_async(self, pointer: int, value: int, nbytes: int, stream: int) -> None:
        _call(runtime.cudaMemsetAsync, pointer, value, nbytes, stream)

    def stream_priority_range(self) -> tuple[int, int]:
        return cast("tuple[int, int]", _call(runtime.cudaDeviceGetStreamPriorityRange))

    def stream_create(self, priority: int = 0) -> int:
        return int(_call(runtime.cudaStreamCreateWithPriority, _NON_BLOCKING, priority))

    def stream_destroy(self, stream: int) -> None:
        _call(runtime.cudaStreamDestroy, stream)

    def stream_synchronize(self, stream: int) -> None:
        _call(runtime.cudaStreamSynchronize, stream)

    def stream_wait_event(self, stream: int, event: int) -> None:
        _call(runtime.cudaStreamWaitEvent, stream, event, 0)

    def event_create(self, *, timing: bool = False, blocking: bool = False) -> int:
        flags = (0 if timing else _NO_TIMING) | (_BLOCKING if blocking else 0)
        return int(_call(runtime.cudaEventCreateWithFlags, flags))

    def event_destroy(self, event: int) -> None:
        _call(runtime.cudaEventDestroy, event)

    def event_record(self, event: int, stream: int) -> None:
        _call(runtime.cudaEventRecord, event, stream)

    def event_synchronize(self, event: int) -> None:
        _call(runtime.cudaEventSynchronize, event)

    def event_elapsed_time(self, start: int, end: int) -> float:
        return float(_call(runtime.cudaEventElapsedTime, start, end))

    def begin_capture(self, stream: int) -> None:
        _call(runtime.cudaStreamBeginCapture, stream, _CAPTURE)

    def end_capture(self, stream: int) -> int:
        graph = _call(runtime.cudaStreamEndCapture, stream)
        try:
            return int(_call(runtime.cudaGraphInstantiate, graph, 0))
        finally:
            runtime.cudaGraphDestroy(graph)

    def graph_launch(self, graph: int, stream: int) -> None:
        _call(runtime.cudaGraphLaunch, graph, stream)

    def graph_destroy(self, graph: int) -> None:
        _call(runtime.cudaGraphExecDestroy, graph)

    def ipc_open(self, handle: bytes) -> int:
        opened = runtime.cudaIpcMemHandle_t()
        ctypes.memmove(int(opened.getPtr()), handle[:_IPC_BYTES], _IPC_BYTES)
        return int(_call(runtime.cudaIpcOpenMemHandle, opened, _LAZY))

    def ipc_close(self, pointer: int) -> None:
        _call(runtime.cudaIpcCloseMemHandle, pointer)


@functools.cache
def make() -> CudaApi:
    """Return the one of this process."""
    return CudaBindings()
