from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.messages.signature import TensorSpec
from edge_serve.messages.tensors import DataType, InferTensor, Shape, split_bytes
from edge_serve.protocol.inference.classification import classify

LABELS = TensorSpec("Y", DataType.FP32, (-1,), labels=("zero", "one", "two words"))


def top(values: Any, datatype: DataType, shape: Shape, count: int, *, batched: bool = False) -> tuple[Shape, list[str]]:
    data = np.array(values, datatype.numpy).tobytes()
    found = classify(InferTensor("Y", datatype, shape, data), count, LABELS, batched)
    assert found.datatype is DataType.BYTES
    return found.shape, [element.decode() for element in split_bytes(found.data)]


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        (DataType.FP32, [1, 2, 3], ["3.000000:2:two words", "2.000000:1:one"]),
        (DataType.INT32, [5, -1, 7], ["7:2:two words", "5:0:zero"]),
        (DataType.UINT8, [5, 1, 255], ["255:2:two words", "5:0:zero"]),
        (DataType.INT64, [-(2**63), 2**63 - 1], ["9223372036854775807:1:one", "-9223372036854775808:0:zero"]),
        (DataType.UINT64, [0, 2**64 - 1], ["18446744073709551615:1:one", "0:0:zero"]),
        (DataType.FP64, [0.125, 1e20, -1], ["100000000000000000000.000000:1:one", "0.125000:0:zero"]),
        (DataType.FP32, [math.nan, -math.inf, math.inf], ["inf:2:two words", "nan:0:zero"]),
        (DataType.FP32, [1, 2, 2, 2], ["2.000000:1:one", "2.000000:2:two words"]),
        (DataType.INT8, [0, 0, 0, 9], ["9:3", "0:0:zero"]),
    ],
)
def test_the_highest_come_first_and_of_equals_the_first(
    datatype: DataType, values: list[Any], expected: list[str]
) -> None:
    assert top(values, datatype, (len(values),), 2) == ((2,), expected)


def test_each_item_of_a_batch() -> None:
    shape, strings = top([[1, 2, 3], [3, 2, 1]], DataType.FP32, (2, 3), 1, batched=True)
    assert (shape, strings) == ((2, 1), ["3.000000:2:two words", "3.000000:0:zero"])


def test_more_classes_than_there_are() -> None:
    assert top([[1, 2]], DataType.INT32, (1, 2), 5, batched=True)[0] == (1, 2)
    assert top([[1, 2], [3, 4]], DataType.INT32, (2, 2), 9)[0] == (4,)


@pytest.mark.parametrize(("shape", "expected"), [((1, 0), (1, 0)), ((0, 3), (0, 2)), ((2, 0, 4), (2, 0))])
def test_nothing_to_classify(shape: Shape, expected: Shape) -> None:
    assert top([], DataType.FP32, shape, 2, batched=True) == (expected, [])


@pytest.mark.parametrize("datatype", [DataType.BOOL, DataType.FP16, DataType.BF16, DataType.BYTES])
def test_types_without_an_order(datatype: DataType) -> None:
    with pytest.raises(InvalidArgument) as caught:
        classify(InferTensor("Y", datatype, (1,), b"\0\0\0\0"), 1, None, False)
    assert caught.value.message == (f"class result not available for output due to unsupported type '{datatype.name}'")


def test_too_many_classes() -> None:
    with pytest.raises(InvalidArgument, match="classification output tensor too large"):
        classify(InferTensor("Y", DataType.INT8, (1_000_001,), bytes(1_000_001)), 1, None, False)
