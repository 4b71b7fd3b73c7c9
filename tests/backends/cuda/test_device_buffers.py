"""Buffers on a device, on the host CudaApi."""

from __future__ import annotations

import ctypes

import pytest

from edge_serve.backends.cuda.api import CudaError
from edge_serve.backends.cuda.device_buffers import DeviceBuffers
from edge_serve.errors import Internal
from tests.backends.cuda.host import HostCuda


def test_buffer_is_cleared_and_grows_only_where_it_is_too_small() -> None:
    cuda = HostCuda()
    buffers = DeviceBuffers(cuda)
    first = buffers.reserve("X", 1000)
    assert ctypes.string_at(first, 1000) == bytes(1000)

    assert buffers.reserve("X", 10) == first
    larger = buffers.reserve("X", 1001, most=4000)
    assert ctypes.string_at(larger, 4000) == bytes(4000)
    assert (buffers.size("X"), buffers.size("Y")) == (4000, 0)
    assert cuda.open_handles()["memory"] == 1
    buffers.close()
    assert cuda.open_handles()["memory"] == 0


def test_run_that_would_use_the_memory_behind_a_buffer_is_refused() -> None:
    buffers = DeviceBuffers(HostCuda())
    pointer = buffers.reserve("X", 1000)

    assert buffers.place("X", 1000) == pointer
    with pytest.raises(Internal, match="tensor 'X' of this batch takes 1001 bytes, and has 1000 bytes on the device"):
        buffers.place("X", 1001)


def test_device_without_memory_leaves_no_buffer_behind() -> None:
    cuda = HostCuda(memory=4096)
    buffers = DeviceBuffers(cuda)
    buffers.reserve("X", 1024)

    with pytest.raises(CudaError, match=r"8\.2 kB were asked for.*: help"):
        buffers.reserve("X", 8192, advice="help")

    assert (buffers.size("X"), cuda.open_handles()["memory"]) == (0, 0)
