"""`CudaApi` on the CPU: streams are threads that work in order, device memory is memory of this process.

Its device pointers are addresses of this process, so a stand-in for TensorRT computes on them with NumPy
(`HostCuda.run`). Another process opens device memory by its handle (`exported`). What a real device does badly, it does
too: calls on freed or foreign memory fail as an illegal address, a sticky error ends the device, new memory is not
cleared (`POISON`), a copy to ordinary memory returns when it is done, registered memory whose pages were given back
is read as it was (`host_register`), and calls can be made to fail (`HostCuda.fail`).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import queue
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from edge_serve.backends.cuda.api import NOT_SUPPORTED, OUT_OF_MEMORY, CudaError
from tests.backends.cuda.exported import ExportedMemory, NotExported, open_handle
from tests.backends.cuda.pinned_pages import PinnedPages

_INVALID_VALUE, _INVALID_DEVICE, _INVALID_HANDLE, _ILLEGAL_ADDRESS = 1, 101, 400, 700
_ALREADY_REGISTERED, _NOT_REGISTERED, _CAPTURE_UNSUPPORTED = 712, 713, 900
TEXTS = {
    _INVALID_VALUE: ("cudaErrorInvalidValue", "invalid argument"),
    OUT_OF_MEMORY: ("cudaErrorMemoryAllocation", "out of memory"),
    _INVALID_DEVICE: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    _INVALID_HANDLE: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    _ILLEGAL_ADDRESS: ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
    _ALREADY_REGISTERED: ("cudaErrorHostMemoryAlreadyRegistered", "part or all of the memory is already registered"),
    _NOT_REGISTERED: ("cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"),
    _CAPTURE_UNSUPPORTED: ("cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    NOT_SUPPORTED: ("cudaErrorNotSupported", "operation not supported"),
}

#: each byte of new device memory: as an index it is out of range, as a number it is tiny
POISON = 0xAB
#: of a large allocation the first bytes alone: its pages would all be in memory
_POISONED = 1 << 20

Work = Callable[[], None]


def _error(call: str, code: int) -> CudaError:
    name, text = TEXTS.get(code, (f"cudaError{code}", "scripted"))
    return CudaError(call, code, name, text)


@dataclass(slots=True)
class _Event:
    timing: bool
    happened: threading.Event = field(default_factory=threading.Event)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.happened.set()  # an event that was never recorded counts as complete

    def happen(self, mark: threading.Event) -> None:
        self.at = time.perf_counter()
        mark.set()


class _Stream:
    """A thread that runs what it is given, in order."""

    def __init__(self, fails: Callable[[Exception], None]) -> None:
        self.captured: list[Work] | None = None
        self._fails = fails
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="host-cuda-stream", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        if self.captured is not None:
            self.captured.append(work)
        else:
            self._works.put(work)

    def wait(self) -> None:
        done = threading.Event()
        with self._gate:
            if self._ended:  # by another thread, meanwhile
                return
            self._works.put(done.set)
        if not sys.is_finalizing():  # then its thread runs no more
            done.wait()

    def end(self) -> None:
        with self._gate:
            self._ended = True
            self._works.put(None)
        if not sys.is_finalizing():
            self._thread.join()

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                work()
            except Exception as error:  # as a kernel that fails: the device is told, the stream goes on
                self._fails(error)


@dataclass(slots=True)
class _Memory:
    """Ranges of memory by their address, to find the one that an address lies in."""

    starts: list[int] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)

    def add(self, start: int, nbytes: int) -> None:
        self.sizes[start] = nbytes  # first: another thread may look for it meanwhile
        self.starts.insert(bisect_right(self.starts, start), start)

    def remove(self, start: int) -> int:
        self.starts.remove(start)
        return self.sizes.pop(start)

    def start_of(self, address: int, nbytes: int = 1) -> int | None:
        """Return the start of the range that has these bytes."""
        at = bisect_right(self.starts, address) - 1
        if at < 0 or address + nbytes > self.starts[at] + self.sizes[self.starts[at]]:
            return None
        return self.starts[at]


@dataclass(slots=True)
class _Device:
    total: int
    used: int = 0
    allocated: _Memory = field(default_factory=_Memory)


class HostCuda:
    """Implements `CudaApi`.

    Args:
        devices: their number.
        memory: of each device, bytes.
        integrated: host memory is the device's own: there is no IPC.
    """

    has_graphs = True

    def __init__(
        self, devices: int = 2, memory: int = 1 << 30, *, integrated: bool = False, capability: tuple[int, int] = (8, 7)
    ) -> None:
        self._capability = capability
        self.has_ipc = not integrated
        self._lock = threading.RLock()
        self._devices = [_Device(memory) for _ in range(devices)]
        self._thread = threading.local()
        #: devices that some thread has chosen or used
        self._contexts: set[int] = set()
        self._numbers = itertools.count(1)
        self._streams: dict[int, _Stream] = {}
        self._events: dict[int, _Event] = {}
        self._graphs: dict[int, list[Work]] = {}
        self._buffers: dict[int, mmap.mmap] = {}
        self._exported = ExportedMemory()
        #: memory of other processes
        self._opened = _Memory()
        #: its address -> the handle, and how often that is open
        self._opens: dict[int, tuple[bytes, int]] = {}
        self._pinned = _Memory()
        self._registered: dict[int, PinnedPages] = {}
        #: of `_registered`; a stream may take it while another thread has `_lock` and waits for the stream
        self._registration_lock = threading.Lock()
        self._sticky: CudaError | None = None
        self._scripted: dict[str, list[tuple[int, int]]] = {}

    # ---- for tests ----------------------------------------------------------------------------------------------

    def fail(self, call: str, code: int, after: int = 0) -> None:
        """Let a call fail once with a cudaError_t, after it has worked `after` times more."""
        self._scripted.setdefault(call, []).append((after, code))

    def run(self, work: Work, stream: int) -> None:
        """Run a function in the order of the stream, as a kernel. One that raises is an illegal address."""
        self._enter("launch")
        self._stream(stream, "launch").put(work)

    def open_handles(self) -> dict[str, int]:
        """Return how much is not freed: allocations, streams, events, graphs."""
        allocated = sum(len(device.allocated.starts) for device in self._devices) + len(self._pinned.starts)
        allocated += len(self._opened.starts)
        streams = len([number for number in self._streams if number])
        return {"memory": allocated, "streams": streams, "events": len(self._events), "graphs": len(self._graphs)}

    # ---- device -------------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        return len(self._devices)

    def set_device(self, device: int) -> None:
        self._enter("cudaSetDevice")
        if not 0 <= device < len(self._devices):
            raise _error("cudaSetDevice", _INVALID_DEVICE)
        self._thread.device = device
        self._contexts.add(device)

    def get_device(self) -> int:
        return int(getattr(self._thread, "device", 0))

    def has_context(self, device: int) -> bool:
        return device in self._contexts

    def capability(self, device: int) -> tuple[int, int]:
        return self._capability

    def is_integrated(self, device: int) -> bool:
        return not self.has_ipc

    def memory_info(self) -> tuple[int, int]:
        self._enter("cudaMemGetInfo")
        device = self._device()
        return device.total - device.used, device.total

    def peek_at_last_error(self) -> None:
        self._enter("cudaPeekAtLastError")

    # ---- memory -------------------------------------------------------------------------------------------------

    def allocation_size(self, pointer: int) -> int:
        self._enter("cuMemGetAddressRange")
        for memory in (*(device.allocated for device in self._devices), self._opened):
            start = memory.start_of(pointer)
            if start is not None:
                return start + memory.sizes[start] - pointer
        raise _error("cuMemGetAddressRange", _INVALID_VALUE)

    def malloc(self, nbytes: int) -> int:
        self._enter("cudaMalloc")
        with self._lock:
            device = self._device()
            if device.used + nbytes > device.total:
                raise _error("cudaMalloc", OUT_OF_MEMORY)
            pointer = self._map_device(nbytes)
            ctypes.memset(pointer, POISON, min(nbytes, _POISONED))
            device.used += nbytes
            device.allocated.add(pointer, nbytes)
        return pointer

    def free(self, pointer: int) -> None:
        self._enter("cudaFree")
        with self._lock:
            for device in self._devices:
                if pointer in device.allocated.sizes:
                    self._drain()
                    device.used -= device.allocated.remove(pointer)
                    self._exported.remove(pointer)
                    self._unmap(pointer)
                    return
        raise _error("cudaFree", _INVALID_VALUE)

    def host_alloc(self, nbytes: int) -> int:
        self._enter("cudaHostAlloc")
        with self._lock:
            pointer = self._map(nbytes)
            self._pinned.add(pointer, nbytes)
        return pointer

    def free_host(self, pointer: int) -> None:
        self._enter("cudaFreeHost")
        with self._lock:
            if pointer not in self._buffers or pointer not in self._pinned.sizes:
                raise _error("cudaFreeHost", _INVALID_VALUE)
            self._drain()
            self._pinned.remove(pointer)
            self._unmap(pointer)

    def host_register(self, pointer: int, nbytes: int) -> None:
        self._enter("cudaHostRegister")
        with self._lock:
            if self._pinned.start_of(pointer) is not None or self._pinned.start_of(pointer + nbytes - 1) is not None:
                raise _error("cudaHostRegister", _ALREADY_REGISTERED)
            with self._registration_lock:
                self._registered[pointer] = PinnedPages(pointer, nbytes)
                self._pinned.add(pointer, nbytes)

    def host_unregister(self, pointer: int) -> None:
        self._enter("cudaHostUnregister")
        with self._lock:
            if pointer not in self._registered:
                raise _error("cudaHostUnregister", _NOT_REGISTERED)
            self._drain()
            with self._registration_lock:
                self._pinned.remove(pointer)
                self._registered.pop(pointer).close()

    def host_device_pointer(self, pointer: int) -> int:
        self._enter("cudaHostGetDevicePointer")
        if self._pinned.start_of(pointer) is None:
            raise _error("cudaHostGetDevicePointer", _INVALID_VALUE)
        return pointer

    def memcpy_async(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy in the order of the stream; ordinary memory of the host is read, or written, before this returns, as by
        CUDA.
        """
        self._enter("cudaMemcpyAsync")
        with self._registration_lock:
            for address in (target, source):
                if not self._is_one_kind(address, nbytes):
                    raise _error("cudaMemcpyAsync", _INVALID_VALUE)
        runs = self._stream(stream, "cudaMemcpyAsync")
        if runs.captured is None and self._is_ordinary(source):
            data = ctypes.string_at(source, nbytes)
            runs.put(lambda: self._write_checked(target, data))
        else:
            runs.put(lambda: self._copy(target, source, nbytes))
            if runs.captured is None and self._is_ordinary(target):
                runs.wait()

    def _is_ordinary(self, address: int) -> bool:
        known = (self._pinned, self._opened, *(device.allocated for device in self._devices))
        return all(memory.start_of(address) is None for memory in known)

    def _write_checked(self, target: int, data: bytes) -> None:
        self.check_range(target, len(data))
        self._write(target, data)

    def memset_async(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Set memory of a device."""
        self._enter("cudaMemsetAsync")

        def work() -> None:
            self.check_range(target, nbytes)
            ctypes.memset(target, value, nbytes)

        self._stream(stream, "cudaMemsetAsync").put(work)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        for address in (target, source):
            self.check_range(address, nbytes)
        with self._registration_lock:  # memory may be registered while a copy of it is under way
            parts = [self._read(start, size) for start, size in self._runs(source, nbytes)]
            self._write(target, b"".join(parts))

    def _read(self, source: int, nbytes: int) -> bytes:
        pages = self._pages(source)
        return pages.read(source, nbytes) if pages else ctypes.string_at(source, nbytes)

    def _runs(self, address: int, nbytes: int) -> list[tuple[int, int]]:
        """Return the parts of a range, each of which is in one registration or in none."""
        ends = {end for start in self._registered for end in (start, start + self._pinned.sizes[start])}
        cuts = [address, *sorted(end for end in ends if address < end < address + nbytes), address + nbytes]
        return [(start, end - start) for start, end in itertools.pairwise(cuts)]

    def _is_one_kind(self, address: int, nbytes: int) -> bool:
        """Return whether a range is in one registration, or in none: CUDA refuses others."""
        return nbytes == 0 or len(self._runs(address, nbytes)) == 1

    def _write(self, target: int, data: bytes) -> None:
        for start, size in self._runs(target, len(data)):
            part, pages = data[start - target : start - target + size], self._pages(start)
            if pages:
                pages.write(start, part)
            else:
                ctypes.memmove(start, part, size)

    def _pages(self, address: int) -> PinnedPages | None:
        return self._registered.get(self._pinned.start_of(address) or 0)

    def check_range(self, address: int, nbytes: int) -> None:
        """Let bytes of a device that are not whole in one allocation fail; other memory is the host's, as pageable."""
        for memory in (*(device.allocated for device in self._devices), self._opened):
            if memory.start_of(address) is not None and memory.start_of(address, nbytes) is None:
                raise _error("cudaMemcpyAsync", _ILLEGAL_ADDRESS)

    # ---- streams and events -------------------------------------------------------------------------------------

    def stream_priority_range(self) -> tuple[int, int]:
        return 0, -5

    def stream_create(self, priority: int = 0) -> int:
        self._enter("cudaStreamCreateWithPriority")
        number = next(self._numbers)
        self._streams[number] = _Stream(self._fails)
        return number

    def stream_destroy(self, stream: int) -> None:
        self._enter("cudaStreamDestroy")
        self._stream(stream, "cudaStreamDestroy")
        self._streams.pop(stream).end()

    def stream_synchronize(self, stream: int) -> None:
        self._enter("cudaStreamSynchronize")
        found = self._stream(stream, "cudaStreamSynchronize")
        if found.captured is not None:
            raise _error("cudaStreamSynchronize", _CAPTURE_UNSUPPORTED)
        found.wait()
        self._enter("cudaStreamSynchronize")

    def stream_wait_event(self, stream: int, event: int) -> None:
        self._enter("cudaStreamWaitEvent")
        happened = self._event(event, "cudaStreamWaitEvent").happened

        def work() -> None:
            happened.wait(60)

        self._stream(stream, "cudaStreamWaitEvent").put(work)

    def event_create(self, *, timing: bool = False, blocking: bool = False) -> int:
        self._enter("cudaEventCreateWithFlags")
        number = next(self._numbers)
        self._events[number] = _Event(timing)
        return number

    def event_destroy(self, event: int) -> None:
        self._enter("cudaEventDestroy")
        self._event(event, "cudaEventDestroy")
        del self._events[event]

    def event_record(self, event: int, stream: int) -> None:
        self._enter("cudaEventRecord")
        found, runs = self._event(event, "cudaEventRecord"), self._stream(stream, "cudaEventRecord")
        mark = found.happened = threading.Event()  # who waits for the last record goes on waiting for that one
        runs.put(lambda: found.happen(mark))

    def event_synchronize(self, event: int) -> None:
        self._enter("cudaEventSynchronize")
        self._event(event, "cudaEventSynchronize").happened.wait()
        self._enter("cudaEventSynchronize")

    def event_elapsed_time(self, start: int, end: int) -> float:
        first, last = (self._event(one, "cudaEventElapsedTime") for one in (start, end))
        if not (first.timing and last.timing and first.happened.is_set() and last.happened.is_set()):
            raise _error("cudaEventElapsedTime", _INVALID_HANDLE)
        return (last.at - first.at) * 1e3

    # ---- graphs -------------------------------------------------------------------------------------------------

    def begin_capture(self, stream: int) -> None:
        self._enter("cudaStreamBeginCapture")
        found = self._stream(stream, "cudaStreamBeginCapture")
        if not stream or found.captured is not None:
            raise _error("cudaStreamBeginCapture", _CAPTURE_UNSUPPORTED)
        found.captured = []

    def end_capture(self, stream: int) -> int:
        found = self._stream(stream, "cudaStreamEndCapture")
        works, found.captured = found.captured, None
        self._enter("cudaStreamEndCapture")
        if works is None:
            raise _error("cudaStreamEndCapture", _INVALID_VALUE)
        number = next(self._numbers)
        self._graphs[number] = works
        return number

    def graph_launch(self, graph: int, stream: int) -> None:
        self._enter("cudaGraphLaunch")
        if graph not in self._graphs:
            raise _error("cudaGraphLaunch", _INVALID_HANDLE)
        runs = self._stream(stream, "cudaGraphLaunch")
        for work in self._graphs[graph]:
            runs.put(work)

    def graph_destroy(self, graph: int) -> None:
        self._enter("cudaGraphExecDestroy")
        if self._graphs.pop(graph, None) is None:
            raise _error("cudaGraphExecDestroy", _INVALID_HANDLE)

    # ---- memory of other processes ------------------------------------------------------------------------------

    def ipc_handle(self, pointer: int) -> bytes:
        self._enter("cudaIpcGetMemHandle")
        if not self.has_ipc:
            raise _error("cudaIpcGetMemHandle", NOT_SUPPORTED)
        for number, device in enumerate(self._devices):
            if pointer in device.allocated.sizes:
                with contextlib.suppress(NotExported):
                    return self._exported.handle(pointer, number)
        raise _error("cudaIpcGetMemHandle", _INVALID_VALUE)

    def ipc_open(self, handle: bytes) -> int:
        """Map the memory of another process; as CUDA does not, map one's own a second time. A handle that is open is
        counted, and has the same address.
        """
        self._enter("cudaIpcOpenMemHandle")
        if not self.has_ipc:
            raise _error("cudaIpcOpenMemHandle", NOT_SUPPORTED)
        try:
            buffer, _ = open_handle(handle)
        except NotExported:
            raise _error("cudaIpcOpenMemHandle", _INVALID_VALUE) from None
        with self._lock:
            for pointer, (known, count) in self._opens.items():
                if known == handle:
                    self._opens[pointer] = (handle, count + 1)
                    return pointer
            pointer = self._keep(buffer)
            self._opened.add(pointer, len(buffer))
            self._opens[pointer] = (handle, 1)
        return pointer

    def ipc_close(self, pointer: int) -> None:
        self._enter("cudaIpcCloseMemHandle")
        with self._lock:
            if pointer not in self._opened.sizes:
                raise _error("cudaIpcCloseMemHandle", _INVALID_VALUE)
            handle, count = self._opens.pop(pointer)
            if count > 1:
                self._opens[pointer] = (handle, count - 1)
                return
            self._drain()
            self._opened.remove(pointer)
            self._unmap(pointer)

    # ---- inside -------------------------------------------------------------------------------------------------

    def _enter(self, call: str) -> None:
        """Raise what the call was told to raise, or the error that the device is in."""
        if self._sticky is not None:
            raise CudaError(call, self._sticky.code, *TEXTS.get(self._sticky.code, ("cudaError", "scripted")))
        scripted = self._scripted.get(call)
        if scripted:
            after, code = scripted[0]
            if after:
                scripted[0] = (after - 1, code)
                return
            scripted.pop(0)
            error = _error(call, code)
            if error.sticky:
                self._sticky = error
            raise error

    def _fails(self, error: Exception) -> None:
        code = error.code if isinstance(error, CudaError) and error.sticky else _ILLEGAL_ADDRESS
        self._sticky = _error("launch", code)

    def _device(self) -> _Device:
        self._contexts.add(self.get_device())
        return self._devices[self.get_device()]

    def _stream(self, stream: int, call: str) -> _Stream:
        if stream == 0 and 0 not in self._streams:
            self._streams[0] = _Stream(self._fails)
        found = self._streams.get(stream)
        if found is None:
            raise _error(call, _INVALID_HANDLE)
        return found

    def _event(self, event: int, call: str) -> _Event:
        found = self._events.get(event)
        if found is None:
            raise _error(call, _INVALID_HANDLE)
        return found

    def _drain(self) -> None:
        """Wait for all streams, as cudaFree does."""
        for stream in list(self._streams.values()):
            if stream.captured is None:
                stream.wait()

    def _map(self, nbytes: int) -> int:
        return self._keep(mmap.mmap(-1, max(1, nbytes)))

    def _map_device(self, nbytes: int) -> int:
        buffer, fd = self._exported.map(max(1, nbytes))
        pointer = self._keep(buffer)
        self._exported.add(pointer, fd, max(1, nbytes))
        return pointer

    def _keep(self, buffer: mmap.mmap) -> int:
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self._buffers[address] = buffer
        return address

    def _unmap(self, pointer: int) -> None:
        self._buffers.pop(pointer)  # its pages go with the last view of them
