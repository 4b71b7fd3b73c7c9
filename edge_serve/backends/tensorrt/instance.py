"""One instance of a TensorRT model: copies a batch to the device, runs it, and copies the outputs back.

Each request's inputs are copied from where they lie to their place in the batch on the device: the host does not join
them first. Outputs are copied into pinned memory of the instance, of which the replies are views until the next batch.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edge_serve.backends.base import BackendRequest, DeviceLost, Reply, Timing
from edge_serve.backends.cuda.api import CudaApi, CudaError
from edge_serve.backends.tensorrt.context import Context, nbytes
from edge_serve.backends.tensorrt.engine import TensorInfo
from edge_serve.backends.tensorrt.loaded_engine import LoadedEngine
from edge_serve.backends.tensorrt.profiles import batch_values, choose
from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.tensors import BY_CONFIG_NAME, InferTensor, Shape

_PAD = 256


class TensorRtInstance:
    """One executor on one device.

    Args:
        contexts: one for each profile of the instance.
        stream: of the contexts, the instance's own.
        states: outputs that carry a sequence's state; they are always wanted.
    """

    def __init__(
        self,
        name: str,
        loaded: LoadedEngine,
        device: int,
        contexts: Sequence[Context],
        stream: int,
        *,
        batches: bool,
        states: Sequence[str] = (),
    ) -> None:
        self._name = name
        self._loaded = loaded
        self._cuda: CudaApi = loaded.library.cuda
        self._device = device
        self._contexts = contexts
        self._by_choice = {context.choice.index: context for context in contexts}
        self._stream = stream
        self._batches = batches
        self._states = states
        self._copied, self._ran = self._cuda.event_create(), self._cuda.event_create()
        self._pinned = _Pinned(self._cuda)
        self._is_lost = False

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """Return one reply per request. An error fails the whole batch."""
        self._cuda.set_device(self._device)
        try:
            if self._batches or len(batch) == 1:
                return self._run(batch, timing)
            return [reply for request in batch for reply in self._run((request,), timing)]
        except CudaError as error:
            self._is_lost = self._is_lost or error.sticky
            if error.sticky:
                raise DeviceLost(error.message) from error
            raise
        except DeviceLost:
            self._is_lost = True
            raise

    def is_ready(self) -> bool:
        """Return False after an error that ends the use of the device in this process."""
        return not self._is_lost

    def close(self) -> None:
        """Free the instance's memory on the device."""
        if self._is_lost:  # nothing can be freed: the device takes it back when the process ends
            return
        self._cuda.set_device(self._device)
        self._cuda.stream_synchronize(self._stream)
        for context in self._contexts:
            context.close()
        for event in (self._copied, self._ran):
            self._cuda.event_destroy(event)
        self._cuda.stream_destroy(self._stream)
        self._pinned.close()

    def _run(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        rows = [request.inputs[0].shape[0] if self._batches and request.inputs else 0 for request in batch]
        shapes, values = self._shapes(batch, sum(rows))
        context = self._by_choice[choose([one.choice for one in self._contexts], shapes, values, self._name).index]
        for tensor in self._loaded.info.inputs:
            if not tensor.is_shape:
                self._copy_in(context.inputs[tensor.name], batch, tensor)
        self._cuda.event_record(self._copied, self._stream)
        found = context.run(shapes, values)
        self._cuda.event_record(self._ran, self._stream)
        wanted = {name for request in batch for name in request.requested_outputs}.union(self._states)
        tensors = [tensor for tensor in self._loaded.info.outputs if tensor.name in wanted]
        waiting = any(context.is_data_dependent(tensor.name) for tensor in tensors)
        if waiting:
            self._cuda.event_synchronize(self._ran)
        outputs = self._copy_out(context, tensors, found)
        self._cuda.event_synchronize(self._copied)
        timing.input_end_ns = time.monotonic_ns()
        self._cuda.event_synchronize(self._ran)
        timing.output_start_ns = time.monotonic_ns()
        self._cuda.stream_synchronize(self._stream)
        return self._replies(batch, rows, outputs)

    def _shapes(self, batch: Sequence[BackendRequest], rows: int) -> tuple[dict[str, Shape], dict[str, Shape]]:
        """Return the shapes of a batch's inputs, and the values of its shape tensors."""
        shapes: dict[str, Shape] = {}
        values: dict[str, Shape] = {}
        for tensor in self._loaded.info.inputs:
            first = _input(batch[0], tensor.name)
            if tensor.is_shape:
                row = [int(one) for one in first.array().reshape(-1)]
                values[tensor.name] = batch_values(row, rows, batching=self._batches)
            else:
                shapes[tensor.name] = (rows, *first.shape[1:]) if self._batches else tuple(first.shape)
        return shapes, values

    def _copy_in(self, target: int, batch: Sequence[BackendRequest], tensor: TensorInfo) -> None:
        for request in batch:
            data = _input(request, tensor.name).data
            size = len(data)
            if size:
                self._cuda.memcpy_async(target, _address(data), size, self._stream)
            target += size

    def _copy_out(
        self, context: Context, tensors: Sequence[TensorInfo], found: Mapping[str, Shape]
    ) -> list[tuple[TensorInfo, Shape, int]]:
        """Enqueue the copies of outputs. Return each with its shape and its place in the pinned memory."""
        placed, size = [], 0
        for tensor in tensors:
            pointer, shape = context.output(tensor.name, found[tensor.name])
            placed.append((tensor, shape, pointer, size))
            size += -(-nbytes(tensor, shape) // _PAD) * _PAD
        start = self._pinned.reserve(size)
        for tensor, shape, pointer, offset in placed:
            if nbytes(tensor, shape):
                self._cuda.memcpy_async(start + offset, pointer, nbytes(tensor, shape), self._stream)
        return [(tensor, shape, offset) for tensor, shape, _, offset in placed]

    def _replies(
        self, batch: Sequence[BackendRequest], rows: Sequence[int], outputs: Sequence[tuple[TensorInfo, Shape, int]]
    ) -> list[Reply]:
        replies = [Reply() for _ in batch]
        for tensor, shape, offset in outputs:
            datatype, total = BY_CONFIG_NAME[tensor.data_type], nbytes(tensor, shape)
            if not self._batches:
                data = self._pinned.view[offset : offset + total]
                replies[0].outputs.append(InferTensor(tensor.name, datatype, shape, data))
                continue
            if not shape or shape[0] < sum(rows):  # a padded graph has more rows
                raise Internal(
                    f"output '{tensor.name}' of {self._name} has shape {list(shape)}, expected {sum(rows)} rows"
                )
            each = total // shape[0]
            for request, reply, count in zip(batch, replies, rows, strict=True):
                if tensor.name in request.requested_outputs or tensor.name in self._states:
                    data = self._pinned.view[offset : offset + count * each]
                    reply.outputs.append(InferTensor(tensor.name, datatype, (count, *shape[1:]), data))
                offset += count * each
        return replies


class _Pinned:
    """Pinned host memory of an instance, which grows to the largest batch."""

    def __init__(self, cuda: CudaApi) -> None:
        self._cuda = cuda
        self._pointer = self._size = 0
        self.view = memoryview(b"")

    def reserve(self, size: int) -> int:
        """Return the address of at least so many bytes. `view` is theirs; what it was before is gone."""
        if size > self._size:
            self.close()
            self._size = 1 << max(12, (size - 1).bit_length())
            self._pointer = self._cuda.host_alloc(self._size)
            self.view = memoryview((ctypes.c_char * self._size).from_address(self._pointer)).cast("B")
        return self._pointer

    def close(self) -> None:
        if self._pointer:
            self.view = memoryview(b"")
            self._cuda.free_host(self._pointer)
            self._pointer = self._size = 0


def _input(request: BackendRequest, name: str) -> InferTensor:
    for tensor in request.inputs:
        if tensor.name == name:
            return tensor
    raise InvalidArgument(f"input '{name}' is missing in the request")


def _address(data: Any) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)
