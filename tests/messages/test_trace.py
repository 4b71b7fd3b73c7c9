"""A trace's record of tensors, printed as C++ streams print them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_serve.messages.trace import Trace
from edge_serve.tensors import DataType, Tensor, Unseen, from_array


@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        (DataType.INT8, [-1, 2], "-1,2"),
        (DataType.UINT64, [2**64 - 1], "18446744073709551615"),
        (DataType.BOOL, [True, False], "1,0"),
        (DataType.FP32, [0.1, 1e10, 3.0, 1234567.0], "0.1,1e+10,3,1.23457e+06"),
        (DataType.FP64, [float("nan"), float("-inf")], "nan,-inf"),
        (DataType.BYTES, [b"a", b'"'], '"a","""'),
        (DataType.INT32, [], ""),
    ],
)
def test_values_as_text(datatype: DataType, values: list[Any], text: str) -> None:
    trace = Trace(1, timestamps=False, tensors=True)
    array = np.array(values, datatype.numpy)
    trace.keep("TENSOR_BACKEND_OUTPUT", [Tensor("x", datatype, array.shape, from_array(array, datatype))])

    assert trace.tensors is not None
    ((activity, name, data, shape, kind),) = trace.tensors
    assert (activity, name, data, shape, kind) == ("TENSOR_BACKEND_OUTPUT", "x", text, array.shape, datatype.name)


def test_only_what_was_asked_for_is_kept() -> None:
    trace = Trace(1, timestamps=False, tensors=False)
    trace.mark("REQUEST_START", 1)
    trace.add(1, 2, 3, 4)
    trace.keep("TENSOR_QUEUE_INPUT", [Tensor("x", DataType.INT8, (1,), b"\1")])

    assert (trace.timestamps, trace.tensors) == (None, None)


def test_values_that_nobody_sees_are_left_out() -> None:
    trace = Trace(1, timestamps=False, tensors=True)
    seen = Tensor("x", DataType.INT8, (1,), b"\1")
    trace.keep("TENSOR_QUEUE_INPUT", [Tensor("y", DataType.INT8, (1,), Unseen.buffer(1)), seen])

    assert [record.name for record in trace.tensors or []] == ["x"]
