"""A trace's record of tensors, printed as C++ streams print them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_serve.errors import Internal
from edge_serve.messages import trace as trace_module
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ComputeTimes
from edge_serve.messages.tensors import DataType, InferTensor, Unseen, from_array
from edge_serve.messages.trace import Trace
from tests.observe.tracing.recorder import Collected


@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        (DataType.INT8, [-1, 2], "-1,2"),
        (DataType.UINT64, [2**64 - 1], "18446744073709551615"),
        (DataType.BOOL, [True, False], "1,0"),
        (DataType.FP32, [0.1, 1e10, 3.0, 1234567.0], "0.1,1e+10,3,1.23457e+06"),
        (DataType.FP16, [0.1, -0.0, float("inf"), 65504.0], "0.0999756,-0,inf,65504"),
        (DataType.UINT16, list(range(5000)), ",".join(map(str, range(5000)))),
        (DataType.BF16, [0x3FC0, 0xC000, 0x7F80], "1.5,-2,inf"),
        (DataType.FP64, [float("nan"), float("-inf")], "nan,-inf"),
        (DataType.BYTES, [b"a", b'"'], '"a","""'),
        (DataType.INT32, [], ""),
    ],
)
def test_values_as_text(datatype: DataType, values: list[Any], text: str) -> None:
    trace = Trace(1, Collected(), timestamps=False, tensors=True)
    array = np.array(values, datatype.numpy)
    trace.add_tensors("TENSOR_BACKEND_OUTPUT", [InferTensor("x", datatype, array.shape, from_array(array, datatype))])

    assert trace.tensors is not None
    (record,) = trace.tensors
    assert (record.activity, record.name, record.text()) == ("TENSOR_BACKEND_OUTPUT", "x", text)
    assert (record.shape, record.datatype) == (array.shape, datatype)


def test_only_requested_trace_data_is_kept() -> None:
    trace = Trace(1, Collected(), timestamps=False, tensors=False)
    trace.mark("REQUEST_START", 1)
    trace.add(1, 2, 3, 4)
    trace.add_tensors("TENSOR_QUEUE_INPUT", [InferTensor("x", DataType.INT8, (1,), b"\1")])

    assert (trace.timestamps, trace.tensors) == (None, None)


def test_unseen_values_are_left_out() -> None:
    trace = Trace(1, Collected(), timestamps=False, tensors=True)
    seen = InferTensor("x", DataType.INT8, (1,), b"\1")
    trace.add_tensors("TENSOR_QUEUE_INPUT", [InferTensor("y", DataType.INT8, (1,), Unseen.buffer(1)), seen])

    assert [record.name for record in trace.tensors or []] == ["x"]


def test_a_group_is_collected_once_when_all_have_left() -> None:
    recorder = Collected()
    root = Trace(1, recorder, timestamps=True, tensors=False)
    inner = root.part("n", "1", InferRequest("n"))
    innermost = inner.part("o", "1", InferRequest("o"))
    root.release()
    inner.release()
    assert recorder.traces == []
    innermost.release()
    innermost.mark("LATE", 9)

    assert recorder.traces == [root]
    assert [(one.id, one.parent_id, one.model_name) for one in root.group] == [
        (1, 0, ""),
        (100, 1, "n"),
        (101, 100, "o"),
    ]
    assert [name for name, _ in innermost.timestamps or ()] == ["REQUEST_START", "QUEUE_START"]


def test_a_part_added_after_the_end_is_not_in_the_trace() -> None:
    recorder = Collected()
    root = Trace(1, recorder, timestamps=True, tensors=False)
    root.release()
    root.part("n", "1", InferRequest("n")).release()

    assert recorder.traces == [root]
    assert root.group == [root]


def test_a_part_adds_its_times_to_those_of_the_whole() -> None:
    root = Trace(1, Collected(), timestamps=True, tensors=False)
    root.composed = True
    whole, request = ComputeTimes(), InferRequest("n")
    request.compute = whole
    part = root.part("n", "1", request)
    assert request.compute is part
    part.add(1, 3, 6, 10)
    root.add(1, 3, 6, 10)

    assert (whole.input_ns, whole.infer_ns, whole.output_ns) == (2, 3, 4)
    assert root.timestamps == [], "its parts tell when they computed"
    assert [name for name, _ in part.timestamps or ()][2:] == [
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]


def decoupled(*, error: bool = False) -> tuple[Trace, Collected]:
    """A request of a decoupled model that has got its last response."""
    recorder, request = Collected(), InferRequest("n")
    request.validated = Signature("n", "1", "python", 0, {}, {}, decoupled=True)
    trace = Trace(1, recorder, timestamps=True, tensors=False)
    trace.open("n", "1", request)
    trace.answered(InferResponse("n", "1", error=Internal("no") if error else None))
    trace.release()
    return trace, recorder


def test_a_request_of_a_decoupled_model_ends_with_its_execution() -> None:
    trace, recorder = decoupled()
    assert recorder.traces == []
    trace.add(1, 2, 3, 4)

    assert recorder.traces == [trace]
    assert [name for name, _ in trace.timestamps or ()][-2:] == ["COMPUTE_END", "REQUEST_END"]


def test_one_that_failed_does_not_wait_for_it() -> None:
    trace, recorder = decoupled(error=True)

    assert recorder.traces == [trace]
    assert [name for name, _ in trace.timestamps or ()][-1] == "REQUEST_END"


def test_small_tensors_of_an_endless_stream_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MOST_BYTES", 100_000)
    trace = Trace(1, Collected(), timestamps=False, tensors=True)
    for _ in range(1000):
        trace.add_tensors("TENSOR_BACKEND_OUTPUT", [InferTensor("x", DataType.INT32, (0,), b"")])

    assert trace.tensors is not None
    assert len(trace.tensors) < 1000
    assert trace.cut_ns
