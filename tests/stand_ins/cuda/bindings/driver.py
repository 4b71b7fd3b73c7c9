"""A stand-in for `cuda.bindings.driver` over the host CudaApi: what edge-serve and Triton's client library call."""

# ruff: noqa: N802 (the names of the genuine module)
from __future__ import annotations

from enum import IntEnum
from typing import Any

from cuda.bindings.runtime import host  # type: ignore[import-not-found,unused-ignore]  # beside this file

from edge_serve.backends.cuda.api import CudaError


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_DEVICE = 101


def cuDeviceGet(ordinal: int) -> tuple[Any, ...]:
    if not 0 <= ordinal < host.device_count():
        return CUresult.CUDA_ERROR_INVALID_DEVICE, None
    return CUresult.CUDA_SUCCESS, ordinal


def cuDevicePrimaryCtxGetState(dev: int) -> tuple[Any, ...]:
    return CUresult.CUDA_SUCCESS, 0, int(host.has_context(dev))


def cuGetErrorString(error: CUresult) -> tuple[Any, ...]:
    return CUresult.CUDA_SUCCESS, error.name.encode()


def cuMemGetAddressRange(dptr: int) -> tuple[Any, ...]:
    try:
        return CUresult.CUDA_SUCCESS, dptr, host.allocation_size(dptr)
    except CudaError:
        return CUresult.CUDA_ERROR_INVALID_VALUE, None, None
