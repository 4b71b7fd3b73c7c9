"""Memory of a device, and pinned memory: where there is not enough, the error has the figures and says what helps."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from edge_serve.backends.cuda.api import OUT_OF_MEMORY, CudaApi, CudaError

_MEMINFO = Path("/proc/meminfo")
#: what frees memory, whatever the backend
ADVICE = "unload models, or lower count in instance_group or max_batch_size"


class OutOfMemory(CudaError):
    """There is not enough memory.

    Args:
        free: the memory that is left, as a clause; "" = unknown.
    """

    def __init__(self, call: str, nbytes: int, free: str, advice: str) -> None:
        found = f"{_size(nbytes)} were asked for{free and f', and {free}'}"
        super().__init__(call, OUT_OF_MEMORY, "cudaErrorMemoryAllocation", f"out of memory; {found}: {advice}")


def allocate(cuda: CudaApi, nbytes: int, advice: str = ADVICE) -> int:
    """Return the address of new memory of the device.

    Args:
        advice: what to do if there is not enough.

    Raises:
        OutOfMemory: there is not enough. CudaError: the device fails.
    """
    try:
        return cuda.malloc(nbytes)
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        raise OutOfMemory("cudaMalloc", nbytes, free_memory(cuda), advice) from error


def allocate_pinned(cuda: CudaApi, nbytes: int) -> int:
    """Return the address of new pinned memory. Raises as `allocate`."""
    try:
        return cuda.host_alloc(nbytes)
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        raise OutOfMemory("cudaHostAlloc", nbytes, _free_on_host(), ADVICE) from error


def memory_info(cuda: CudaApi) -> tuple[int, int]:
    """Return free and total memory of the calling thread's device.

    Where the host shares its memory, cudaMemGetInfo counts what the kernel caches of files as used (CUDA for Tegra,
    "Estimating Total Allocatable Device Memory on an Integrated GPU Device").

    Raises:
        CudaError: the device does not tell.
    """
    free, total = cuda.memory_info()
    if cuda.is_integrated(cuda.get_device()):
        free = min(max(free, _available_on_host()), total)
    return free, total


def free_memory(cuda: CudaApi) -> str:
    """Return how much of the device's memory is free, as a clause; "" = it does not tell."""
    with suppress(CudaError):
        free, total = memory_info(cuda)
        return f"{_size(free)} of {_size(total)} are free on the device"
    return ""


def _free_on_host() -> str:
    available = _available_on_host()
    return f"{_size(available)} are available on the host" if available else ""


def _available_on_host() -> int:
    """Return the bytes that the kernel can give to programs; 0 = unknown."""
    with suppress(OSError):
        if found := re.search(r"MemAvailable:\s*(\d+) kB", _MEMINFO.read_text()):
            return int(found[1]) * 1024
    return 0


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:.1f} kB"
