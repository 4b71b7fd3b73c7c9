"""The signature of a loaded model, derived once from its completed configuration (config/signature.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_serve.messages.tensors import DataType, Shape
from edge_serve.records import frozen

#: backends of Triton whose responses leave out dims of 1 (rapids_triton's `squeeze_output`)
WITHOUT_ONES = frozenset({"fil"})


@frozen
class TensorSpec:
    """One input or output.

    Attributes:
        dims: without the batch dimension, -1 for a variable one, as in config.pbtxt.
        reshape: the shape the backend sees in place of `dims`; None = the same.
        labels: class labels by index (outputs with `label_filename`).
    """

    name: str
    datatype: DataType
    dims: Shape
    reshape: Shape | None = None
    optional: bool = False
    allow_ragged_batch: bool = False
    is_shape_tensor: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """The name, inputs and outputs of a model version.

    Attributes:
        max_batch_size: 0 = the model has no batch dimension.
        required: number of inputs that are not optional.
    """

    model_name: str
    model_version: str
    platform: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    decoupled: bool = False
    has_sequence_batching: bool = False
    correlation_id_type: DataType | None = None
    required: int = 0


def answered_dims(backend: str, dims: Sequence[int]) -> tuple[int, ...]:
    """Return the dims of an output in a response, behind the batch, where the configuration has `dims`."""
    return tuple(dim for dim in dims if dim != 1 or backend not in WITHOUT_ONES)
