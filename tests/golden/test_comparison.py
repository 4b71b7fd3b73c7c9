"""How an output compares with the recorded one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edge_serve.golden.comparison import _PIECE, OutputFigures, compare
from edge_serve.messages.tensors import DataType, InferTensor, from_array

INF, NAN = float("inf"), float("nan")


def tensor(values: Any, datatype: DataType) -> InferTensor:
    array: npt.NDArray[Any] = np.asarray(values, datatype.numpy)
    return InferTensor("OUT", datatype, array.shape, from_array(array, datatype))


def figures(found: Any, expected: Any, datatype: DataType, rtol: float = 1e-3, atol: float = 1e-5) -> OutputFigures:
    return compare(tensor(found, datatype), tensor(expected, datatype), rtol, atol)


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.FP32, DataType.FP64])
@pytest.mark.parametrize(
    ("found", "expected", "good"),
    [
        (1.0005, 1.0, True), (1.01, 1.0, False), (0.0, 0.000001, True), (0.0, 0.01, False), (-1.0, 1.0, False),
        (NAN, NAN, True), (NAN, 1.0, False), (1.0, NAN, False),
        (INF, INF, True), (-INF, INF, False), (60000.0, INF, False), (INF, 60000.0, False), (INF, NAN, False),
    ],
)  # fmt: skip
def test_floats_have_tolerances(datatype: DataType, found: float, expected: float, good: bool) -> None:
    result = figures([0.0, found], [0.0, expected], datatype)
    assert (result.problem == "", result.differ, result.at) == (good, 0 if good else 1, () if good else (1,))


def test_the_largest_difference_is_reported_with_its_place() -> None:
    found = np.zeros((2, 3), np.float32)
    expected = found.copy()
    expected[0, 1], expected[1, 2] = 0.25, -2.0
    result = figures(found, expected, DataType.FP32)

    assert result == OutputFigures(
        "OUT", 6, 2, 2.0, (1, 2), "0.0", "-2.0", 1e-3, 1e-5,
        "2 of 6 values differ, the largest difference is 2 at [1, 2]: 0.0, expected -2.0 (rtol 0.001, atol 1e-05)",
    )  # fmt: skip


def test_a_difference_behind_the_first_piece_is_found() -> None:
    expected = np.zeros(2 * _PIECE + 5, np.float32)
    found = expected.copy()
    found[[3, _PIECE + 1, 2 * _PIECE + 4]] = [1.0, 3.0, 2.0]
    result = figures(found, expected, DataType.FP32)
    assert (result.differ, result.largest, result.at) == (3, 3.0, (_PIECE + 1,))


@pytest.mark.parametrize(
    ("datatype", "found", "expected", "largest"),
    [
        (DataType.INT8, -128, 127, 255), (DataType.UINT8, 3, 1, 2), (DataType.INT32, 1, 2, 1),
        (DataType.INT64, -(2**63), 2**63 - 1, 2.0**64), (DataType.UINT64, 0, 2**64 - 1, 2.0**64),
        (DataType.BOOL, True, False, 1), (DataType.INT64, 2**62, 2**62 + 1, 1),
    ],
)  # fmt: skip
def test_whole_numbers_must_be_equal(datatype: DataType, found: int, expected: int, largest: float) -> None:
    assert figures([expected], [expected], datatype, 10.0, 10.0).problem == ""
    result = figures([expected, found], [expected, expected], datatype, 10.0, 10.0)
    assert (result.differ, result.largest, result.at) == (1, largest, (1,))
    assert result.problem.endswith(f"expected {np.asarray(expected, datatype.numpy)} (they must be equal)")


def test_bf16_is_a_float_and_any_byte_but_zero_is_true() -> None:
    half = np.asarray([1.0, 2.0], np.float32).view(np.uint32) >> 16
    near = half.astype(np.uint16) + np.asarray([0, 1], np.uint16)
    ours, theirs = (InferTensor("OUT", DataType.BF16, (2,), np.asarray(bits, "<u2").tobytes()) for bits in (near, half))
    assert compare(ours, theirs, 0.01, 0.0).problem == ""
    assert compare(ours, theirs, 0.001, 0.0).found == "2.015625"
    two, one = InferTensor("OUT", DataType.BOOL, (1,), b"\x02"), InferTensor("OUT", DataType.BOOL, (1,), b"\x01")
    assert compare(two, one, 0.0, 0.0).problem == ""


def test_strings_must_be_equal() -> None:
    result = figures([b"one", b"tw\xff" * 40], [b"one", b"two"], DataType.BYTES)
    assert (result.values, result.differ, result.largest, result.at) == (2, 1, None, (1,))
    assert result.problem.startswith("1 of 2 strings differ, the first at [1]: 'tw\\\\xfftw")
    assert len(result.problem) < 120
    assert figures([b"one"], [b"one"], DataType.BYTES).problem == ""
    cut = InferTensor("OUT", DataType.BYTES, (1,), b"\x09\x00\x00\x00a")
    assert "do not make up BYTES [1]" in compare(cut, tensor([b"a"], DataType.BYTES), 0, 0).problem


def test_a_shape_or_a_type_that_differs_and_a_missing_output() -> None:
    expected = tensor([[1.0]], DataType.FP32)
    assert compare(None, expected, 0, 0).problem == "it is missing, expected FP32 [1, 1]"
    assert compare(tensor([1.0], DataType.FP32), expected, 0, 0).problem == "it is FP32 [1], expected FP32 [1, 1]"
    assert compare(tensor([[1.0]], DataType.FP16), expected, 0, 0).problem == "it is FP16 [1, 1], expected FP32 [1, 1]"


def test_scalars_and_empty_tensors() -> None:
    assert figures(np.zeros((0, 3)), np.zeros((0, 3)), DataType.FP32).problem == ""
    result = figures(1.0, 2.0, DataType.FP32)
    assert (result.values, result.differ, result.at) == (1, 1, ())
