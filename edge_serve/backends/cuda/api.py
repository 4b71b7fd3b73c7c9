"""The interface `CudaApi`: the calls of the CUDA runtime that backends use, its error, and the choice of one.

Names are the runtime's (CUDA Runtime API), without `cuda` in front. Pointers, streams, events and graphs are numbers,
as the runtime, TensorRT and DLPack take them; 0 is the default stream. Sizes are bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Protocol

from edge_serve.errors import Internal, Unavailable

#: cudaError_t (driver_types.h): the name of an error, and what cudaGetErrorString says of it
ERRORS = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    3: ("cudaErrorInitializationError", "initialization error"),
    46: ("cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    201: ("cudaErrorDeviceUninitialized", "invalid device context"),
    214: ("cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"),
    220: ("cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error detected during the execution"),
    226: ("cudaErrorContained", "Invalid access of peer GPU memory over nvlink or a hardware error"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    700: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    702: ("cudaErrorLaunchTimeout", "the launch timed out and was terminated"),
    709: ("cudaErrorContextIsDestroyed", "context is destroyed"),
    710: ("cudaErrorAssert", "device-side assert triggered"),
    712: ("cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"),
    713: ("cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"),
    714: ("cudaErrorHardwareStackError", "hardware stack error"),
    715: ("cudaErrorIllegalInstruction", "an illegal instruction was encountered"),
    716: ("cudaErrorMisalignedAddress", "misaligned address"),
    717: ("cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"),
    718: ("cudaErrorInvalidPc", "invalid program counter"),
    719: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    721: ("cudaErrorTensorMemoryLeak", "tensor memory not completely freed"),
    801: ("cudaErrorNotSupported", "operation not supported"),
    810: ("cudaErrorMpsClientTerminated", "the MPS client has been terminated by the server"),
    999: ("cudaErrorUnknown", "unknown error"),  # as of a card that fell off the bus
}
#: codes that end the context, so that every later call of the process fails too
STICKY = frozenset((46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 999))
OUT_OF_MEMORY, OLD_DRIVER, NOT_SUPPORTED = 2, 35, 801


def says_sticky(text: str) -> bool:
    """Return whether a library's text has an error after which the process can use the device no more."""
    return _sticky_text().search(text) is not None


@cache
def _sticky_text() -> re.Pattern[str]:
    """Match the same errors in the texts of libraries; "unknown error" where they name CUDA before it. Workers without
    a GPU import this file too, and are spared the compilation."""
    texts = "|".join(re.escape(text) for code, (_, text) in ERRORS.items() if code in STICKY and code != 999)
    named = r"\bCUDA (?:(?:Runtime|Driver) \(unknown error\)|error: unknown error)"  # of TensorRT, and of torch
    return re.compile(rf"{texts}|{named}", re.IGNORECASE)


class CudaError(Internal):
    """A call of CUDA failed.

    Attributes:
        code: cudaError_t.
        sticky: the process can use the device no more.
    """

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call} failed with {name} ({code}): {text}")
        self.code = code
        self.sticky = code in STICKY


class CudaApi(Protocol):
    """One device of CUDA, as one thread or several use it. Every call may raise CudaError.

    Attributes:
        has_graphs: `begin_capture` and what belongs to it work.
    """

    has_graphs: bool

    # device
    def device_count(self) -> int: ...
    def set_device(self, device: int) -> None:
        """Let the calling thread use a device. Each thread says so before its first other call."""

    def get_device(self) -> int:
        """Return the device that the calling thread uses."""

    def has_context(self, device: int) -> bool:
        """Return whether some library of this process has made a context on a device. It has hundreds of megabytes."""

    def capability(self, device: int) -> tuple[int, int]:
        """Return the compute capability of a device."""

    def is_integrated(self, device: int) -> bool:
        """Return whether the device's memory is the host's (Jetson)."""

    def memory_info(self) -> tuple[int, int]:
        """Return free and total memory of the device."""

    def peek_at_last_error(self) -> None:
        """Raise the last error of the calling thread, or the sticky one that the device is in."""

    # memory
    def allocation_size(self, pointer: int) -> int:
        """Return the bytes from `pointer` to the end of the allocation that contains it."""

    def malloc(self, nbytes: int) -> int: ...
    def free(self, pointer: int) -> None: ...
    def host_alloc(self, nbytes: int) -> int:
        """Return the address of new pinned host memory, which the device can address too."""

    def free_host(self, pointer: int) -> None: ...
    def host_register(self, pointer: int, nbytes: int) -> None:
        """Pin existing memory. Its pages must stay the same until `host_unregister` (no MADV_REMOVE)."""

    def host_unregister(self, pointer: int) -> None: ...
    def host_device_pointer(self, pointer: int) -> int:
        """Return the device's address of pinned memory."""

    def memcpy_async(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy in the order of the stream, between any two of host and device."""

    def memset_async(self, pointer: int, value: int, nbytes: int, stream: int) -> None:
        """Set each byte to `value`, in the order of the stream."""

    # streams and events
    def stream_priority_range(self) -> tuple[int, int]:
        """Return the least and the greatest priority; a smaller number is a greater priority."""

    def stream_create(self, priority: int = 0) -> int: ...
    def stream_destroy(self, stream: int) -> None: ...
    def stream_synchronize(self, stream: int) -> None: ...
    def stream_wait_event(self, stream: int, event: int) -> None: ...
    def event_create(self, *, timing: bool = False, blocking: bool = False) -> int:
        """Return a new event. Threads that wait for one with `blocking` sleep; otherwise they poll."""

    def event_destroy(self, event: int) -> None: ...
    def event_record(self, event: int, stream: int) -> None: ...
    def event_synchronize(self, event: int) -> None: ...
    def event_elapsed_time(self, start: int, end: int) -> float:
        """Return milliseconds between two events with timing."""

    # graphs
    def begin_capture(self, stream: int) -> None:
        """Record the calls of this thread on the stream from here on, instead of running them (thread local mode)."""

    def end_capture(self, stream: int) -> int:
        """Return the recorded graph, ready for `graph_launch`."""

    def graph_launch(self, graph: int, stream: int) -> None: ...
    def graph_destroy(self, graph: int) -> None: ...

    # memory of other processes
    def ipc_open(self, handle: bytes) -> int:
        """Return the address of memory for whose handle (64 bytes) another process has asked CUDA."""

    def ipc_close(self, pointer: int) -> None: ...


#: implementation -> its module and the package that it needs, best first
_CHOICES = {"cuda-bindings": "edge_serve.backends.cuda.bindings", "pycuda": "edge_serve.backends.cuda.pycuda"}


def load_cuda(load: Callable[[str], object] = import_module) -> CudaApi:
    """Return the best implementation that is installed and finds a device.

    Raises:
        Unavailable: no implementation finds a device. The text has the reason of each, and the fix.
    """
    reasons, installed = [], False
    for name, path in _CHOICES.items():
        try:
            module = load(path)
        except ModuleNotFoundError as error:
            reasons.append(f"{name}: not installed ({error})")
            continue
        except Exception as error:  # a library of the package does not load: OSError, RuntimeError, ...
            reasons.append(f"{name}: cannot be imported ({error})")
            continue
        installed = True
        try:
            api: CudaApi = module.make()  # type: ignore[attr-defined]  # of this module's files only
            if api.device_count():
                return api
            reasons.append(f"{name}: no device")
        except CudaError as error:
            reasons.append(f"{name}: {error.message}")
    remedy = "see: edge-serve doctor" if installed else "pip install 'edge-serve[cuda]', and see: edge-serve doctor"
    raise Unavailable(f"CUDA cannot be used: {'; '.join(reasons)}; {remedy}")
