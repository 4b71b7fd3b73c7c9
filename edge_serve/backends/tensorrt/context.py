"""One execution context of an instance: a profile of the engine, its buffers on the device, and its CUDA graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from edge_serve.backends import host
from edge_serve.backends.base import DeviceLost
from edge_serve.backends.cuda.api import CudaApi, CudaError
from edge_serve.backends.cuda.memory import allocate, allocate_pinned, free_memory
from edge_serve.backends.tensorrt.engine import TensorInfo
from edge_serve.backends.tensorrt.errors import MEMORY_ADVICE, Logged, failure
from edge_serve.backends.tensorrt.graphs import GraphPlan, GraphShape
from edge_serve.backends.tensorrt.loaded_engine import LoadedEngine
from edge_serve.backends.tensorrt.plan import Step
from edge_serve.backends.tensorrt.profiles import Choice
from edge_serve.backends.tensorrt.settings import Strategy
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.tensors import BY_CONFIG_NAME, Shape

#: TensorRT wants addresses of at least this alignment; cudaMalloc gives it
_LEAST_BYTES = 256


def nbytes(tensor: TensorInfo, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor of this shape, as the engine lays it out."""
    return math.prod(tensor.padded(shape)) * BY_CONFIG_NAME[tensor.data_type].size


class Context:
    """A context with its memory. One thread at a time uses it.

    It has a set of inputs for each batch on its way, so the inputs of the next batch are copied while one runs.

    Args:
        largest: the largest shape of each input.
        stream: on which it runs.
        input_sets, output_sets: of buffers. With outputs whose size the data decide there is one of each.

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
        input_sets: int = 1,
        output_sets: int = 1,
    ) -> None:
        self.choice = choice
        self._loaded = loaded
        self._cuda: CudaApi = loaded.library.cuda
        self._stream = stream
        self._memory: list[int] = []
        self._host_memory: list[int] = []
        #: by the set of inputs
        self._graphs: dict[tuple[int, GraphShape], int] = {}
        self._plan = GraphPlan()
        self._context: Any = None
        self._dynamic: dict[str, Any] = {}
        #: shape tensors lie in host memory, which must stay as long as the context may read it
        self._values: dict[str, np.ndarray[Any, Any]] = {}
        self._inputs: list[dict[str, int]] = []
        self._outputs: list[dict[str, int]] = []
        try:
            self._context = self._create(strategy)
            self._set_profile()
            self._add_outputs(largest, output_sets)
            self._add_inputs(largest, 1 if self._dynamic else input_sets)
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

    def _allocate(self, size: int) -> int:
        pointer = allocate(self._cuda, max(size, _LEAST_BYTES), MEMORY_ADVICE)
        self._memory.append(pointer)
        return pointer

    def _add_inputs(self, largest: Mapping[str, Shape], sets: int) -> None:
        tensors = [tensor for tensor in self._loaded.info.inputs if not tensor.is_shape]
        for _ in range(sets):
            self._inputs.append({one.name: self._allocate(nbytes(one, largest[one.name])) for one in tensors})

    def _add_outputs(self, largest: Mapping[str, Shape], sets: int) -> None:
        info = self._loaded.info
        known = {tensor.name: tensor.shape for tensor in info.outputs}
        if not any(tensor.is_shape for tensor in info.inputs):  # their values decide about shapes
            known = self.infer(largest, {})
        tensors = []
        for tensor in info.outputs:
            if -1 in known[tensor.name]:
                allocator = self._loaded.library.allocator(self._cuda, on_host=tensor.on_host)
                self._dynamic[tensor.name] = allocator
                self._context.set_output_allocator(tensor.name, allocator)
            else:
                tensors.append(tensor)
        for _ in range(1 if self._dynamic else sets):
            self._outputs.append({one.name: self._allocate_output(one, known[one.name]) for one in tensors})

    def _allocate_output(self, tensor: TensorInfo, shape: Shape) -> int:
        """Return memory for an output: pinned memory where the host writes it, as it does with shape tensors."""
        if not tensor.on_host:
            return self._allocate(nbytes(tensor, shape))
        pointer = allocate_pinned(self._cuda, max(nbytes(tensor, shape), _LEAST_BYTES))
        self._host_memory.append(pointer)
        return pointer

    @property
    def seats(self) -> int:
        """Return how many batches may be on their way."""
        return len(self._inputs)

    def inputs_of(self, seat: int) -> dict[str, int]:
        """Return the places of the inputs on the device, for the batch of a seat."""
        return self._inputs[seat % len(self._inputs)]

    def _use(self, seat: int) -> None:
        """Let the next run use the buffers of a seat."""
        for places in (self.inputs_of(seat), self._outputs[seat % len(self._outputs)]):
            for name, pointer in places.items():
                self._context.set_tensor_address(name, pointer)

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

    def prepare(
        self, seat: int, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Sequence[int]]
    ) -> tuple[dict[str, Shape], int]:
        """Set the shapes of a batch for `run`. Return those of the outputs, and the graph for it; 0 = none.

        Raises:
            Internal: TensorRT refuses them.
        """
        graph = self._plan.find([shapes[tensor.name] for tensor in self._loaded.info.inputs]) if self._graphs else None
        captured = self._graphs.get((seat, graph), 0) if graph is not None else 0
        if graph is None or not captured:
            return self.infer(shapes, values), 0
        names = [tensor.name for tensor in self._loaded.info.inputs]
        return self.infer(dict(zip(names, graph.shapes, strict=True)), {}), captured

    def run(self, seat: int, graph: int, bound: Mapping[str, int]) -> None:
        """Enqueue the batch of the last `prepare`, whose inputs are in the `inputs_of` its seat.

        Args:
            graph: as `prepare` returned it.
            bound: other places of tensors; there are none with a graph, which has its own.

        Raises:
            Internal: TensorRT refuses. CudaError: a graph cannot be launched.
        """
        if graph:
            self._cuda.graph_launch(graph, self._stream)
            return
        self._use(seat)
        for name, pointer in bound.items():
            self._context.set_tensor_address(name, pointer)
        self._enqueue()

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self._stream):
            logged = self._loaded.library.errors.take()
            error = self._failure(Step.RUN, logged)
            raise DeviceLost(error.message) if logged.is_sticky or self._is_lost() else error

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

    def output(self, seat: int, name: str, shape: Shape) -> tuple[int, Shape]:
        """Return the address of an output, for copies by the device, and its shape. If the data decide about the
        shape, call this when the run has ended.
        """
        allocator = self._dynamic.get(name)
        if allocator is not None:
            return allocator.pointer, allocator.shape
        return self._outputs[seat % len(self._outputs)][name], shape

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
                sizes = ", ".join(str(list(shape)) for shape in graph.shapes)
                host.log("WARNING", f"no CUDA graph of {sizes} for model '{self._loaded.model}': {error.message}")

    def _captured(self, seat: int, graph: GraphShape) -> int:
        names = [tensor.name for tensor in self._loaded.info.inputs]
        self.infer(dict(zip(names, graph.shapes, strict=True)), {})
        self._use(seat)
        self._enqueue()  # lazy work of the first run would be captured too
        self._cuda.stream_synchronize(self._stream)
        self._cuda.begin_capture(self._stream)
        try:
            self._enqueue()
        except BaseException:  # the capture has to end, and may tell a consequence of the error
            with suppress(CudaError):
                self._cuda.graph_destroy(self._cuda.end_capture(self._stream))
            raise
        return self._cuda.end_capture(self._stream)

    def close(self) -> None:
        """Free everything. The stream must be through."""
        for graph in self._graphs.values():
            self._cuda.graph_destroy(graph)
        self._context = None
        for allocator in self._dynamic.values():
            allocator.close()
        for pointer in self._memory:
            self._cuda.free(pointer)
        for pointer in self._host_memory:
            self._cuda.free_host(pointer)
