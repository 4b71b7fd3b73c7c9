"""Inputs of programs: which values become tensors of the model's type, and which are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.in_process.arrays import tensor_of
from edge_serve.messages.signature import TensorSpec
from edge_serve.messages.tensors import DataType


@pytest.mark.parametrize(
    ("datatype", "value", "expected"),
    [
        ("INT32", [[1, -2]], [[1, -2]]),
        ("INT32", [True], [1]),
        ("INT32", [], []),
        ("UINT8", [255, 0], [255, 0]),
        ("UINT64", [2**64 - 1, 1], [2**64 - 1, 1]),
        ("INT64", (np.int64(2**53 + 1), 0), [2**53 + 1, 0]),
        ("INT8", np.int64(5), 5),
        ("BOOL", [True, False], [True, False]),
        ("FP32", [1, 2**70, 0.5], [1, 2**70, 0.5]),
        ("FP32", [2**70], [2**70]),
        ("FP32", [1e300], [math.inf]),
        ("FP16", [[0.5], [1]], [[0.5], [1]]),
        ("FP64", [np.float32(0.5)], [0.5]),
        ("BF16", [16256], [16256]),
        ("BYTES", ["a", b"\xff"], [b"a", b"\xff"]),
    ],
)
def test_values_that_the_type_can_have(datatype: str, value: object, expected: object) -> None:
    made = tensor_of("X", value, TensorSpec("X", DataType[datatype], (-1,)))
    assert made.datatype is DataType[datatype]
    assert made.array().tolist() == expected


@pytest.mark.parametrize(
    ("datatype", "value", "found"),
    [
        ("INT32", [1.7], "found values of NumPy type float64"),
        ("INT32", ["5"], "found values of NumPy type <U1"),
        ("INT64", [2.0], "float64"),
        ("INT64", [2**63, 0.5], "float64"),
        ("INT32", [None], "object"),
        ("UINT8", [1, -1], "found -1 to 1, expected 0 to 255"),
        ("UINT8", [256], "found 256 to 256"),
        ("INT64", [2**63, 1], "found 1 to 9223372036854775808"),
        ("UINT64", [2**64], "found 18446744073709551616 to"),
        ("BOOL", [2], "int64"),
        ("BOOL", ["a"], "<U1"),
        ("FP32", ["1.5"], "<U3"),
        ("FP32", [None], "object"),
        ("FP32", [1j], "complex128"),
        ("FP32", [10**400], "too large"),
        ("BF16", [1.5], "float64"),
    ],
)
def test_values_that_the_type_would_change_are_refused(datatype: str, value: object, found: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^input 'X' does not become an array of {datatype}: .*{found}"):
        tensor_of("X", value, TensorSpec("X", DataType[datatype], (-1,)))


def test_an_array_of_the_models_type_is_not_copied() -> None:
    array = np.arange(4, dtype=np.float32)
    made = tensor_of("X", array, TensorSpec("X", DataType.FP32, (-1,)))
    assert np.shares_memory(np.asarray(made.data), array)
