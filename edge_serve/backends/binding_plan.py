"""The part of a run that is the same for every batch of a model, on the CPU and on a GPU. Pure, without a library.

Texts: triton-inference-server/onnxruntime_backend src/onnxruntime.cc, backend src/backend_output_responder.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from edge_serve.backends.base import BackendRequest, Reply
from edge_serve.config.model.complete import FoundTensor
from edge_serve.errors import Internal, InvalidArgument, with_advice
from edge_serve.messages import ragged
from edge_serve.messages.tensors import BY_CONFIG_NAME, Array, Buffer, DataType, InferTensor, Shape, from_array
from edge_serve.records import frozen


@frozen
class BindingPlan:
    """The part of a run that is the same for every batch.

    Attributes:
        batches: whether there is a batch dimension.
        scalars: inputs of rank 0; requests give them as [1].
        flattened: inputs with `allow_ragged_batch`: the elements of all requests, in one dimension.
        batch_inputs: inputs that are made from the shapes of others.
        batch_outputs: outputs that are divided by the shapes of an input.
        scalar_outputs: outputs of rank 0, and the shape that the configuration gives them.
        fixed_outputs: shapes of the outputs that are known before a run, but for the number of rows.
        states: outputs that carry a sequence's state; they are always wanted.
        through_values: some tensor is BF16, which NumPy does not know.
        has_text: some tensor has strings, which only the host has.
    """

    batches: bool
    outputs: Mapping[str, DataType]
    scalars: frozenset[str]
    scalar_outputs: Mapping[str, Shape]
    flattened: frozenset[str]
    batch_inputs: Sequence[ragged.BatchInput]
    batch_outputs: Mapping[str, ragged.BatchOutput]
    fixed_outputs: Mapping[str, Shape]
    states: Sequence[str]
    through_values: bool
    has_text: bool

    @property
    def without_rows(self) -> frozenset[str]:
        """Return the inputs that have no rows: those that are flattened or made."""
        return self.flattened.union(*(one.target_names for one in self.batch_inputs))

    def wanted(self, batch: Sequence[BackendRequest]) -> list[str]:
        """Return the model's outputs that some request of the batch wants, in the model's order."""
        wanted = {name for request in batch for name in request.requested_outputs}.union(self.states)
        return [name for name in self.outputs if name in wanted]

    def made_inputs(self, batch: Sequence[BackendRequest]) -> Iterator[tuple[str, DataType, Array]]:
        """Yield the inputs that are made from the shapes of others (`batch_input`)."""
        for made in self.batch_inputs:
            shapes = [input_of(request, 0, made.source_input).shape for request in batch]
            for name in made.target_names:
                yield name, made.datatype, ragged.make(made.kind, made.datatype, shapes)

    def scatter(self, name: str, array: Array, batch: Sequence[BackendRequest]) -> list[Array]:
        """Return each request's part of a batch output."""
        output = self.batch_outputs[name]
        shapes = [input_of(request, 0, output.source_input).shape for request in batch]
        return ragged.scatter(array, output.dims, shapes)

    def divide(
        self, name: str, shape: Shape, data: Buffer, batch: Sequence[BackendRequest], rows: Sequence[int]
    ) -> Iterator[InferTensor]:
        """Yield each request's part of an output, as views of its bytes.

        A batch output is divided by the shapes of its source, others by rows.

        Args:
            shape: of the output, with the rows of all requests.
            rows: of each request.
        """
        datatype = self.outputs[name]
        if name in self.batch_outputs:
            for part in self.scatter(name, np.frombuffer(data, datatype.numpy), batch):
                yield InferTensor(name, datatype, part.shape, from_array(part, datatype))
        elif not self.batches:
            yield InferTensor(name, datatype, shape, data)
        else:
            view, at, row = memoryview(data), 0, prod(shape[1:]) * datatype.size
            for count in rows:
                yield InferTensor(name, datatype, (count, *shape[1:]), view[at : at + count * row])
                at += count * row

    def add_parts(
        self, replies: Sequence[Reply], batch: Sequence[BackendRequest], parts: Iterable[InferTensor]
    ) -> None:
        """Add each request's part of an output to its reply, if the request wants that output."""
        for request, reply, part in zip(batch, replies, parts, strict=True):
            if part.name in request.requested_outputs or part.name in self.states:
                reply.outputs.append(part)

    def known_shapes(self, names: Sequence[str], rows: int) -> list[Shape]:
        """Return the shapes of these outputs for a batch of so many rows; empty if only the run tells them."""
        if any(name not in self.fixed_outputs or name in self.batch_outputs for name in names):
            return []
        fixed = [self.fixed_outputs[name] for name in names]
        return [(rows, *shape[1:]) for shape in fixed] if self.batches else fixed

    def output_shape(self, name: str, shape: Shape) -> Shape:
        """Return the shape that a request gets of an output; a scalar has the one of the configuration."""
        return shape or self.scalar_outputs.get(name, ())


def make_plan(config: Mapping[str, Any], inputs: Iterable[FoundTensor], outputs: Iterable[FoundTensor]) -> BindingPlan:
    """Return the plan for a checked configuration and what the model's file says."""
    inputs, outputs = list(inputs), list(outputs)
    dims = {entry["name"]: tuple(int(dim) for dim in entry["dims"]) for entry in config.get("output", ())}
    batches = config.get("max_batch_size", 0) > 0
    types = {tensor.data_type for tensor in [*inputs, *outputs]}
    return BindingPlan(
        batches=batches,
        outputs={tensor.name: BY_CONFIG_NAME[tensor.data_type] for tensor in outputs if tensor.data_type},
        scalars=frozenset(tensor.name for tensor in inputs if not tensor.dims),
        scalar_outputs={tensor.name: dims.get(tensor.name, ()) for tensor in outputs if not tensor.dims},
        flattened=frozenset(entry["name"] for entry in config.get("input", ()) if entry.get("allow_ragged_batch")),
        batch_inputs=ragged.batch_inputs(config),
        batch_outputs={name: output for output in ragged.batch_outputs(config) for name in output.target_names},
        fixed_outputs={tensor.name: tensor.dims for tensor in outputs if _is_fixed(tensor.dims, batches)},
        states=[state["output_name"] for state in (config.get("sequence_batching") or {}).get("state", ())],
        through_values="TYPE_BF16" in types,
        has_text="TYPE_STRING" in types,
    )


def _is_fixed(dims: Shape, batches: bool) -> bool:
    return bool(dims) and -1 not in dims[1 if batches else 0 :]


def input_of(request: BackendRequest, index: int, name: str) -> InferTensor:
    """Return an input by name; requests of one batch nearly always have theirs in the same order.

    Raises:
        InvalidArgument: the request lacks it.
    """
    if index < len(request.inputs) and request.inputs[index].name == name:
        return request.inputs[index]
    for tensor in request.inputs:
        if tensor.name == name:
            return tensor
    raise InvalidArgument(f"input '{name}' is missing in a request of the batch")


def not_joined(name: str, shapes: Iterable[Shape]) -> Internal:
    """Return the error for requests whose shapes differ and whose input may not be ragged."""
    found = ", ".join(str(list(shape)) for shape in shapes)
    return Internal(f"input '{name}' cannot be joined to one batch: shapes are {found}")


def wrong_rows(name: str, shape: Shape, rows: int) -> Internal:
    """Return the error for an output that has another number of rows than its batch."""
    got = shape[0] if shape else 0
    size, advice = (f"atleast {rows}", "") if got < rows else (str(rows), "write max_batch_size: 0 for such a model")
    text = (
        f"failed to split the output tensor '{name}' in responses: expected batch size of {size} in model output, got "
        f"{got}"
    )
    return Internal(with_advice(text, advice))
