"""The way of tensors between requests and a device, for all backends on CUDA (ADR 26).

Each request's input is copied from where it lies, which may be the memory of a GPU, to its place in the batch on the
device. Outputs are copied from the device into the reply's slot. Up to two batches are on the way at once, each in a
seat:

    seat = path.take()                          waits while all seats are taken
    path.copy_in(seat, places)                  input stream; the compute stream waits for it
    ...                                         the backend enqueues the run on `path.compute_stream`
    path.ran(seat)
    path.copy_out(seat, outputs, memory, largest)
    data = path.finish(seat, timing)            waits; the outputs' bytes, in the order of `outputs`
    path.release(seat)

The calls between `take` and `release` stand in `with path.failing(seat)`, which releases the seat after an error.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import field
from queue import SimpleQueue

import numpy as np

from edge_serve.backends.base import DeviceLost, OutputMemory, Timing
from edge_serve.backends.cuda.api import OUT_OF_MEMORY, CudaApi, CudaError
from edge_serve.backends.cuda.device_buffers import DeviceBuffers
from edge_serve.backends.cuda.device_data import address_of, is_on_device
from edge_serve.backends.cuda.memory import ADVICE, OutOfMemory
from edge_serve.backends.cuda.path_settings import PathSettings
from edge_serve.backends.cuda.pinned_buffer import PinnedBuffer
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable, with_advice
from edge_serve.messages.tensors import INLINE_BYTES, Buffer
from edge_serve.records import slotted

#: outputs start on this, in slots and in pinned memory
ALIGNMENT = 64
#: of tensors that the device uses where they lie in host memory; cudaMalloc gives it to all others
BINDING_ALIGNMENT = 256
#: inputs in ordinary memory up to this size are joined in pinned memory first: one copy to the device for all of them
JOINED = 64 * 1024


class RegisteredMemory:
    """Host memory that is registered with the device; this one is empty."""

    def covers(self, address: int, nbytes: int) -> bool:
        """Return whether these bytes are registered."""
        return False

    def pieces(self, address: int, nbytes: int) -> list[int]:
        """Return the sizes of the pieces in which these bytes must be copied."""
        return [nbytes]

    def device_address(self, address: int) -> int:
        """Return the device's address of a registered byte."""
        return address

    def acquire(self) -> None:
        """Count one more path that copies from it."""

    def release(self) -> None:
        """Unregister all of it with the last path."""


class PlainOutputs:
    """`OutputMemory` for outputs that stay in this process, in ordinary memory."""

    inline = INLINE_BYTES

    def allocate(self, nbytes: int) -> memoryview:
        """See `OutputMemory`."""
        return np.empty(nbytes, np.uint8).data


PLAIN_OUTPUTS = PlainOutputs()


@slotted
class Seat:
    """The events and the memory of one batch on its way.

    Attributes:
        index: of the seat in `TensorPath.seats`.
        inputs, results: the batch's tensors on the device. Seats share the results where outputs are copied on the
            stream of the runs: the next run starts when they are copied.
        slot: memory of the reply that `bind_outputs` has acquired and cannot use.
        outputs: memory to which the outputs are on their way. It is the reply's, or `staged_out`.
        is_staged: it is `staged_out`.
        start, copied, ran, done: events: the copies of the inputs start, and end; the run ends; the outputs are there.
    """

    index: int
    start: int
    copied: int
    ran: int
    done: int
    inputs: DeviceBuffers
    results: DeviceBuffers
    staged_in: PinnedBuffer
    staged_out: PinnedBuffer
    outputs: list[memoryview] = field(default_factory=list)
    is_staged: bool = False
    slot: memoryview | None = None
    start_ns: int = 0


class TensorPath:
    """The streams and seats of one instance, on the device of the thread that makes it.

    Args:
        seats: batches that may be on their way.
        registered: the part of the model's arena that the device copies from and to by itself.

    Attributes:
        compute_stream: for the backend's runs.
        seats: all of them; `take` returns one that is free.
        is_integrated: the device's memory is the host's (Jetson).
        is_lost: an error has ended the use of the device in this process.

    Raises:
        CudaError: the device refuses. Nothing is left open then.
    """

    def __init__(
        self,
        cuda: CudaApi,
        seats: int = 2,
        settings: PathSettings | None = None,
        registered: RegisteredMemory | None = None,
    ) -> None:
        self._cuda = cuda
        self._settings = settings or PathSettings()
        self._registered = registered or RegisteredMemory()
        self._device = cuda.get_device()
        self.is_integrated = cuda.is_integrated(self._device)
        self.is_lost = False
        self._registered.acquire()
        self._streams: list[int] = []
        self._events: list[int] = []
        self.seats: list[Seat] = []
        self._free: SimpleQueue[Seat] = SimpleQueue()
        try:
            priority = self._settings.stream_priority(*cuda.stream_priority_range())
            self.compute_stream = self._stream(priority)
            self._input_stream = self._stream(priority)
            self._output_stream = self._stream(priority) if self._settings.output_stream else self.compute_stream
            results = DeviceBuffers(cuda)
            for index in range(seats):
                if self._settings.output_stream:
                    results = DeviceBuffers(cuda)
                start, copied, ran, done = (self._event() for _ in range(4))
                memory = DeviceBuffers(cuda), results, PinnedBuffer(cuda), PinnedBuffer(cuda)
                self.seats.append(Seat(index, start, copied, ran, done, *memory))
                self._free.put(self.seats[-1])
        except BaseException:
            self.close()
            raise

    def _stream(self, priority: int) -> int:
        self._streams.append(self._cuda.stream_create(priority))
        return self._streams[-1]

    def _event(self) -> int:
        self._events.append(self._cuda.event_create(timing=True, blocking=not self._settings.busy_wait))
        return self._events[-1]

    def use(self, registered: RegisteredMemory) -> None:
        """Copy from and to this memory: for a path that was made before its model had an arena."""
        registered.acquire()
        self._registered.release()
        self._registered = registered

    # ---- begin ----------------------------------------------------------------------------------------------------

    def take(self) -> Seat:
        """Return a free seat. Wait while there is none."""
        return self._free.get()

    def copy_in(self, seat: Seat, places: Sequence[tuple[int, Sequence[Buffer]]]) -> None:
        """Enqueue the copies of the inputs; the compute stream waits for them.

        Args:
            places: for each input its place on the device, and the data of the requests, which follow each other there.
        """
        cuda, stream = self._cuda, self._input_stream
        seat.start_ns = time.monotonic_ns()
        cuda.event_record(seat.start, stream)
        joins = self._settings.pinned_input
        if joins:
            seat.staged_in.reserve(sum(len(one) for _, data in places for one in data if len(one) <= JOINED))
        used = 0
        for target, data in places:
            first = used
            for one in data:
                size, address = len(one), address_of(one)
                if not size:
                    continue
                is_reached = is_on_device(one) or self._registered.covers(address, size)
                if joins and size <= JOINED and not is_reached:
                    seat.staged_in.view[used : used + size] = one
                    used += size
                    continue
                target = self._flush(seat, first, used, target)
                first = used
                self._copy(target, address, size, stream, host=address)
                target += size
            self._flush(seat, first, used, target)
        cuda.event_record(seat.copied, stream)
        cuda.stream_wait_event(self.compute_stream, seat.copied)

    def _copy(self, target: int, source: int, nbytes: int, stream: int, host: int) -> None:
        """Enqueue a copy.

        Args:
            host: the end of it that is in host memory.
        """
        for size in self._registered.pieces(host, nbytes):
            self._cuda.memcpy_async(target, source, size, stream)
            target, source = target + size, source + size

    def _flush(self, seat: Seat, first: int, end: int, target: int) -> int:
        """Enqueue the copy of joined inputs. Return the place after them."""
        if end > first:
            self._cuda.memcpy_async(target, seat.staged_in.address + first, end - first, self._input_stream)
        return target + end - first

    def bound_input(self, data: Sequence[Buffer]) -> int:
        """Return the device's address of an input that need not be copied: the device is integrated, and the requests'
        data follow each other in registered memory. 0 = it must be copied.
        """
        if not self.is_integrated:
            return 0
        start = end = address_of(data[0])
        for one in data:
            if address_of(one) != end or is_on_device(one):
                return 0
            end += len(one)
        return self._bound(start, end - start)

    def _bound(self, address: int, nbytes: int) -> int:
        registered = self._registered
        if address % BINDING_ALIGNMENT or not registered.covers(address, nbytes):
            return 0
        return registered.device_address(address) if len(registered.pieces(address, nbytes)) == 1 else 0

    def bind_outputs(self, seat: Seat, sizes: Sequence[int], memory: OutputMemory, largest: int) -> list[int]:
        """Return the device's addresses of the outputs in the reply's slot, where an integrated device writes them by
        itself; call `bound` after the run then, and not `copy_out`. Empty = they must be copied.
        """
        if not self.is_integrated or largest <= memory.inline:
            return []
        steps = [-(-size // BINDING_ALIGNMENT) * BINDING_ALIGNMENT for size in sizes]
        slot = seat.slot = _slot(memory, sum(steps) + BINDING_ALIGNMENT)
        at = -address_of(slot) % BINDING_ALIGNMENT
        device = self._bound(address_of(slot) + at, sum(steps))
        if not device:
            return []
        found = []
        for size, step in zip(sizes, steps, strict=True):
            found.append(device)
            seat.outputs.append(slot[at : at + size])
            device, at = device + step, at + step
        return found

    def bound(self, seat: Seat) -> None:
        """Note that the outputs are there once the run has ended."""
        self._cuda.event_record(seat.done, self.compute_stream)

    def ran(self, seat: Seat) -> None:
        """Note that the run is enqueued."""
        self._cuda.event_record(seat.ran, self.compute_stream)
        if self._output_stream != self.compute_stream:
            self._cuda.stream_wait_event(self._output_stream, seat.ran)

    def copy_out(self, seat: Seat, outputs: Sequence[tuple[int, int]], memory: OutputMemory, largest: int) -> None:
        """Enqueue the copies of the outputs, to the reply's slot or, if they are small, to pinned memory. A copy to a
        slot that is not registered is done when this returns.

        Args:
            outputs: places on the device, and bytes.
            largest: the bytes of the outputs of the request that has most.
        """
        cuda, stream = self._cuda, self._output_stream
        into, at = self._outputs(seat, sum(_aligned(nbytes) for _, nbytes in outputs), memory, largest), 0
        for pointer, nbytes in outputs:
            target = into[at : at + nbytes]
            if nbytes:
                place = address_of(target)
                self._copy(place, pointer, nbytes, stream, host=place)
            seat.outputs.append(target)
            at += _aligned(nbytes)
        cuda.event_record(seat.done, stream)

    def _outputs(self, seat: Seat, nbytes: int, memory: OutputMemory, largest: int) -> memoryview:
        """Return the memory to which outputs are copied."""
        if seat.slot is None and largest <= memory.inline:
            seat.is_staged = self._settings.pinned_output
            if not seat.is_staged:
                return PLAIN_OUTPUTS.allocate(nbytes)
            seat.staged_out.reserve(nbytes)
            return seat.staged_out.view
        slot = _slot(memory, nbytes) if seat.slot is None else seat.slot
        if self._settings.pinned_output:
            self._registered.covers(address_of(slot), len(slot))  # the part that is not is registered for later batches
        return slot

    # ---- finish ---------------------------------------------------------------------------------------------------

    def wait_run(self, seat: Seat) -> None:
        """Wait until the run has ended, to learn the shapes of its outputs."""
        self._cuda.event_synchronize(seat.ran)

    def finish(self, seat: Seat, timing: Timing) -> list[Buffer]:
        """Wait until the outputs are there, and return them: views of the reply's slot, or bytes.

        `timing` is set as in Triton: inputs count from the first copy, and the computation from their end, so it has
        the time for which the batch before still ran.
        """
        cuda = self._cuda
        cuda.event_synchronize(seat.done)
        copied = seat.start_ns + int(cuda.event_elapsed_time(seat.start, seat.copied) * 1e6)
        timing.input_end_ns = copied
        timing.output_start_ns = copied + int(cuda.event_elapsed_time(seat.copied, seat.ran) * 1e6)
        return [bytes(one) for one in seat.outputs] if seat.is_staged else list(seat.outputs)

    def release(self, seat: Seat) -> None:
        """Let the next batch take the seat."""
        seat.outputs.clear()
        seat.is_staged = False
        seat.slot = None
        self._free.put(seat)

    @contextlib.contextmanager
    def failing(self, seat: Seat) -> Iterator[None]:
        """Let this thread use the device for a batch. After an error, release the seat once nothing of the batch runs.

        Raises:
            DeviceLost: an error of the batch, or of an earlier run, ends the use of the device in this process.
            Internal: the device ran out of memory, with advice.
        """
        try:
            self._cuda.set_device(self._device)
            yield
        except BaseException as error:
            lost: EdgeServeError | None = self._synchronize()
            if isinstance(error, DeviceLost) or (isinstance(error, CudaError) and error.sticky):
                lost = error
            self.is_lost = self.is_lost or lost is not None
            self.release(seat)
            if lost is not None:
                raise DeviceLost(_lost_text(error, lost)) from error
            if isinstance(error, CudaError) and error.code == OUT_OF_MEMORY and not isinstance(error, OutOfMemory):
                raise Internal(with_advice(error.message, f"the device ran out of memory: {ADVICE}")) from error
            raise

    def drain(self) -> None:
        """Let this thread use the device, which `close` needs too, and wait until all streams are through."""
        self._cuda.set_device(self._device)
        self._synchronize()

    def _synchronize(self) -> CudaError | None:
        """Wait until all streams are through. Return the first error that ends the use of the device; others belong to
        the batches that they fail.
        """
        lost = None
        for stream in self._streams:
            try:
                self._cuda.stream_synchronize(stream)
            except CudaError as error:
                lost = lost or (error if error.sticky else None)
        return lost

    def close(self) -> None:
        """Release everything. No batch may be on its way."""
        self._synchronize()
        for event in self._events:
            self._cuda.event_destroy(event)
        for stream in self._streams:
            self._cuda.stream_destroy(stream)
        for seat in self.seats:
            for memory in (seat.inputs, seat.results, seat.staged_in, seat.staged_out):
                memory.close()
        self._registered.release()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _lost_text(error: BaseException, lost: EdgeServeError) -> str:
    """Return the message of a lost device, after that of the error that the batch failed with, which may be the cause.

    An InvalidArgument is the fault of a request, so it is left out.
    """
    return lost.message if error is lost or isinstance(error, InvalidArgument) else f"{error}; {lost.message}"


def _slot(memory: OutputMemory, nbytes: int) -> memoryview:
    """Return memory of the reply; if there is none, which the reply then says of its large outputs, ordinary memory."""
    try:
        return memory.allocate(nbytes)
    except Unavailable:
        return PLAIN_OUTPUTS.allocate(nbytes)
