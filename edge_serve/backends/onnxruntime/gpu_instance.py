"""One instance of an ONNX model on a GPU: copies a batch to the device, runs it there, and copies the outputs back.

It is a `QueueingInstance`: the inputs of the next batch are copied, and its run is enqueued, while one runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_serve.backends.base import BackendRequest, OutputMemory, Reply, Timing
from edge_serve.backends.binding_plan import BindingPlan, input_of, not_joined, wrong_rows
from edge_serve.backends.cuda.tensor_path import PLAIN_OUTPUTS, Seat
from edge_serve.backends.onnxruntime import session as sessions
from edge_serve.backends.onnxruntime.gpu_session import GpuSession, SeatBinding
from edge_serve.messages.tensors import Buffer, DataType, Shape, element_count, from_array
from edge_serve.records import slotted


@slotted
class _Input:
    """An input of a batch: its name, type and shape, and the data of the requests, which follow each other."""

    name: str
    datatype: DataType
    shape: Shape
    data: Sequence[Buffer]


@slotted
class _Begun:
    """A batch between `begin` and `finish`.

    Attributes:
        rows: of each request; 0 = the model does not batch.
        outputs: names and shapes of the outputs that some request wants.
    """

    seat: Seat
    batch: Sequence[BackendRequest]
    rows: Sequence[int]
    outputs: Sequence[tuple[str, Shape]]
    timing: Timing


class OnnxGpuInstance:
    """One executor, with a session of its own.

    Args:
        bindings: one for each seat of the session's path, in their order.

    Attributes:
        seats: 2; 1 for a model with states, whose batches must follow each other.
        takes_device_memory: inputs may be `DeviceData`.
    """

    takes_device_memory = True

    def __init__(self, gpu: GpuSession, plan: BindingPlan, bindings: Sequence[SeatBinding]) -> None:
        self._gpu = gpu
        self._path = gpu.path
        self._plan = plan
        self._bindings = bindings
        self.seats = len(gpu.path.seats)

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """Return one reply per request. An error fails the whole batch."""
        if self._plan.batches or len(batch) == 1:
            return self.finish(self.begin(batch, PLAIN_OUTPUTS, timing))
        return [reply for request in batch for reply in self.execute((request,), timing)]

    def begin(self, batch: Sequence[BackendRequest], outputs: OutputMemory, timing: Timing) -> _Begun:
        """See `QueueingInstance`."""
        seat = self._path.take()
        with self._path.failing(seat):
            inputs, binding, plan = self._inputs(batch), self._bindings[seat.index], self._plan
            read = [self._path.bound_input(one.data) for one in inputs]
            places = binding.bind(
                [(one.name, one.datatype, one.shape, place) for one, place in zip(inputs, read, strict=True)]
            )
            copied = zip(inputs, places, read, strict=True)
            self._path.copy_in(seat, [(place, one.data) for one, place, in_place in copied if not in_place])
            # Nodes of the model that run on the host read their inputs at once, not in the order of the stream.
            self._gpu.cuda.event_synchronize(seat.copied)
            rows = [_rows(request) if plan.batches else 0 for request in batch]
            names = plan.wanted(batch)
            shapes = self._run(seat, names, rows, outputs)
            return _Begun(seat, batch, rows, list(zip(names, shapes, strict=True)), timing)

    def _run(self, seat: Seat, names: Sequence[str], rows: Sequence[int], memory: OutputMemory) -> list[Shape]:
        """Enqueue the run, and the copies of these outputs. Return their shapes."""
        path, binding = self._path, self._bindings[seat.index]
        bound = self._bind_outputs(seat, names, rows, memory) if path.is_integrated else []
        outputs = bound or [sessions.Output(name, self._plan.outputs[name]) for name in names]
        found = binding.run(outputs) if names else []
        path.ran(seat)
        shapes = [shape for _, shape in found]
        if bound:
            path.bound(seat)
        else:
            sizes, largest = self._sizes(names, shapes, rows)
            copies = [(pointer, size) for (pointer, _), size in zip(found, sizes, strict=True)]
            path.copy_out(seat, copies, memory, largest)
        return shapes

    def _bind_outputs(
        self, seat: Seat, names: Sequence[str], rows: Sequence[int], memory: OutputMemory
    ) -> list[sessions.Output]:
        """Return the outputs with their places in the reply's slot; empty if they have to be copied there."""
        shapes = self._plan.known_shapes(names, sum(rows))
        if not shapes:
            return []
        sizes, largest = self._sizes(names, shapes, rows)
        places = self._path.bind_outputs(seat, sizes, memory, largest)
        return [
            sessions.Output(name, self._plan.outputs[name], shape, place)
            for name, shape, place in zip(names, shapes, places, strict=False)
        ]

    def _sizes(self, names: Sequence[str], shapes: Sequence[Shape], rows: Sequence[int]) -> tuple[list[int], int]:
        """Return the bytes of outputs, and those that the request with most of them gets."""
        sizes, largest = [], 0
        for name, shape in zip(names, shapes, strict=True):
            sizes.append(element_count(shape) * self._plan.outputs[name].size)
            largest += self._largest(name, shape, sizes[-1], rows)
        return sizes, largest

    def finish(self, begun: _Begun) -> list[Reply]:
        """See `QueueingInstance`."""
        with self._path.failing(begun.seat):
            plan, data = self._plan, self._path.finish(begun.seat, begun.timing)
            replies = [Reply() for _ in begun.batch]
            for (name, shape), one in zip(begun.outputs, data, strict=True):
                parts = plan.divide(name, plan.output_shape(name, shape), one, begun.batch, begun.rows)
                plan.add_parts(replies, begun.batch, parts)
        self._path.release(begun.seat)
        return replies

    def is_ready(self) -> bool:
        """Return False after an error that ends the use of the device in this process."""
        return not self._path.is_lost

    def close(self) -> None:
        """Release the session, and the instance's memory on the device."""
        if self._path.is_lost:  # nothing can be freed: the device takes it back when the process ends
            return
        self._path.drain()
        for binding in self._bindings:
            binding.close()
        self._gpu.close()

    def _inputs(self, batch: Sequence[BackendRequest]) -> list[_Input]:
        plan, inputs = self._plan, []
        for index, first in enumerate(batch[0].inputs):
            name = first.name
            tensors = [input_of(request, index, name) for request in batch]
            shapes = [tensor.shape for tensor in tensors]
            if name in plan.scalars:
                shape: Shape = ()
            elif name in plan.flattened:
                shape = (sum(map(element_count, shapes)),)
            elif len(shapes) == 1:
                shape = tuple(first.shape)
            elif len({one[1:] for one in shapes}) == 1:
                shape = (sum(one[0] for one in shapes), *first.shape[1:])
            else:
                raise not_joined(name, shapes)
            inputs.append(_Input(name, first.datatype, shape, [tensor.data for tensor in tensors]))
        for name, datatype, array in plan.made_inputs(batch):
            inputs.append(_Input(name, datatype, array.shape, [from_array(array, datatype)]))
        return inputs

    def _largest(self, name: str, shape: Shape, size: int, rows: Sequence[int]) -> int:
        """Return the bytes of an output that the request with most of them gets."""
        if not self._plan.batches or name in self._plan.batch_outputs:
            return size
        total = sum(rows)
        if total and shape[:1] != (total,):
            raise wrong_rows(name, shape, total)
        return size // max(1, total) * max(rows)


def _rows(request: BackendRequest) -> int:
    return request.inputs[0].shape[0] if request.inputs and request.inputs[0].shape else 0
