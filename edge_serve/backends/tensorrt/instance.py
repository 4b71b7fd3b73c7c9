"""One instance of a TensorRT model: copies a batch to the device, runs it, and copies the outputs back.

It is a `QueueingInstance`: the inputs of the next batch are copied, and its run is enqueued, while one runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from edge_serve.backends.base import BackendRequest, OutputMemory, Reply, Timing
from edge_serve.backends.binding_plan import BindingPlan, input_of, wrong_rows
from edge_serve.backends.cuda.tensor_path import PLAIN_OUTPUTS, Seat, TensorPath
from edge_serve.backends.tensorrt.context import Context, Prepared, nbytes
from edge_serve.backends.tensorrt.engine import TensorInfo
from edge_serve.backends.tensorrt.loaded_engine import LoadedEngine
from edge_serve.backends.tensorrt.profiles import choose
from edge_serve.errors import Internal
from edge_serve.messages.tensors import Array, Buffer, InferTensor, Shape, element_count, from_array, to_array
from edge_serve.records import slotted


@slotted
class _Begun:
    """A batch between `begin` and `finish`.

    Attributes:
        rows: of each request; 0 = the model does not batch.
        made: inputs that are made from the shapes of others; the device may still copy them.
        tensors: outputs that a request wants.
        shapes: of `tensors`; largest: the bytes of the outputs of the request that has most. `_places` sets both.
    """

    seat: Seat
    context: Context
    run: Prepared
    batch: Sequence[BackendRequest]
    rows: Sequence[int]
    made: Mapping[str, Array]
    tensors: list[TensorInfo]
    outputs: OutputMemory
    timing: Timing
    shapes: list[Shape]
    largest: int


class TensorRtInstance:
    """One executor on one device.

    Args:
        contexts: one for each profile of the instance.
        path: with the stream of the contexts, the instance's own.

    Attributes:
        seats: 2, or 1 for an engine with shape tensors, with outputs whose size the data decide, or with states.
        takes_device_memory: inputs may be `DeviceData`.
    """

    takes_device_memory = True

    def __init__(
        self, name: str, loaded: LoadedEngine, contexts: Sequence[Context], path: TensorPath, plan: BindingPlan
    ) -> None:
        self._name = name
        self._loaded = loaded
        self._contexts = contexts
        self._by_choice = {context.choice.index: context for context in contexts}
        self._path = path
        self._plan = plan
        self._shape_tensors = {tensor.name for tensor in loaded.info.tensors if tensor.is_shape}
        self.seats = min(context.seats for context in contexts)

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """Return one reply per request. An error fails the whole batch."""
        if self._plan.batches or len(batch) == 1:
            return self.finish(self.begin(batch, PLAIN_OUTPUTS, timing))
        return [reply for request in batch for reply in self.execute((request,), timing)]

    def begin(self, batch: Sequence[BackendRequest], outputs: OutputMemory, timing: Timing) -> _Begun:
        """See `QueueingInstance`."""
        seat = self._path.take()
        with self._path.failing(seat):
            rows = [self._rows(request) for request in batch]
            made = {name: array for name, _, array in self._plan.made_inputs(batch)}
            shapes, values = self._shapes(batch, sum(rows), made)
            context = self._by_choice[choose([one.choice for one in self._contexts], shapes, values, self._name).index]
            wanted = self._plan.wanted(batch)
            tensors = [tensor for tensor in self._loaded.info.outputs if tensor.name in wanted]
            run = context.prepare(seat.index, shapes, values)
            begun = _Begun(seat, context, run, batch, rows, made, tensors, outputs, timing, [], 0)
            bound = self._copy_in(begun)
            places = [] if context.is_data_dependent else self._places(begun)
            is_written_by_device = not any(tensor.is_shape or tensor.on_host for tensor in tensors)
            in_slot: list[int] = []
            if is_written_by_device and not run.graph:
                in_slot = self._path.bind_outputs(seat, [size for _, size in places], outputs, begun.largest)
            bound.update(zip((tensor.name for tensor in tensors), in_slot, strict=False))
            context.run(seat.index, run, bound)
            self._path.ran(seat)
            if in_slot:
                self._path.bound(seat)
            elif not context.is_data_dependent:
                self._path.copy_out(seat, places, outputs, begun.largest)
            return begun

    def _copy_in(self, begun: _Begun) -> dict[str, int]:
        """Enqueue the copies of the inputs. Return the places of those that the device reads where they lie."""
        bound: dict[str, int] = {}
        places: list[tuple[int, Sequence[Buffer]]] = []
        for name in (tensor.name for tensor in self._loaded.info.inputs if not tensor.is_shape):
            if name in begun.made:
                data: list[Buffer] = [begun.made[name].reshape(-1).view(np.uint8).data]
            else:
                data = [input_of(one, 0, name).data for one in begun.batch]
            address = 0 if begun.run.graph else self._path.bound_input(data)
            if address:
                bound[name] = address
            else:
                places.append((begun.context.place(begun.seat.index, name, sum(map(len, data))), data))
        self._path.copy_in(begun.seat, places)
        return bound

    def finish(self, begun: _Begun) -> list[Reply]:
        """See `QueueingInstance`."""
        with self._path.failing(begun.seat):
            if begun.context.is_data_dependent:
                self._path.wait_run(begun.seat)
                self._path.copy_out(begun.seat, self._places(begun), begun.outputs, begun.largest)
            replies = self._replies(begun, self._path.finish(begun.seat, begun.timing))
        self._path.release(begun.seat)
        return replies

    def is_ready(self) -> bool:
        """Return False after an error that ends the use of the device in this process."""
        return not self._path.is_lost

    def close(self) -> None:
        """Free the instance's memory on the device."""
        if self._path.is_lost:  # nothing can be freed: the device takes it back when the process ends
            return
        self._path.drain()
        for context in self._contexts:
            context.close()
        self._path.close()

    def _rows(self, request: BackendRequest) -> int:
        """Return the rows of a request; 0 = the model does not batch. Shape tensors have none."""
        if not self._plan.batches or not request.inputs:
            return 0
        return next((tensor.shape[0] for tensor in request.inputs if tensor.name not in self._shape_tensors), 1)

    def _shapes(
        self, batch: Sequence[BackendRequest], rows: int, made: Mapping[str, Array]
    ) -> tuple[dict[str, Shape], dict[str, Shape]]:
        """Return the shapes of a batch's inputs, and the values of its shape tensors."""
        shapes: dict[str, Shape] = {}
        values: dict[str, Shape] = {}
        for name, is_shape in ((tensor.name, tensor.is_shape) for tensor in self._loaded.info.inputs):
            if name in made:
                shapes[name] = made[name].shape
                continue
            first = input_of(batch[0], 0, name)
            if is_shape:
                row = [int(one) for one in to_array(bytes(first.data), first.datatype, first.shape).reshape(-1)]
                values[name] = (rows, *row) if self._plan.batches else tuple(row)  # equal in all requests of a batch
            elif name in self._plan.flattened:
                shapes[name] = (sum(element_count(input_of(one, 0, name).shape) for one in batch),)
            else:
                shapes[name] = (rows, *first.shape[1:]) if self._plan.batches else tuple(first.shape)
        return shapes, values

    def _places(self, begun: _Begun) -> list[tuple[int, int]]:
        """Return the places of the outputs on the device, and their bytes without the rows that pad a batch to its
        graph. Note shapes and `largest`.

        Raises:
            Internal: an output has other rows than the run, so no part of it belongs to one request, or takes more
                memory than it has.
        """
        places, total = [], sum(begun.rows)
        for tensor in begun.tensors:
            pointer, shape = begun.context.output(begun.seat.index, tensor, begun.run)
            by_rows = self._plan.batches and not tensor.is_shape and tensor.name not in self._plan.batch_outputs
            if by_rows and shape[:1] != (total + begun.run.padding,):
                raise wrong_rows(tensor.name, shape, total + begun.run.padding)
            size = nbytes(tensor, shape)
            each = size // shape[0] if by_rows and total else size
            places.append((pointer, each * total if by_rows else size))
            begun.largest += each * max(begun.rows) if by_rows else size
            begun.shapes.append(shape)
        return places

    def _replies(self, begun: _Begun, found: Sequence[Buffer]) -> list[Reply]:
        replies = [Reply() for _ in begun.batch]
        for tensor, shape, data in zip(begun.tensors, begun.shapes, found, strict=True):
            if tensor.is_shape and self._plan.batches:
                parts = self._repeat(tensor.name, shape, data, begun.rows)
            else:
                parts = self._plan.divide(tensor.name, shape, data, begun.batch, begun.rows)
            self._plan.add_parts(replies, begun.batch, parts)
        return replies

    def _repeat(self, name: str, shape: Shape, data: Buffer, rows: Sequence[int]) -> Iterator[InferTensor]:
        """Yield the values of a shape tensor for each row of each request, as Triton does, without the first one: the
        batch.

        Raises:
            Internal: it is another batch.
        """
        datatype, batch = self._plan.outputs[name], sum(rows)
        values = to_array(data, datatype, shape)
        if values.ndim and int(values[0]) != batch:
            raise Internal(
                f"failed to retrieve the output shape values from binding '{self._name}': the first value of '{name}' "
                f"is {int(values[0])}, and the batch is {batch}"
            )
        row = values[1:] if values.ndim else values
        for count in rows:
            part = np.ascontiguousarray(np.broadcast_to(row, (count, *row.shape)))
            yield InferTensor(name, datatype, part.shape, from_array(part, datatype))
