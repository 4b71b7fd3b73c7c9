"""Ragged batches: what a backend needs to join requests of unequal shapes, and to take the result apart.

The rules of `allow_ragged_batch`, `batch_input` and `batch_output` in model_config.proto, as the backend library of
Triton applies them (triton-inference-server/backend src/backend_input_collector.cc, src/backend_output_responder.cc).
The extra inputs depend on the batch, so a worker computes them. Imported on the worker's side: NumPy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import accumulate
from typing import Any

import numpy as np

from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.tensors import BY_CONFIG_NAME, Array, DataType, Shape, element_count
from edge_serve.records import frozen


class BatchInputKind(Enum):
    """BatchInput.Kind of model_config.proto."""

    BATCH_ELEMENT_COUNT = 0
    BATCH_ACCUMULATED_ELEMENT_COUNT = 1
    BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = 2
    BATCH_MAX_ELEMENT_COUNT_AS_SHAPE = 3
    BATCH_ITEM_SHAPE = 4
    BATCH_ITEM_SHAPE_FLATTEN = 5


@frozen
class BatchInput:
    """An input that is made from the shapes of another one, `source_input`, in all requests of the batch."""

    kind: BatchInputKind
    target_names: tuple[str, ...]
    datatype: DataType
    source_input: str


@frozen
class BatchOutput:
    """An output that is handed to the requests by the shapes of `source_input` (BATCH_SCATTER_WITH_INPUT_SHAPE).

    Attributes:
        dims: of one request's output, with the batch dimension; -1 stands for the same dimension of the source.
    """

    target_names: tuple[str, ...]
    dims: Shape
    source_input: str


def batch_inputs(config: Mapping[str, Any]) -> list[BatchInput]:
    """Return the entries of `batch_input` in a checked configuration (Triton's JSON)."""
    return [
        BatchInput(
            BatchInputKind[entry.get("kind", "BATCH_ELEMENT_COUNT")],
            tuple(entry["target_name"]),
            BY_CONFIG_NAME[entry["data_type"]],
            entry["source_input"][0],
        )
        for entry in config.get("batch_input", ())
    ]


def batch_outputs(config: Mapping[str, Any]) -> list[BatchOutput]:
    """Return the entries of `batch_output` in a checked configuration (Triton's JSON)."""
    outputs = {output["name"]: output for output in config.get("output", ())}
    return [
        BatchOutput(
            tuple(entry["target_name"]),
            _full_dims(outputs[entry["target_name"][0]], config.get("max_batch_size", 0)),
            entry["source_input"][0],
        )
        for entry in config.get("batch_output", ())
    ]


def make(kind: BatchInputKind, datatype: DataType, shapes: Sequence[Shape]) -> Array:
    """Make the tensor of a batch input from the shapes of its source, one per request, batch dimension included.

    Element counts are of a whole request. The values of BATCH_MAX_ELEMENT_COUNT_AS_SHAPE mean nothing, they are zeros.

    Raises:
        InvalidArgument: BATCH_ITEM_SHAPE of sources that differ in their number of dimensions.
    """
    dtype = datatype.numpy
    match kind:
        case BatchInputKind.BATCH_ELEMENT_COUNT:
            return np.array([element_count(shape) for shape in shapes], dtype)
        case BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT:
            return np.array(list(accumulate(map(element_count, shapes))), dtype)
        case BatchInputKind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
            return np.array(list(accumulate(map(element_count, shapes), initial=0)), dtype)
        case BatchInputKind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE:
            return np.zeros(max(map(element_count, shapes), default=0), dtype)
        case BatchInputKind.BATCH_ITEM_SHAPE:
            return _item_shapes(shapes, dtype)
        case BatchInputKind.BATCH_ITEM_SHAPE_FLATTEN:
            return np.array([dim for shape in shapes for dim in shape[1:] * shape[0]], dtype)


def flatten(parts: Sequence[Array]) -> Array:
    """Return a ragged input: all elements of all requests as one dimension; a view if there is one request."""
    return parts[0].reshape(-1) if len(parts) == 1 else np.concatenate([part.reshape(-1) for part in parts])


def scatter(output: Array, dims: Shape, shapes: Sequence[Shape]) -> list[Array]:
    """Return each request's part of `output`, as views, with -1 in `dims` filled from its source's shape.

    Raises:
        Internal: the model's output does not have as many elements as the requests should get.
    """
    filled = [_fill(dims, shape) for shape in shapes]
    counts = [element_count(shape) for shape in filled]
    flat = output.reshape(-1)
    if sum(counts) != flat.size:
        raise Internal(f"batch output has {flat.size} elements, expected {sum(counts)} for shapes {_lists(filled)}")
    ends = accumulate(counts)
    return [flat[end - count : end].reshape(shape) for end, count, shape in zip(ends, counts, filled, strict=True)]


def _full_dims(output: Mapping[str, Any], max_batch_size: int) -> Shape:
    dims = output["reshape"]["shape"] if output.get("reshape") else output["dims"]
    return ((-1,) if max_batch_size else ()) + tuple(int(dim) for dim in dims)


def _item_shapes(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> Array:
    ranks = {len(shape) - 1 for shape in shapes}
    if len(ranks) > 1:
        raise InvalidArgument(f"batch item shapes need inputs of equal rank, found {_lists(shapes)}")
    rows = [shape[1:] for shape in shapes for _ in range(shape[0])]
    return np.array(rows, dtype).reshape(len(rows), ranks.pop() if ranks else 0)


def _fill(dims: Shape, source: Shape) -> Shape:
    if len(source) < len(dims) and -1 in dims[len(source) :]:
        raise Internal(f"batch output of dims {list(dims)} cannot take its shape from an input of shape {list(source)}")
    return tuple(source[axis] if dim == -1 else dim for axis, dim in enumerate(dims))


def _lists(shapes: Sequence[Shape]) -> list[list[int]]:
    return [list(shape) for shape in shapes]
