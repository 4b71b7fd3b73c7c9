"""One execution context of an instance: a profile of the engine, and its CUDA graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from edge_serve.backends import host
from edge_serve.backends.base import DeviceLost
from edge_serve.backends.cuda.api import CudaApi, CudaError
from edge_serve.backends.cuda.memory import allocate_pinned, free_memory
from edge_serve.backends.cuda.tensor_path import Seat
from edge_serve.backends.tensorrt.engine import TensorInfo
from edge_serve.backends.tensorrt.errors import MEMORY_ADVICE, Logged, failure
from edge_serve.backends.tensorrt.graphs import GraphPlan, GraphShape
from edge_serve.backends.tensorrt.loaded_engine import LoadedEngine
from edge_serve.backends.tensorrt.plan import Step
from edge_serve.backends.tensorrt.profiles import Choice
from edge_serve.backends.tensorrt.settings import Strategy
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.tensors import BY_CONFIG_NAME, Shape
from edge_serve.records import slotted


def nbytes(tensor: TensorInfo, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor of this shape."""
    return math.prod(shape) * BY_CONFIG_NAME[tensor.data_type].size


@slotted
class Prepared:
    """A batch whose shapes are set.

    Attributes:
        inputs, outputs: shapes of the tensors in the run; -1 where the data decide.
        graph: that the batch runs with; 0 = none.
        padding: rows that the graph adds to those of the batch.
    """

    inputs: Mapping[str, Sequence[int]]
    outputs: Mapping[str, Shape]
    graph: int = 0
    padding: int = 0


class Context:
    """A context, which runs on the buffers of a seat. One thread at a time uses it.

    Args:
        largest: the largest shape of each input, for which each seat gets buffers.
        stream: on which it runs.
        seats: of the instance. With outputs whose size the data decide, one batch at a time is on its way.

    Raises:
        Internal: TensorRT refuses, or the device's memory is exhausted.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        choice: Choice,
        largest: Mapping[str, Shape],
        strategy: Strategy,
        stream: int,
        seats: Sequence[Seat],
    ) -> None:
        self.choice = choice
        self._loaded = loaded
        self._cuda: CudaApi = loaded.library.cuda
        self._stream = stream
        self._seats = seats
        #: outputs that the host writes
        self._host_outputs: dict[str, int] = {}
        #: by the index of the seat
        self._graphs: dict[tuple[int, GraphShape], Prepared] = {}
        self._plan = GraphPlan()
        self._context: Any = None
        self._dynamic: dict[str, Any] = {}
        #: shape tensors lie in host memory, which must stay as long as the context may read it
        self._values: dict[str, np.ndarray[Any, Any]] = {}
        try:
            self._context = self._create(strategy)
            self._set_profile()
            self._reserve(largest)
        except BaseException:
            self.close()
            raise

    def _create(self, strategy: Strategy) -> Any:
        library, engine = self._loaded.library, self._loaded.engine
        kinds = getattr(library.module, "ExecutionContextAllocationStrategy", None)  # TensorRT 8.6 has none
        made = engine.create_execution_context(*([] if kinds is None else [getattr(kinds, strategy.value)]))
        logged = library.errors.take()
        if made is None:
            raise self._failure(Step.CONTEXT, logged)
        return made

    def _failure(self, step: Step, logged: Logged) -> Internal:
        return failure(step, logged, self._loaded.model, free=free_memory(self._cuda))

    def _set_profile(self) -> None:
        if self._context.active_optimization_profile == self.choice.index:
            return  # no call that is not needed: up to TensorRT 10.12, one that is refused ends the process
        try:
            is_set = self._context.set_optimization_profile_async(self.choice.index, self._stream)
        except RuntimeError:
            is_set = False
        if not is_set:
            raise self._failure(Step.CONTEXT, self._loaded.library.errors.take())
        self._cuda.stream_synchronize(self._stream)

    def _reserve(self, largest: Mapping[str, Shape]) -> None:
        """Reserve memory for the tensors: pinned memory where the host writes, as it does with shape tensors."""
        info = self._loaded.info
        known = {tensor.name: tensor.shape for tensor in info.outputs}
        if not any(tensor.is_shape for tensor in info.inputs):  # their values decide about shapes
            known = self.infer(largest, {})
        results: list[TensorInfo] = []
        for tensor in info.outputs:
            if -1 in known[tensor.name]:
                allocator = self._loaded.library.allocator(self._cuda, on_host=tensor.on_host)
                self._dynamic[tensor.name] = allocator
                self._context.set_output_allocator(tensor.name, allocator)
            elif tensor.on_host:
                size = max(1, nbytes(tensor, known[tensor.name]))
                self._host_outputs[tensor.name] = allocate_pinned(self._cuda, size)
            else:
                results.append(tensor)
        self._seats = self._seats[:1] if self._dynamic else self._seats
        inputs = [tensor for tensor in info.inputs if not tensor.is_shape]
        for seat in self._seats:
            for buffers, tensors, shapes in ((seat.results, results, known), (seat.inputs, inputs, largest)):
                for tensor in tensors:
                    buffers.reserve(tensor.name, nbytes(tensor, shapes[tensor.name]), advice=MEMORY_ADVICE)

    @property
    def seats(self) -> int:
        """Return how many batches may be on their way."""
        return len(self._seats)

    def _seat(self, index: int) -> Seat:
        """Return the seat that has the buffers for the batch of a seat."""
        return self._seats[index % len(self._seats)]

    def place(self, seat: int, name: str, size: int) -> int:
        """Return the address on the device of an input of `size` bytes, for the batch of a seat.

        Raises:
            Internal: the input is larger than the largest of the profile.
        """
        return self._seat(seat).inputs.place(name, size)

    def _use(self, seat: int, run: Prepared, bound: Mapping[str, int]) -> None:
        """Let the next run use the buffers of a seat, but for tensors in `bound`.

        Raises:
            Internal: the run would use memory behind a buffer.
        """
        info, buffers = self._loaded.info, self._seat(seat)
        for tensor in info.inputs:
            if not tensor.is_shape:
                size = nbytes(tensor, run.inputs[tensor.name])
                address = bound.get(tensor.name) or buffers.inputs.place(tensor.name, size)
                self._context.set_tensor_address(tensor.name, address)
        for tensor in info.outputs:
            if tensor.name not in self._dynamic:
                address = bound.get(tensor.name) or self._result(seat, tensor, run)
                self._context.set_tensor_address(tensor.name, address)

    def _result(self, seat: int, tensor: TensorInfo, run: Prepared) -> int:
        if tensor.name in self._host_outputs:
            return self._host_outputs[tensor.name]
        return self._seat(seat).results.place(tensor.name, nbytes(tensor, run.outputs[tensor.name]))

    def infer(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Sequence[int]]) -> dict[str, Shape]:
        """Set the shapes of a batch. Return those of the outputs; -1 where the data decide.

        Raises:
            Internal: TensorRT refuses them.
        """
        context, info = self._context, self._loaded.info
        for name, numbers in values.items():
            tensor = info.tensor(name)
            kind = np.int64 if tensor is not None and tensor.data_type == "TYPE_INT64" else np.int32
            held = self._values[name] = np.array(numbers, kind)
            context.set_tensor_address(name, held.ctypes.data)
        for tensor in info.inputs:
            if not tensor.is_shape and not context.set_input_shape(tensor.name, tuple(shapes[tensor.name])):
                raise self._failure(Step.RUN, self._loaded.library.errors.take())
        try:
            return {tensor.name: tuple(context.get_tensor_shape(tensor.name)) for tensor in info.outputs}
        except (ValueError, RuntimeError) as error:  # there is none: len() of it up to TensorRT 10, the call from 11
            raise self._failure(Step.RUN, self._loaded.library.errors.take()) from error

    def prepare(self, seat: int, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Sequence[int]]) -> Prepared:
        """Set the shapes of a batch for `run`. A batch with a graph needs no call of TensorRT.

        Raises:
            Internal: TensorRT refuses them.
        """
        if self._graphs:
            wanted = [tuple(shapes[tensor.name]) for tensor in self._loaded.info.inputs]
            graph = self._plan.find(wanted)
            captured = self._graphs.get((seat, graph)) if graph is not None else None
            if graph is not None and captured is not None:
                return replace(captured, padding=graph.padding(wanted))
        return Prepared(shapes, self.infer(shapes, values))

    def run(self, seat: int, run: Prepared, bound: Mapping[str, int]) -> None:
        """Enqueue the batch of the last `prepare`, whose inputs are at their `place`.

        Args:
            bound: other places of tensors; there are none with a graph, which has its own.

        Raises:
            Internal: TensorRT refuses, or the run would use memory behind a buffer. CudaError: a graph cannot be
                launched.
        """
        if run.graph:
            self._cuda.graph_launch(run.graph, self._stream)
            return
        self._use(seat, run, bound)
        self._enqueue()

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self._stream):
            logged = self._loaded.library.errors.take()
            error = self._failure(Step.RUN, logged)
            raise DeviceLost(error.message) if logged.is_sticky else error

    def output(self, seat: int, tensor: TensorInfo, run: Prepared) -> tuple[int, Shape]:
        """Return the address of an output, for copies by the device, and its shape. If the data decide about the
        shape, call this when the run has ended.

        Raises:
            Internal: the run would write behind the output's buffer.
        """
        allocator = self._dynamic.get(tensor.name)
        if allocator is not None:
            return allocator.pointer, allocator.shape
        return self._result(seat, tensor, run), run.outputs[tensor.name]

    @property
    def is_data_dependent(self) -> bool:
        """Return whether the shape of an output depends on the data, and is known after the run only."""
        return bool(self._dynamic)

    def capture(self, plan: GraphPlan) -> None:
        """Capture the graphs of a plan. One that cannot be captured is a line in the log, as in Triton.

        Raises:
            DeviceLost, CudaError: the device was lost meanwhile.
        """
        for note in plan.notes:
            host.log("WARNING", note)
        if self._dynamic:
            return
        self._plan = plan
        for graph in plan.shapes:
            try:
                for seat in range(self.seats):
                    self._graphs[seat, graph] = self._captured(seat, graph)
            except EdgeServeError as error:
                if isinstance(error, DeviceLost) or (isinstance(error, CudaError) and error.sticky):
                    raise
                if self._is_lost():
                    raise DeviceLost(error.message) from error
                sizes = ", ".join(str(list(shape)) for shape in graph.shapes)
                host.log("WARNING", f"no CUDA graph of {sizes} for model '{self._loaded.model}': {error.message}")

    def _is_lost(self) -> bool:
        """Return whether the device is lost, of which TensorRT's texts may say nothing.

        TensorRT may have a runtime of CUDA to itself, whose last error ours does not know: then the stream tells.
        """
        for asked in (self._cuda.peek_at_last_error, partial(self._cuda.stream_synchronize, self._stream)):
            try:
                asked()
            except CudaError as error:
                if error.sticky:
                    return True
        return False

    def _captured(self, seat: int, graph: GraphShape) -> Prepared:
        shapes = dict(zip([tensor.name for tensor in self._loaded.info.inputs], graph.shapes, strict=True))
        run = Prepared(shapes, self.infer(shapes, {}))
        self._use(seat, run, {})
        self._enqueue()  # lazy work of the first run would be captured too
        self._cuda.stream_synchronize(self._stream)
        self._cuda.begin_capture(self._stream)
        try:
            self._enqueue()
        except BaseException:  # the capture has to end, and may tell a consequence of the error
            with suppress(CudaError):
                self._cuda.graph_destroy(self._cuda.end_capture(self._stream))
            raise
        return replace(run, graph=self._cuda.end_capture(self._stream))

    def close(self) -> None:
        """Free everything. The stream must be through."""
        for captured in self._graphs.values():
            self._cuda.graph_destroy(captured.graph)
        self._context = None
        for allocator in self._dynamic.values():
            allocator.close()
        for pointer in self._host_outputs.values():
            self._cuda.free_host(pointer)
