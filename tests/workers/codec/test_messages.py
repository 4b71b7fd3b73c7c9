"""Messages between the front end and a codec process are unpacked as they were packed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from edge_serve.errors import Unavailable
from edge_serve.messages.infer import SEQUENCE_START, InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.shared_memory import Place
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import BY_NUMBER, Buffer, DataType, InferTensor, Shared, Unseen, is_unseen
from edge_serve.workers.codec import messages as coding
from edge_serve.workers.wire.frames import Frame, FrameError, FrameKind, Splitter

SIGNATURE = Signature(
    "m",
    "3",
    "onnxruntime_onnx",
    4,
    {
        "A": TensorSpec("A", DataType.FP16, (-1, 3), optional=True),
        "B": TensorSpec("B", DataType.BYTES, (1,), allow_ragged_batch=True, is_shape_tensor=True),
    },
    {"Y": TensorSpec("Y", DataType.FP32, (2,), reshape=(2, 1), labels=("cat", "dog"))},
    decoupled=True,
    has_sequence_batching=True,
    correlation_id_type=DataType.BYTES,
    required=1,
)


def received(parts: list[Buffer]) -> Frame:
    """The frame that these buffers are on the wire."""
    (frame,) = Splitter().feed(b"".join(map(bytes, parts)))
    return frame


def through_json(value: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(value))
    return read


def test_a_job_is_one_frame() -> None:
    parts = coding.pack_job(FrameKind.DECODE, 9, b"sig", {"at": None}, [b"loose", memoryview(b"bytes")])
    frame = received(parts)
    signature, value, loose = coding.unpack_job(frame)

    assert (frame.kind, frame.id, signature, value) == (FrameKind.DECODE, 9, b"sig", {"at": None})
    assert bytes(loose) == b"loosebytes"


def test_a_job_too_long_for_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coding, "LONGEST", 100)
    coding.pack_job(FrameKind.DECODE, 1, b"", {}, [bytes(90)])

    with pytest.raises(Unavailable, match="101 bytes are more than the 100"):
        coding.pack_job(FrameKind.DECODE, 1, b"", {}, [bytes(91)])


@pytest.mark.parametrize("datatype", [None, DataType.BYTES, DataType.UINT64])
def test_signatures_arrive_but_for_labels_and_reshapes(datatype: DataType | None) -> None:
    sent = dataclasses.replace(SIGNATURE, correlation_id_type=datatype)
    read = coding.unpack_signature(coding.pack_signature(sent))

    plain = dataclasses.replace(SIGNATURE.outputs["Y"], reshape=None, labels=())
    expected = dataclasses.replace(sent, outputs={"Y": plain})
    assert dataclasses.asdict(read) == dataclasses.asdict(expected)


@pytest.mark.parametrize("datatype", BY_NUMBER.values())
def test_tensors_arrive(datatype: DataType) -> None:
    memory = bytes(range(64))
    tensor = InferTensor("x", datatype, (2, 0, 5), memory[8:24], 8)

    read = coding.unpack_tensor(
        json.loads(json.dumps(coding.pack_tensor(tensor, 8))), lambda at, size: memory[at : at + size]
    )

    assert (read.name, read.datatype, read.shape, read.data, read.offset) == ("x", datatype, (2, 0, 5), memory[8:24], 8)


def test_requests_arrive() -> None:
    request = InferRequest(
        "m",
        "",
        "r",
        outputs=[RequestedOutput("Y", True), RequestedOutput("Z", False, 3)],
        parameters={"a": 1, "b": "x", "c": True, "d": 0.5},
        correlation_id="seven",
        flags=SEQUENCE_START,
        priority=2,
        timeout_us=9,
        binary_default=True,
        rows=4,
    )

    read = coding.unpack_request(through_json(coding.pack_request(request, [])), SIGNATURE, "3", lambda at, size: b"")

    assert read == dataclasses.replace(request, model_version="3", validated=SIGNATURE)


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": [["x", 99, [1], 0, 4]]},
        {"inputs": [["x", 8, 1, 0, 4]]},
        {"inputs": 7},
        {"outputs": [["Y"]]},
        {"outputs": None},
    ],
)
def test_a_malformed_request_is_a_frame_error(change: dict[str, Any]) -> None:
    value = {**coding.pack_request(InferRequest("m"), []), **change}

    with pytest.raises(FrameError, match="no request"):
        coding.unpack_request(value, SIGNATURE, "", lambda at, size: b"")


@pytest.mark.parametrize("member", coding.pack_request(InferRequest("m"), []))
def test_a_request_without_one_of_its_members_is_none(member: str) -> None:
    value = coding.pack_request(InferRequest("m"), [])
    del value[member]

    with pytest.raises(FrameError, match=member):
        coding.unpack_request(value, SIGNATURE, "", lambda at, size: b"")


@pytest.mark.parametrize("in_arena", [True, False])
def test_responses_arrive_as_far_as_encoding_needs_them(in_arena: bool) -> None:
    memory = bytes(range(64))
    outputs = [
        InferTensor("Y", DataType.FP32, (1, 2), memory[8:16], 8),
        InferTensor("Z", DataType.INT8, (3,), b"abc", -1),
        InferTensor("E", DataType.INT8, (0,), b"", -1),
    ]
    response = InferResponse("m", "3", "r", outputs, {"p": 1.5})
    request = InferRequest("m", outputs=[RequestedOutput("Y", False, 2), RequestedOutput("Z", True)])

    value, loose = coding.pack_response(response, request, SIGNATURE, "gzip", in_arena)
    assert [bytes(data) for data in loose] == ([b"abc"] if in_arena else [memory[8:16], b"abc"])
    read, asked, signature = coding.unpack_response(
        through_json(value), lambda at, size: memory[at : at + size], memoryview(b"".join(map(bytes, loose)))
    )

    assert (read.model_name, read.model_version, read.id, read.parameters) == ("m", "3", "r", {"p": 1.5})
    assert [(one.name, one.datatype, one.shape, bytes(one.data)) for one in read.outputs] == [
        (one.name, one.datatype, one.shape, bytes(one.data)) for one in outputs
    ]
    assert (asked.outputs, asked.binary_default) == (request.outputs, False)
    assert signature.max_batch_size == 4
    assert {name: spec.labels for name, spec in signature.outputs.items()} == {"Y": ("cat", "dog"), "Z": (), "E": ()}


def test_names_of_shared_memory_arrive() -> None:
    tensor = Shared("X", DataType.INT32, (2,), Unseen.buffer(8), -1, "region", 16)
    wanted = RequestedOutput("Y", place=Place("region", 4, 8, "Y"))
    request = InferRequest("m", outputs=[wanted, RequestedOutput("Z", True)], shared=True)

    value = through_json(coding.pack_request(request, [coding.pack_tensor(tensor, -1)]))
    read = coding.unpack_request(value, SIGNATURE, "3", lambda at, size: b"")

    assert read.shared
    assert read.outputs == request.outputs
    (arrived,) = read.inputs
    assert isinstance(arrived, Shared)
    assert (arrived.region, arrived.place, len(arrived.data)) == ("region", 16, 8)


def test_outputs_in_shared_memory_arrive_without_their_bytes() -> None:
    outputs = [InferTensor("Y", DataType.INT32, (2,), Unseen.buffer(8)), InferTensor("Z", DataType.INT8, (1,), b"z")]
    request = InferRequest("m", outputs=[RequestedOutput("Y", place=Place(object(), 4, 8)), RequestedOutput("Z")])

    value, loose = coding.pack_response(InferResponse("m", "3", "", outputs), request, SIGNATURE, "gzip", False)
    assert loose == [b"z"]
    read, _, _ = coding.unpack_response(through_json(value), lambda at, size: b"", memoryview(b"z"))

    assert is_unseen(read.outputs[0].data)
    assert (len(read.outputs[0].data), bytes(read.outputs[1].data)) == (8, b"z")
