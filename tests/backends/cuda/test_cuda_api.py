"""The behaviour that every implementation of CudaApi has. On a machine with a GPU the real ones are tested too."""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import mmap
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from edge_serve.backends.cuda.api import OUT_OF_MEMORY, CudaApi, CudaError
from edge_serve.devices.find import find_devices
from tests.backends.cuda.host import HostCuda

KIB = 1 << 10
ROOT = Path(__file__).parents[3]
STAND_INS = ROOT / "tests/stand_ins"
REAL = {"cuda-bindings": ("cuda", "bindings"), "pycuda": ("pycuda", "pycuda")}


@pytest.fixture(
    params=[
        "host",
        "bindings over the host",
        "pycuda over the host",
        *(pytest.param(name, marks=pytest.mark.gpu) for name in REAL),
    ]
)
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CudaApi:
    """Return an implementation, with device 0 for this thread."""
    if request.param == "host":
        api: CudaApi = HostCuda()
    elif request.param == "bindings over the host":
        api = over_stand_in(monkeypatch, "bindings").CudaBindings()
    elif request.param == "pycuda over the host":
        api = over_stand_in(monkeypatch, "pycuda").PyCuda()
    else:
        package, module = REAL[request.param]
        if not find_devices().found:
            pytest.skip("no NVIDIA GPU here")
        if find_spec(package) is None:
            pytest.skip(f"{request.param} is not installed")
        api = import_module(f"edge_serve.backends.cuda.{module}").make()
    api.set_device(0)
    return api


def over_stand_in(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """Return edge_serve's own module for a library, over the stand-in for that library."""
    module = f"edge_serve.backends.cuda.{name}"
    for loaded in [one for one in sys.modules if one.partition(".")[0] in ("cuda", "pycuda") or one == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.syspath_prepend(str(STAND_INS))
    found = import_module(module)
    if name == "pycuda":
        monkeypatch.setattr(found, "_libcuda", lambda: found.driver.libcuda)
    for loaded in [one for one in sys.modules if one.partition(".")[0] in ("cuda", "pycuda") or one == module]:
        del sys.modules[loaded]
    return found


@pytest.fixture
def stream(cuda: CudaApi) -> Iterator[int]:
    """Yield a stream."""
    made = cuda.stream_create()
    yield made
    cuda.stream_destroy(made)


def put(cuda: CudaApi, data: bytes, stream: int) -> int:
    """Return new device memory with these bytes."""
    device = cuda.malloc(len(data))
    cuda.memcpy_async(device, address(data), len(data), stream)
    cuda.stream_synchronize(stream)
    return device


def address(data: bytes) -> int:
    found = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
    assert found is not None
    return found


def handle_of(cuda: CudaApi, device: int) -> bytes:
    """Return the handle of device memory. Clients alone ask for one, so it is the libraries' own call."""
    if isinstance(cuda, HostCuda):
        return cuda.ipc_handle(device)
    library = type(cuda).ipc_open.__globals__
    if "runtime" not in library:
        return bytes(library["driver"].mem_get_ipc_handle(device))
    status, handle = library["runtime"].cudaIpcGetMemHandle(device)  # owns the bytes that it points to
    assert not int(status)
    return ctypes.string_at(int(handle.getPtr()), 64)


def get(cuda: CudaApi, device: int, nbytes: int, stream: int) -> bytes:
    """Return the content of device memory."""
    buffer = ctypes.create_string_buffer(nbytes)
    cuda.memcpy_async(ctypes.addressof(buffer), device, nbytes, stream)
    cuda.stream_synchronize(stream)
    return buffer.raw


def test_bytes_come_back_through_the_device(cuda: CudaApi, stream: int) -> None:
    data = bytes(range(256)) * KIB
    first, second = put(cuda, data, stream), cuda.malloc(len(data))
    cuda.memcpy_async(second, first, len(data), stream)

    assert get(cuda, second, len(data), stream) == data
    cuda.memcpy_async(second + 16, first + 32, 16, stream)
    assert get(cuda, second, 64, stream) == data[:16] + data[32:48] + data[32:64]
    for pointer in (first, second):
        cuda.free(pointer)


def test_memory_is_set_in_the_order_of_a_stream(cuda: CudaApi, stream: int) -> None:
    device = put(cuda, bytes(KIB), stream)
    cuda.memset_async(device + 1, 0xEE, 2, stream)

    assert get(cuda, device, 4, stream) == b"\x00\xee\xee\x00"
    cuda.memset_async(device, 7, KIB, 0)
    cuda.stream_synchronize(0)
    assert get(cuda, device, KIB, stream) == b"\x07" * KIB
    cuda.free(device)


def test_device_says_whether_its_memory_is_the_hosts(cuda: CudaApi) -> None:
    assert cuda.is_integrated(0) in (True, False)


def test_memory_info_follows_allocations(cuda: CudaApi) -> None:
    free, total = cuda.memory_info()
    pointer = cuda.malloc(64 << 20)

    now, _ = cuda.memory_info()
    assert 0 < free <= total
    assert free - now >= 64 << 20
    cuda.free(pointer)


def test_too_large_an_allocation_is_out_of_memory_and_not_sticky(cuda: CudaApi) -> None:
    _, total = cuda.memory_info()

    with pytest.raises(CudaError, match=r"cudaMalloc failed with cudaErrorMemoryAllocation \(2\)") as failed:
        cuda.malloc(total + (1 << 20))

    assert (failed.value.code, failed.value.sticky) == (OUT_OF_MEMORY, False)
    cuda.peek_at_last_error()
    cuda.free(cuda.malloc(KIB))


def test_pinned_memory_is_read_and_written_by_the_device(cuda: CudaApi, stream: int) -> None:
    pinned = cuda.host_alloc(KIB)
    ctypes.memset(pinned, 7, KIB)
    device, nines = cuda.malloc(KIB), put(cuda, b"\x09" * 4, stream)
    cuda.memcpy_async(device, cuda.host_device_pointer(pinned), KIB, stream)
    cuda.memcpy_async(device, nines, 4, stream)
    cuda.memcpy_async(pinned, device, KIB, stream)
    cuda.stream_synchronize(stream)

    assert ctypes.string_at(pinned, 6) == b"\x09" * 4 + b"\x07" * 2
    for pointer in (device, nines):
        cuda.free(pointer)
    cuda.free_host(pinned)


@pytest.fixture
def region() -> Iterator[tuple[mmap.mmap, int]]:
    """Yield shared memory of three pipes' length, and its address, as an arena is mapped."""
    mapped = mmap.mmap(-1, 3 << 20)
    view = ctypes.c_char.from_buffer(mapped)
    yield mapped, ctypes.addressof(view)
    del view
    mapped.close()


def test_registered_memory_is_read_and_written_by_the_device(
    cuda: CudaApi, stream: int, region: tuple[mmap.mmap, int]
) -> None:
    mapped, start = region
    cuda.host_register(start, len(mapped))
    mapped[(1 << 20) - 4 : (1 << 20) + 4] = b"over two"  # written after the registration, over the end of a pipe
    device = cuda.malloc(8)
    cuda.memcpy_async(device, start + (1 << 20) - 4, 8, stream)
    cuda.memcpy_async(start + (2 << 20), device, 8, stream)
    cuda.stream_synchronize(stream)

    assert mapped[2 << 20 : (2 << 20) + 8] == b"over two"
    cuda.host_unregister(start)
    cuda.free(device)


def test_pages_given_back_while_registered_are_lost_for_the_device(
    cuda: CudaApi, stream: int, region: tuple[mmap.mmap, int]
) -> None:
    """So the arena may not give pages back that are registered (ADR 25)."""
    mapped, start = region
    mapped[:4] = b"old."
    cuda.host_register(start, len(mapped))
    mapped.madvise(mmap.MADV_REMOVE, 0, mmap.PAGESIZE)
    mapped[:4] = b"new."
    device = put(cuda, b"written.", stream)

    assert get(cuda, start, 4, stream) == b"old."
    cuda.memcpy_async(start, device, 8, stream)
    cuda.stream_synchronize(stream)
    assert mapped[:4] == b"new."

    cuda.host_unregister(start)
    cuda.host_register(start, len(mapped))
    assert get(cuda, start, 4, stream) == b"new."
    cuda.host_unregister(start)
    cuda.free(device)


def test_memory_registered_twice_or_never_is_refused(cuda: CudaApi, region: tuple[mmap.mmap, int]) -> None:
    _, start = region
    cuda.host_register(start, 1 << 20)

    with pytest.raises(CudaError, match="AlreadyRegistered"):
        cuda.host_register(start, 1 << 20)
    cuda.host_unregister(start)
    with pytest.raises(CudaError, match="NotRegistered"):
        cuda.host_unregister(start)


def test_stream_waits_for_the_event_of_another(cuda: CudaApi, stream: int) -> None:
    size, other, event = 32 << 20, cuda.stream_create(), cuda.event_create()
    source, target = cuda.malloc(size), cuda.malloc(size)
    patterns = [put(cuda, bytes([value]) * size, stream) for value in range(1, 6)]
    for value, pattern in enumerate(patterns, 1):
        cuda.memcpy_async(source, pattern, size, stream)
        cuda.event_record(event, stream)
        cuda.stream_wait_event(other, event)
        cuda.memcpy_async(target, source, size, other)
        cuda.stream_synchronize(other)
        assert get(cuda, target + size - 2, 2, other) == bytes([value]) * 2
    cuda.event_destroy(event)
    cuda.stream_destroy(other)
    for pointer in (source, target, *patterns):
        cuda.free(pointer)


def test_events_with_timing_measure(cuda: CudaApi, stream: int) -> None:
    start, end = cuda.event_create(timing=True), cuda.event_create(timing=True)
    device = cuda.malloc(8 << 20)
    cuda.event_record(start, stream)
    cuda.memcpy_async(device, device + (4 << 20), 4 << 20, stream)
    cuda.event_record(end, stream)
    cuda.event_synchronize(end)

    assert 0 < cuda.event_elapsed_time(start, end) < 60_000
    for event in (start, end):
        cuda.event_destroy(event)
    cuda.free(device)


def test_graph_runs_what_was_captured_as_often_as_launched(cuda: CudaApi, stream: int) -> None:
    if not cuda.has_graphs:
        pytest.skip("this implementation has no graphs")
    source, target = put(cuda, b"\x01" * KIB, stream), put(cuda, b"\x00" * KIB, stream)
    fives = put(cuda, b"\x05" * 4, stream)
    cuda.begin_capture(stream)
    cuda.memcpy_async(target, source, KIB, stream)
    cuda.memcpy_async(target, fives, 4, stream)
    graph = cuda.end_capture(stream)
    assert get(cuda, target, 8, stream) == bytes(8), "nothing has run yet"

    for value in (b"\x02", b"\x03"):
        data = value * KIB  # which must live until the copy is made
        cuda.memcpy_async(source, address(data), KIB, stream)
        cuda.stream_synchronize(stream)
        cuda.graph_launch(graph, stream)
        assert get(cuda, target, 8, stream) == b"\x05" * 4 + value * 4
    cuda.graph_destroy(graph)
    for pointer in (source, target):
        cuda.free(pointer)


def test_threads_use_one_device(cuda: CudaApi) -> None:
    wrong: list[object] = []

    def work(value: int) -> None:
        try:
            cuda.set_device(0)
            own = cuda.stream_create(cuda.stream_priority_range()[1])
            for _ in range(50):
                device = put(cuda, bytes([value]) * KIB, own)
                if get(cuda, device, KIB, own) != bytes([value]) * KIB:
                    wrong.append(value)
                cuda.free(device)
            cuda.stream_destroy(own)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_device_that_is_not_there_is_refused(cuda: CudaApi) -> None:
    with pytest.raises(CudaError, match="cudaSetDevice failed with cudaErrorInvalidDevice"):
        cuda.set_device(cuda.device_count())
    cuda.set_device(0)


def test_thread_knows_its_device(cuda: CudaApi) -> None:
    last = cuda.device_count() - 1
    cuda.set_device(last)
    assert cuda.get_device() == last
    cuda.set_device(0)
    assert cuda.get_device() == 0


def test_context_of_a_device_is_made_by_its_use(cuda: CudaApi) -> None:
    last = cuda.device_count() - 1
    cuda.set_device(last)
    assert cuda.has_context(last)
    cuda.set_device(0)


def test_size_of_an_allocation_is_known(cuda: CudaApi) -> None:
    pointer = cuda.malloc(3 * KIB)
    assert cuda.allocation_size(pointer) == 3 * KIB
    assert cuda.allocation_size(pointer + KIB) == 2 * KIB
    cuda.free(pointer)

    with pytest.raises(CudaError, match="cuMemGetAddressRange failed"):
        cuda.allocation_size(address(bytes(64)))


#: opens the memory of a handle twice, closes it once, adds 1 to each of its bytes, and prints its size
OTHER_PROCESS = """
import ctypes, sys
from {module} import {make}
cuda = {make}()
cuda.set_device(0)
handle, stream = bytes.fromhex(sys.argv[1]), cuda.stream_create()
pointer, again = cuda.ipc_open(handle), cuda.ipc_open(handle)
assert pointer == again
cuda.ipc_close(again)
size = cuda.allocation_size(pointer)
host = (ctypes.c_ubyte * size)()
cuda.memcpy_async(ctypes.addressof(host), pointer, size, stream)
cuda.stream_synchronize(stream)
host[:] = [one + 1 for one in host]
cuda.memcpy_async(pointer, ctypes.addressof(host), size, stream)
cuda.stream_synchronize(stream)
cuda.ipc_close(pointer)
print(size)
"""


def test_another_process_opens_memory_by_its_handle(cuda: CudaApi, stream: int, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["cuda"]
    package, module = REAL.get(name, ("", "bindings"))
    maker = {"module": f"edge_serve.backends.cuda.{module}", "make": "make"}
    if name == "host":
        maker = {"module": "tests.backends.cuda.host", "make": "HostCuda"}
    device = put(cuda, b"abc" * 16, stream)

    command = [sys.executable, "-c", OTHER_PROCESS.format(**maker), handle_of(cuda, device).hex()]
    paths = [str(ROOT), *([] if package else [str(STAND_INS)])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)

    assert (done.stdout, done.stderr) == ("48\n", "")
    back = bytearray(48)
    cuda.memcpy_async(ctypes.addressof(ctypes.c_char.from_buffer(back)), device, 48, stream)
    cuda.stream_synchronize(stream)
    assert back == b"bcd" * 16
    cuda.free(device)


def test_memory_freed_twice_is_refused(cuda: CudaApi) -> None:
    pointer = cuda.malloc(KIB)
    cuda.free(pointer)

    with pytest.raises(CudaError, match="cudaFree failed with cudaErrorInvalidValue"):
        cuda.free(pointer)


def test_stand_in_has_the_signatures_of_cuda_bindings() -> None:
    genuine = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    spec = importlib.util.spec_from_file_location("stand_in_runtime", STAND_INS / "cuda/bindings/runtime.py")
    assert spec is not None
    assert spec.loader is not None
    stand_in = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stand_in)

    functions = {
        name: one for name, one in vars(stand_in).items() if name.startswith("cuda") and inspect.isfunction(one)
    }
    assert len(functions) > 30
    for name, function in functions.items():
        wanted = re.findall(r"(\w+)(?=[,:)])", signature_line(getattr(genuine, name)))
        assert list(inspect.signature(function).parameters) == [one for one in wanted if one not in TYPES], name


#: types of arguments in the first lines of docstrings: `cudaMemcpyKind` of `kind: cudaMemcpyKind`
TYPES = {"cudaDeviceAttr", "cudaMemcpyKind", "cudaStreamCaptureMode", "cudaIpcMemHandle_t", "cudaError_t"}


def signature_line(function: Any) -> str:
    """Return the signature of a compiled function, `cudaSetDevice(int device)`."""
    return (function.__doc__ or "").strip().partition("\n")[0]
