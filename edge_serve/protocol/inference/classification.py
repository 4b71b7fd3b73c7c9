"""The classification extension: the k highest values of an output as `value:index[:label]` strings
(server src/classification.cc)."""

from __future__ import annotations

from edge_serve.errors import InvalidArgument
from edge_serve.messages.signature import TensorSpec
from edge_serve.messages.tensors import Array, DataType, InferTensor, Shape, element_count, join_bytes

_UNSUPPORTED = {DataType.BYTES, DataType.BOOL, DataType.FP16, DataType.BF16}
_MAX_CLASSES = 1_000_000


def classify(tensor: InferTensor, count: int, spec: TensorSpec | None, batched: bool) -> InferTensor:
    """Return the classes of `tensor` as BYTES of shape `[batch,]min(count, n)`, for items of n elements.

    Args:
        spec: of the output, for its labels.
        batched: the first dimension is the batch.

    Raises:
        InvalidArgument: the type is not supported, the item is too large, or the bytes do not match the shape.
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
    strings = [text for row in rows for text in _find_top(row, count, labels)]
    return InferTensor(tensor.name, DataType.BYTES, (*batch, count), join_bytes(strings))


def _find_top(values: Array, count: int, labels: tuple[str, ...]) -> list[str]:
    import numpy as np

    floats = values.dtype.kind == "f"
    keys = np.where(np.isnan(values), -np.inf, values) if floats else values
    # ascending, from the back: reversed, the first of equal values then comes first
    order = len(values) - 1 - np.argsort(keys[::-1], kind="stable")[::-1][:count]
    return [_format_class(values[i].item(), i, labels, floats) for i in order.tolist()]


def _format_class(value: float, index: int, labels: tuple[str, ...], floats: bool) -> str:
    text = f"{value:.6f}:{index}" if floats else f"{value}:{index}"
    label = labels[index] if index < len(labels) else ""
    return f"{text}:{label}" if label else text
