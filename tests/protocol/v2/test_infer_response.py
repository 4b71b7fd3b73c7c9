from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.http as client

from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.shared_memory import Place
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType, InferTensor, Unseen, join_bytes
from edge_serve.protocol.v2.infer import InferEncoder
from tests.footprint import footprint

MODEL = Signature(
    "m", "3", "python", 0, {},
    {"A": TensorSpec("A", DataType.INT32, (-1,)), "F": TensorSpec("F", DataType.FP32, (-1,), labels=("zero", "one"))},
)  # fmt: skip
A = InferTensor("A", DataType.INT32, (2, 2), np.arange(4, dtype="i4").tobytes())
F = InferTensor("F", DataType.FP32, (3,), np.array([0.5, 2.0, 1.0], "f4").tobytes())
S = InferTensor("S", DataType.BYTES, (2,), join_bytes([b"a", "é".encode()]))
EMPTY = InferTensor("E", DataType.FP32, (0, 5), b"")


def encode(
    *outputs: InferTensor, asked: list[RequestedOutput] | None = None, binary: bool = False, **fields: Any
) -> tuple[list[bytes], int | None]:
    response = InferResponse("m", "3", outputs=list(outputs), **fields)
    request = InferRequest("m", outputs=asked or [], binary_default=binary)
    encoder = InferEncoder()
    first = encoder.encode(response, request, MODEL)
    again = encoder.encode(response, request, MODEL)  # with what the first time left behind
    assert again == first
    buffers, length = first
    return [bytes(buffer) for buffer in buffers], length


def test_json_is_compact() -> None:
    assert encode(A) == (
        [
            b'{"model_name":"m","model_version":"3","outputs":'
            b'[{"name":"A","datatype":"INT32","shape":[2,2],"data":[0,1,2,3]}]}'
        ],
        None,
    )


def test_id_comes_first_and_parameters_before_the_outputs() -> None:
    for binary in (False, True):
        buffers, _ = encode(A, binary=binary, id='a"é', parameters={"p": 1, "q": True})
        document = json.loads(buffers[0])
        assert list(document) == ["id", "model_name", "model_version", "parameters", "outputs"]
        assert (document["id"], document["parameters"]) == ('a"é', {"p": 1, "q": True})


def test_binary_outputs_follow_the_json_part_uncopied() -> None:
    data = memoryview(bytearray(A.data))
    response = InferResponse("m", "3", outputs=[InferTensor("A", DataType.INT32, (2, 2), data), S])
    buffers, length = InferEncoder().encode(response, InferRequest("m", binary_default=True), MODEL)
    assert buffers[1] is data
    assert length == len(buffers[0])
    assert json.loads(bytes(buffers[0]))["outputs"] == [
        {"name": "A", "datatype": "INT32", "shape": [2, 2], "parameters": {"binary_data_size": 16}},
        {"name": "S", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 11}},
    ]


def test_a_listed_output_is_json_unless_it_requests_binary_data() -> None:
    asked = [RequestedOutput("A"), RequestedOutput("S", binary=True)]
    buffers, length = encode(A, S, asked=asked, binary=True)
    document = json.loads(buffers[0][:length])
    assert document["outputs"][0]["data"] == [0, 1, 2, 3]
    assert document["outputs"][1]["parameters"] == {"binary_data_size": 11}
    assert buffers[1:] == [bytes(S.data)]


def test_without_a_byte_of_binary_data_there_is_no_length() -> None:
    buffers, length = encode(EMPTY, binary=True)
    assert length is None
    assert json.loads(buffers[0])["outputs"][0]["parameters"] == {"binary_data_size": 0}
    assert encode(EMPTY, A, binary=True)[0][1:] == [bytes(A.data)]
    assert json.loads(encode(EMPTY)[0][0])["outputs"][0]["data"] == []


def test_no_outputs() -> None:
    for binary in (False, True):
        assert encode(binary=binary) == ([b'{"model_name":"m","model_version":"3","outputs":[]}'], None)


def test_remembered_json_parts_differ_by_all_that_they_say() -> None:
    encoder = InferEncoder()
    request = InferRequest("m", binary_default=True)
    tensors = [
        A,
        InferTensor("B", A.datatype, A.shape, A.data),
        InferTensor("A", DataType.UINT32, A.shape, A.data),
        InferTensor("A", A.datatype, (4,), A.data),
        InferTensor("A", DataType.BYTES, (1,), join_bytes([b"x"])),
        InferTensor("A", DataType.BYTES, (1,), join_bytes([b"xy"])),
    ]
    for version in ("1", "2"):
        for tensor in [*tensors, *tensors]:
            response = InferResponse("m", version, outputs=[tensor])
            document = json.loads(bytes(encoder.encode(response, request, MODEL)[0][0]))
            (output,) = document["outputs"]
            assert document["model_version"] == version
            assert (output["name"], output["datatype"]) == (tensor.name, tensor.datatype.name)
            assert output["shape"] == list(tensor.shape)
            assert output["parameters"] == {"binary_data_size": len(tensor.data)}


def test_cache_of_the_encoder_is_bounded() -> None:
    encoder, sizes = InferEncoder(), [0]
    for size in range(4000):
        tensor = InferTensor("A", DataType.INT8, (size,), bytes(size))
        encoder.encode(InferResponse("m", "1", outputs=[tensor]), InferRequest("m", binary_default=True), MODEL)
        sizes.append(footprint(encoder) if size % 300 == 299 else 0)
    assert max(sizes) < 15 * 1024


def test_classification() -> None:
    asked = [RequestedOutput("F", classification=2), RequestedOutput("A")]
    document = json.loads(encode(F, A, asked=asked)[0][0])
    assert document["outputs"][0] == {
        "name": "F", "datatype": "BYTES", "shape": [2], "data": ["2.000000:1:one", "1.000000:2"],
    }  # fmt: skip
    buffers, length = encode(F, asked=[RequestedOutput("F", binary=True, classification=1)])
    assert buffers[1] == join_bytes([b"2.000000:1:one"])
    assert length == len(buffers[0])


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_half_floats_are_binary_only(datatype: DataType) -> None:
    half = InferTensor("H", datatype, (1,), b"\0\0")
    assert encode(half, binary=True)[0][1] == b"\0\0"
    with pytest.raises(InvalidArgument, match=f"sending {datatype.name} data via JSON"):
        encode(half)


@pytest.mark.parametrize("binary", [True, False])
def test_tritons_client_understands_it(binary: bool) -> None:
    buffers, length = encode(A, F, S, binary=binary, id="9")
    result = client.InferenceServerClient.parse_response_body(
        b"".join(buffers), header_length=length, content_encoding=None
    )
    assert result.as_numpy("A").tolist() == [[0, 1], [2, 3]]
    assert result.as_numpy("F").tolist() == [0.5, 2.0, 1.0]
    assert [v.decode() if binary else v for v in result.as_numpy("S").tolist()] == ["a", "é"]
    assert result.get_response()["id"] == "9"


def test_an_output_in_the_clients_memory_has_no_data() -> None:
    there = InferTensor("A", DataType.INT32, (2, 2), Unseen.buffer(16))
    asked = [RequestedOutput("A", place=Place(object(), 0, 16)), RequestedOutput("F", binary=True)]

    (head, data), length = encode(there, F, asked=asked)

    assert json.loads(head)["outputs"] == [
        {"name": "A", "datatype": "INT32", "shape": [2, 2]},
        {"name": "F", "datatype": "FP32", "shape": [3], "parameters": {"binary_data_size": 12}},
    ]
    assert (data, length) == (F.data, len(head))
    InferEncoder(patient=False).encode(InferResponse("m", "3", outputs=[there]), InferRequest("m"), MODEL)
