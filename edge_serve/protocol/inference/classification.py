"""The classification extension: the k highest values of an output as `value:index[:label]` strings
(server src/classification.cc)."""

from __future__ import annotations

import numpy as np

from edge_serve.errors import InvalidArgument
from edge_serve.messages.signature import TensorSpec
from edge_serve.messages.tensors import Array, DataType, InferTensor, Shape, element_count, join_bytes

_UNSUPPORTED = {DataType.BYTES, DataType.BOOL, DataType.FP16, DataType.BF16}
_MAX_CLASSES = 1_000_000


def classify(tensor: InferTensor, count: int, spec: TensorSpec | None, batched: bool) -> InferTensor:
    """`tensor` as BYTES of shape `[batch,]min(count, n)`, n being the elements of one item.

    Args:
        spec: of the output, for its labels. batched: the first dimension is the batch.

    Raises:
        InvalidArgument: the type has no order, the item is too large, or the bytes do not make up the shape.
    """
    if tensor.datatype in _UNSUPPORTED:
        raise InvalidArgument(f"class result not available for output due to unsupported type '{tensor.datatype.name}'")
    batch: Shape = tensor.shape[:1] if batched else ()
    classes = element_count(tensor.shape[len(batch) :])
    if classes > _MAX_CLASSES:
        raise InvalidArgument("classification output tensor too large")
    labels = spec.labels if spec is not None else ()
    count = min(count, classes)
    rows = tensor.array().reshape(element_count(batch), classes)
    strings = [text for row in rows for text in _top(row, count, labels)]
    return InferTensor(tensor.name, DataType.BYTES, (*batch, count), join_bytes(strings))


def _top(values: Array, count: int, labels: tuple[str, ...]) -> list[str]:
    floats = values.dtype.kind == "f"
    keys = np.where(np.isnan(values), -np.inf, values) if floats else values
    # sorted upwards from the back, so that of equal values the first comes first once turned around
    order = len(values) - 1 - np.argsort(keys[::-1], kind="stable")[::-1][:count]
    return [_entry(values[i].item(), i, labels, floats) for i in order.tolist()]


def _entry(value: float, index: int, labels: tuple[str, ...], floats: bool) -> str:
    text = f"{value:.6f}:{index}" if floats else f"{value}:{index}"
    label = labels[index] if index < len(labels) else ""
    return f"{text}:{label}" if label else text
