"""One instance of a model: joins a batch along its first axis, runs it, and returns views of the outputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_serve.backends.base import BackendRequest, Reply, Timing
from edge_serve.backends.binding_plan import BindingPlan, input_of, not_joined, wrong_rows
from edge_serve.config.model.complete import FoundTensor
from edge_serve.errors import InvalidArgument
from edge_serve.messages import ragged
from edge_serve.messages.tensors import BY_CONFIG_NAME, Array, DataType, InferTensor, from_array, join, split, to_array

from . import library


@dataclass(frozen=True, slots=True)
class Runnable:
    """A compiled model, and how its tensors are called in requests.

    Attributes:
        most: rows that each batch is filled up to; 0 = it is not.
    """

    compiled: library.CompiledModel
    plan: BindingPlan
    inputs: Sequence[FoundTensor]
    outputs: Sequence[FoundTensor]
    most: int


class OpenVinoInstance:
    """One executor: a request of the compiled model. Requests of several instances run at once."""

    def __init__(self, runnable: Runnable) -> None:
        self._runnable = runnable
        self._plan = runnable.plan
        self._request = runnable.compiled.create_infer_request()
        self._position = {tensor.name: i for i, tensor in enumerate(runnable.outputs)}
        batch = (runnable.most or -1) if runnable.plan.batches else None
        self._fixed = [_fixed_shape(tensor, batch) for tensor in runnable.outputs]
        #: the model keeps states of its own between runs, and requests are independent of each other
        self._has_states = bool(self._request.query_state())

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """One reply per request; a failing run fails them all."""
        if self._plan.batches:
            return self._execute_joined(batch, timing)
        return [self._execute_one(request, timing) for request in batch]

    def _execute_one(self, request: BackendRequest, timing: Timing) -> Reply:
        feed = {tensor.name: self._array(tensor) for tensor in request.inputs}
        names = self._plan.wanted([request])
        arrays = self._run(names, feed, [request], 0, timing)
        return Reply([self._tensor(name, array) for name, array in zip(names, arrays, strict=True)])

    def _execute_joined(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        rows = [request.inputs[0].shape[0] for request in batch]
        names = self._plan.wanted(batch)
        arrays = self._run(names, self._joined(batch), batch, sum(rows), timing)
        replies = [Reply() for _ in batch]
        for name, array in zip(names, arrays, strict=True):
            for request, reply, part in zip(batch, replies, self._parts(name, array, batch, rows), strict=True):
                if name in request.requested_outputs or name in self._plan.states:
                    reply.outputs.append(self._tensor(name, part))
        return replies

    def _joined(self, batch: Sequence[BackendRequest]) -> dict[str, Array]:
        if len(batch) == 1:
            feed = {tensor.name: self._array(tensor) for tensor in batch[0].inputs}
            return {name: array.reshape(-1) if name in self._plan.flattened else array for name, array in feed.items()}
        feed = {}
        for index, first in enumerate(batch[0].inputs):
            name = first.name
            parts = [self._array(input_of(request, index, name)) for request in batch]
            try:
                feed[name] = ragged.flatten(parts) if name in self._plan.flattened else join(parts)
            except ValueError as error:
                raise not_joined(name, [part.shape for part in parts]) from error
        return feed

    def _parts(self, name: str, array: Array, batch: Sequence[BackendRequest], rows: Sequence[int]) -> Sequence[Array]:
        if name in self._plan.batch_outputs:
            return self._plan.scatter(name, array, batch)
        if array.ndim == 0 or array.shape[0] != sum(rows):
            raise wrong_rows(name, array.shape, sum(rows))
        return [array] if len(rows) == 1 else split(array, rows)

    def _run(
        self,
        names: Sequence[str],
        feed: Mapping[str, Array],
        batch: Sequence[BackendRequest],
        rows: int,
        timing: Timing,
    ) -> list[Array]:
        """Run the model; the wanted outputs, in memory of their own."""
        if self._plan.batch_inputs:
            feed = {**feed, **{name: array for name, _, array in self._plan.made_inputs(batch)}}
        inputs = [self._input(tensor, feed) for tensor in self._runnable.inputs]
        outputs = self._make_outputs(self._runnable.most or rows)
        if self._has_states:
            self._request.reset_state()
        places = {i: library.tensor_over(array, self._runnable.outputs[i].data_type) for i, array in outputs.items()}
        timing.input_end_ns = time.monotonic_ns()
        library.run(self._request, inputs, places)
        timing.output_start_ns = time.monotonic_ns()
        return [self._output(name, outputs, rows) for name in names]

    def _input(self, tensor: FoundTensor, feed: Mapping[str, Array]) -> Any:
        array = feed.get(tensor.name)
        if array is None:
            raise InvalidArgument(f"input '{tensor.name}' is missing in a request")
        most = self._runnable.most
        if most and len(array) < most:
            padded = np.zeros((most, *array.shape[1:]), array.dtype)
            if tensor.data_type == "TYPE_STRING":
                padded[:] = b""
            padded[: len(array)] = array
            array = padded
        return library.tensor_over(array, tensor.data_type)

    def _make_outputs(self, rows: int) -> dict[int, Array]:
        """Return memory for the outputs whose shapes are known, by position. The library writes there."""
        made = {}
        for i, (shape, tensor) in enumerate(zip(self._fixed, self._runnable.outputs, strict=True)):
            if shape is not None:
                whole = (rows, *shape[1:]) if self._plan.batches else shape
                made[i] = np.empty(whole, _numpy_type(tensor))
        return made

    def _output(self, name: str, placed: Mapping[int, Array], rows: int) -> Array:
        i = self._position[name]
        array = placed.get(i)
        if array is None:  # the request writes its next outputs to the same memory
            array = library.array_of(self._request.get_output_tensor(i), self._runnable.outputs[i].data_type).copy()
        return array[:rows] if self._runnable.most and array.ndim else array

    def _array(self, tensor: InferTensor) -> Array:
        """Return the values of an input: a view where the library can read it."""
        shape = () if tensor.name in self._plan.scalars else tensor.shape
        if tensor.datatype is DataType.BYTES:
            return to_array(tensor.data, DataType.BYTES, shape)
        array: Array = np.ndarray(shape, tensor.datatype.numpy, tensor.data)
        return array if array.flags.aligned and array.flags.writeable else array.copy()

    def _tensor(self, name: str, array: Array) -> InferTensor:
        datatype, shape = self._plan.outputs[name], array.shape
        if not shape:
            array = array.reshape(self._plan.output_shape(name, ()))
            shape = array.shape
        if datatype is DataType.BYTES or not array.size or not array.flags.c_contiguous:
            return InferTensor(name, datatype, shape, from_array(array, datatype))
        return InferTensor(name, datatype, shape, array.data.cast("B"))

    def is_ready(self) -> bool:
        """A compiled model always is."""
        return True

    def close(self) -> None:
        """Release the request."""
        del self._request, self._runnable


def _fixed_shape(tensor: FoundTensor, batch: int | None) -> tuple[int, ...] | None:
    """Return the shape of an output if it is known but for the rows of the batch; strings have no place.

    Args:
        batch: the first dimension of an output that has the rows of the batch; None = none has.
    """
    if not tensor.dims or tensor.data_type in ("TYPE_STRING", "") or (batch is not None and tensor.dims[0] != batch):
        return None
    known = tensor.dims if batch is None else tensor.dims[1:]
    return None if -1 in known else tensor.dims


def _numpy_type(tensor: FoundTensor) -> Any:
    return np.dtype(np.uint16) if tensor.data_type == "TYPE_BF16" else BY_CONFIG_NAME[tensor.data_type].numpy
