"""One execution context of an instance: a profile of the engine, its buffers on the device, and its CUDA graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edge_serve.backends import host
from edge_serve.backends.base import DeviceLost
from edge_serve.backends.cuda.api import CudaApi, CudaError
from edge_serve.backends.tensorrt.engine import TensorInfo
from edge_serve.backends.tensorrt.errors import Step, failure
from edge_serve.backends.tensorrt.graphs import GraphPlan, GraphShape
from edge_serve.backends.tensorrt.loaded_engine import LoadedEngine
from edge_serve.backends.tensorrt.profiles import Choice
from edge_serve.backends.tensorrt.settings import Strategy
from edge_serve.errors import EdgeServeError
from edge_serve.messages.tensors import BY_CONFIG_NAME, Shape

#: TensorRT wants addresses of at least this alignment; cudaMalloc gives it
_LEAST_BYTES = 256


def nbytes(tensor: TensorInfo, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor of this shape, as the engine lays it out."""
    return math.prod(tensor.padded(shape)) * BY_CONFIG_NAME[tensor.data_type].size


class Context:
    """A context with its memory. One thread at a time uses it.

    Args:
        largest: the largest shape of each input.
        stream: on which everything runs.

    Raises:
        Internal: TensorRT refuses, or the device's memory is exhausted.
    """

    def __init__(
        self, loaded: LoadedEngine, choice: Choice, largest: Mapping[str, Shape], strategy: Strategy, stream: int
    ) -> None:
        self.choice = choice
        self._loaded = loaded
        self._cuda: CudaApi = loaded.library.cuda
        self._stream = stream
        self._memory: list[int] = []
        self._graphs: dict[GraphShape, int] = {}
        self._plan = GraphPlan()
        self._context: Any = None
        self._dynamic: dict[str, Any] = {}
        #: shape tensors lie in host memory, which must stay as long as the context may read it
        self._values: dict[str, np.ndarray[Any, Any]] = {}
        self.inputs: dict[str, int] = {}
        self.outputs: dict[str, int] = {}
        try:
            self._context = self._create(strategy)
            self._set_profile()
            self._add_inputs(largest)
            self._add_outputs(largest)
        except BaseException:
            self.close()
            raise

    def _create(self, strategy: Strategy) -> Any:
        library, engine = self._loaded.library, self._loaded.engine
        kinds = getattr(library.module, "ExecutionContextAllocationStrategy", None)  # TensorRT 8.6 has none
        made = engine.create_execution_context(*([] if kinds is None else [kinds[strategy.value]]))
        logged = library.errors.take()
        if made is None:
            raise failure(Step.CONTEXT, logged, self._loaded.model)
        return made

    def _set_profile(self) -> None:
        if not self._context.set_optimization_profile_async(self.choice.index, self._stream):
            raise failure(Step.CONTEXT, self._loaded.library.errors.take(), self._loaded.model)
        self._cuda.stream_synchronize(self._stream)

    def _allocate(self, size: int) -> int:
        pointer = self._cuda.malloc(max(size, _LEAST_BYTES))
        self._memory.append(pointer)
        return pointer

    def _add_inputs(self, largest: Mapping[str, Shape]) -> None:
        for tensor in self._loaded.info.inputs:
            if not tensor.is_shape:
                self.inputs[tensor.name] = self._allocate(nbytes(tensor, largest[tensor.name]))
                self._context.set_tensor_address(tensor.name, self.inputs[tensor.name])

    def _add_outputs(self, largest: Mapping[str, Shape]) -> None:
        shapes = {} if self._loaded.info.has_shape_tensors else self.infer(largest, {})
        for tensor in self._loaded.info.outputs:
            shape = shapes.get(tensor.name, (-1,))
            if -1 in shape:
                allocator = self._dynamic[tensor.name] = self._loaded.library.allocator(self._cuda)
                self._context.set_output_allocator(tensor.name, allocator)
            else:
                self.outputs[tensor.name] = self._allocate(nbytes(tensor, shape))
                self._context.set_tensor_address(tensor.name, self.outputs[tensor.name])

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
                raise failure(Step.RUN, self._loaded.library.errors.take(), self._loaded.model)
        return {tensor.name: tuple(context.get_tensor_shape(tensor.name)) for tensor in info.outputs}

    def run(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Sequence[int]]) -> dict[str, Shape]:
        """Enqueue a batch whose inputs are in `inputs`. Return the shapes of the outputs, which are known to be there
        when the stream is through.

        Raises:
            Internal: TensorRT refuses. CudaError: a graph cannot be launched.
        """
        graph = self._plan.find([shapes[tensor.name] for tensor in self._loaded.info.inputs]) if self._graphs else None
        captured = self._graphs.get(graph) if graph is not None else None
        if graph is not None and captured is not None:
            names = [tensor.name for tensor in self._loaded.info.inputs]
            found = self.infer(dict(zip(names, graph.shapes, strict=True)), {})
            self._cuda.graph_launch(captured, self._stream)
            return found
        found = self.infer(shapes, values)
        self._enqueue()
        return found

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self._stream):
            logged = self._loaded.library.errors.take()
            error = failure(Step.RUN, logged, self._loaded.model)
            raise DeviceLost(error.message) if logged.is_sticky else error

    def output(self, name: str, shape: Shape) -> tuple[int, Shape]:
        """Return where an output lies on the device, and its shape. Call it when the stream is through."""
        allocator = self._dynamic.get(name)
        return (self.outputs[name], shape) if allocator is None else (allocator.pointer, allocator.shape)

    def is_data_dependent(self, name: str) -> bool:
        """Return whether only the run tells the shape of an output."""
        return name in self._dynamic

    def capture(self, plan: GraphPlan) -> None:
        """Capture the graphs of a plan. One that cannot be captured is a line in the log, as in Triton."""
        for note in plan.notes:
            host.log("WARNING", note)
        if self._dynamic:
            return
        self._plan = plan
        names = [tensor.name for tensor in self._loaded.info.inputs]
        for graph in plan.shapes:
            try:
                self.infer(dict(zip(names, graph.shapes, strict=True)), {})
                self._enqueue()  # lazy work of the first run would be captured too
                self._cuda.stream_synchronize(self._stream)
                self._cuda.begin_capture(self._stream)
                try:
                    self._enqueue()
                finally:
                    captured = self._cuda.end_capture(self._stream)
                self._graphs[graph] = captured
            except (EdgeServeError, CudaError) as error:
                sizes = ", ".join(str(list(shape)) for shape in graph.shapes)
                host.log("WARNING", f"no CUDA graph of {sizes} for model '{self._loaded.model}': {error.message}")

    def close(self) -> None:
        """Free everything. The stream must be through."""
        for graph in self._graphs.values():
            self._cuda.graph_destroy(graph)
        self._context = None
        for allocator in self._dynamic.values():
            allocator.close()
        for pointer in self._memory:
            self._cuda.free(pointer)
