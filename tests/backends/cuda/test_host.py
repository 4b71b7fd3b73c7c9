"""The host CudaApi alone: what a test lets fail, and what it notices."""

from __future__ import annotations

import ctypes
import threading

import pytest

from edge_serve.backends.cuda.api import CudaError
from tests.backends.cuda.host import POISON, HostCuda


def test_scripted_failure_comes_once_and_after_so_many_calls() -> None:
    cuda = HostCuda()
    cuda.fail("cudaMalloc", 2, after=1)
    pointer = cuda.malloc(16)

    with pytest.raises(CudaError, match="out of memory"):
        cuda.malloc(16)
    cuda.free(cuda.malloc(16))
    cuda.free(pointer)


def test_sticky_error_ends_the_device() -> None:
    cuda = HostCuda()
    cuda.fail("cudaStreamSynchronize", 719)
    stream = cuda.stream_create()

    with pytest.raises(CudaError) as failed:
        cuda.stream_synchronize(stream)

    assert failed.value.sticky
    for call in (lambda: cuda.malloc(1), lambda: cuda.memory_info(), cuda.peek_at_last_error):
        with pytest.raises(CudaError, match="719"):
            call()


def test_failed_kernel_is_reported_at_the_next_synchronization() -> None:
    cuda = HostCuda()
    stream = cuda.stream_create()
    cuda.run(lambda: [][0], stream)

    with pytest.raises(CudaError, match=r"cudaErrorIllegalAddress \(700\)"):
        cuda.stream_synchronize(stream)


def test_copy_beyond_an_allocation_is_an_illegal_address() -> None:
    cuda = HostCuda()
    stream, pointer = cuda.stream_create(), cuda.malloc(16)
    cuda.memset_async(pointer, 1, 17, stream)

    with pytest.raises(CudaError, match="700"):
        cuda.stream_synchronize(stream)


def test_new_memory_of_a_device_is_not_cleared() -> None:
    cuda = HostCuda()

    assert ctypes.string_at(cuda.malloc(16), 16) == bytes([POISON]) * 16


def test_copy_to_ordinary_memory_returns_when_it_is_done() -> None:
    """One to pinned memory is only enqueued."""
    cuda, may_end = HostCuda(), threading.Event()
    device, pinned, ordinary = cuda.malloc(16), cuda.host_alloc(16), bytearray(16)
    ctypes.memset(pinned, 0, 16)
    stream, timer = cuda.stream_create(), threading.Timer(0.05, may_end.set)

    def work() -> None:
        assert may_end.wait(20)

    cuda.run(work, stream)
    cuda.memcpy_async(pinned, device, 16, stream)
    assert ctypes.string_at(pinned, 16) == bytes(16)
    timer.start()
    cuda.memcpy_async(ctypes.addressof(ctypes.c_char.from_buffer(ordinary)), device, 16, stream)

    assert ordinary == bytes([POISON]) * 16
    timer.join()


def test_handles_that_are_open_are_counted() -> None:
    cuda = HostCuda()
    stream, event, pointer = cuda.stream_create(), cuda.event_create(), cuda.malloc(16)

    assert cuda.open_handles() == {"memory": 1, "streams": 1, "events": 1, "graphs": 0}
    cuda.stream_destroy(stream)
    cuda.event_destroy(event)
    cuda.free(pointer)
    assert not any(cuda.open_handles().values())


def test_integrated_device_has_no_ipc() -> None:
    cuda = HostCuda(integrated=True)

    with pytest.raises(CudaError, match="cudaErrorNotSupported"):
        cuda.ipc_handle(cuda.malloc(16))


def test_handle_of_freed_memory_is_refused() -> None:
    owner, other = HostCuda(), HostCuda()
    pointer = owner.malloc(16)
    handle = owner.ipc_handle(pointer)
    owner.free(pointer)

    for wrong in (handle, bytes(64)):
        with pytest.raises(CudaError, match="cudaIpcOpenMemHandle failed with cudaErrorInvalidValue"):
            other.ipc_open(wrong)


def test_opened_memory_has_bounds_and_is_counted() -> None:
    owner, other = HostCuda(), HostCuda()
    pointer = owner.malloc(16)
    opened = other.ipc_open(owner.ipc_handle(pointer))
    target, stream = other.malloc(64), other.stream_create()
    assert other.open_handles()["memory"] == 2

    other.memcpy_async(target, opened, 17, stream)
    with pytest.raises(CudaError, match="illegal memory access"):
        other.stream_synchronize(stream)
    owner.free(pointer)


def test_each_device_has_its_own_memory() -> None:
    cuda = HostCuda(memory=1 << 20)
    pointer = cuda.malloc(1 << 20)
    cuda.set_device(1)

    assert cuda.memory_info() == (1 << 20, 1 << 20)
    cuda.free(pointer)


def test_memory_is_freed_while_other_threads_end_their_streams() -> None:
    cuda = HostCuda()
    stop = threading.Event()

    def streams() -> None:
        while not stop.is_set():
            cuda.stream_destroy(cuda.stream_create())

    thread = threading.Thread(target=streams)
    thread.start()
    for _ in range(50):
        cuda.free(cuda.malloc(16))
    stop.set()
    thread.join(20)

    assert not thread.is_alive()
