"""Decoding whole bodies; what single members may hold is in test_infer_header.py."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import tritonclient.http as client

from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType, Shape, join_bytes
from edge_serve.protocol.v2.infer import InferDecoder, parse_header_length
from tests.footprint import footprint


def model(*inputs: TensorSpec, max_batch_size: int = 0) -> Signature:
    specs = inputs or (TensorSpec("X", DataType.INT32, (-1,)),)
    outputs = {"Y": TensorSpec("Y", DataType.INT32, (-1,)), "Z": TensorSpec("Z", DataType.INT32, (-1,))}
    return Signature("m", "1", "python", max_batch_size, {s.name: s for s in specs}, outputs, required=len(specs))


def binary(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def body(document: dict[str, Any], *tensors: bytes) -> tuple[bytes, int]:
    text = json.dumps(document).encode()
    return text + b"".join(tensors), len(text)


def facts(request: InferRequest) -> dict[str, Any]:
    """Everything that two equal requests share."""
    return {
        "inputs": [(t.name, t.datatype, t.shape, bytes(t.data), t.offset) for t in request.inputs],
        **{one.name: getattr(request, one.name) for one in fields(request) if one.name not in ("inputs", "lease")},
    }


FULL = {
    "id": "r7",
    "parameters": {"sequence_id": "s", "sequence_start": True, "priority": 2, "timeout": 9, "mine": 1.5},
    "inputs": [binary("X", "INT32", [3], 12), binary("S", "BYTES", [2], 11)],
    "outputs": [{"name": "Y", "parameters": {"binary_data": True}}, {"name": "Z", "parameters": {"classification": 3}}],
}
FULL_MODEL = model(TensorSpec("X", DataType.INT32, (-1,)), TensorSpec("S", DataType.BYTES, (2,)))


def test_a_repeated_json_part_decodes_to_the_same_request() -> None:
    decoder = InferDecoder()
    strings = join_bytes([b"a", b"bc"])
    first_body, length = body(FULL, np.array([1, 2, 3], "i4").tobytes(), strings)
    second_body = first_body[:length] + np.array([7, 8, 9], "i4").tobytes() + join_bytes([b"bc", b"a"])
    first = decoder.decode(FULL_MODEL, "4", first_body, length, offset=640, forwarded={"X-A": "1"})
    second = decoder.decode(FULL_MODEL, "4", second_body, length, offset=640, forwarded={"X-A": "1"})
    assert facts(second) == facts(
        InferDecoder().decode(FULL_MODEL, "4", second_body, length, offset=640, forwarded={"X-A": "1"})
    )
    assert first.inputs[0].array().tolist() == [1, 2, 3]
    assert second.inputs[0].array().tolist() == [7, 8, 9]
    assert (second.id, second.model_version, second.correlation_id, second.flags) == ("r7", "4", "s", 1)
    assert (second.priority, second.timeout_us, second.parameters) == (2, 9, {"mine": 1.5, "X-A": "1"})
    assert second.validated is FULL_MODEL


def test_requests_from_one_template_share_nothing_that_a_model_may_change() -> None:
    decoder = InferDecoder()
    raw, length = body(FULL, bytes(12), join_bytes([b"a", b"bc"]))
    decoder.decode(FULL_MODEL, "", raw, length)
    one = decoder.decode(FULL_MODEL, "", raw, length, forwarded={"H": "v"})
    one.parameters["more"] = 1
    one.inputs.pop()
    one.inputs[0].shape = (99,)
    two = decoder.decode(FULL_MODEL, "", raw, length)
    assert two.parameters == {"mine": 1.5}
    assert [tensor.shape for tensor in two.inputs] == [(3,), (2,)]


def test_string_elements_are_checked_in_every_request() -> None:
    decoder = InferDecoder()
    raw, length = body(FULL, bytes(12), join_bytes([b"a", b"bc"]))
    decoder.decode(FULL_MODEL, "", raw, length)
    with pytest.raises(InvalidArgument, match="incomplete string data for inference input 'S'"):
        decoder.decode(FULL_MODEL, "", raw[: length + 17] + b"\x09" + raw[length + 18 :], length)


@pytest.mark.parametrize("change", [-4, 4])
def test_the_number_of_bytes_behind_a_known_json_part_is_checked(change: int) -> None:
    decoder = InferDecoder()
    raw, length = body({"inputs": [binary("X", "INT32", [3], 12)]}, bytes(12))
    decoder.decode(model(), "", raw, length)
    wrong = raw[:change] if change < 0 else raw + bytes(change)
    expected = (
        "unexpected size for input 'X', expecting 4 additional bytes for model 'm'"
        if change < 0
        else "unexpected additional input data for model 'm'"
    )
    with pytest.raises(InvalidArgument) as caught:
        decoder.decode(model(), "", wrong, length)
    assert caught.value.message == expected


def test_the_same_json_part_for_another_model_is_validated_anew() -> None:
    decoder = InferDecoder()
    raw, length = body({"inputs": [binary("X", "INT32", [3], 12)]}, bytes(12))
    decoder.decode(model(), "", raw, length)
    with pytest.raises(InvalidArgument, match="data-type is 'INT32', but model 'm' expects 'FP32'"):
        decoder.decode(model(TensorSpec("X", DataType.FP32, (-1,))), "", raw, length)


def test_templates_are_bounded() -> None:
    decoder = InferDecoder()
    signature = model()
    sizes: list[int] = []
    for number in range(3000):
        raw, length = body({"id": str(number), "inputs": [binary("X", "INT32", [1], 4)]}, bytes(4))
        assert decoder.decode(signature, "", raw, length).id == str(number)
        if number % 500 == 499:
            long, long_length = body({"id": "x" * 5000, "inputs": [binary("X", "INT32", [1], 4)]}, bytes(4))
            decoder.decode(signature, "", long, long_length)
            sizes.append(footprint(decoder))
    assert max(sizes) < 1.1 * sizes[2]


def test_tensors_are_views_of_the_body_and_know_their_place_in_the_arena() -> None:
    raw, length = body({"inputs": [binary("X", "INT32", [1], 4), binary("W", "INT32", [1], 4)]}, b"\1\0\0\0\2\0\0\0")
    memory = bytearray(raw)
    signature = model(TensorSpec("X", DataType.INT32, (1,)), TensorSpec("W", DataType.INT32, (1,)))
    decoder = InferDecoder()
    for _ in range(2):
        request = decoder.decode(signature, "", memory, length, offset=4096)
        assert [tensor.offset for tensor in request.inputs] == [4096 + length, 4096 + length + 4]
        memory[length] = 42
        assert request.inputs[0].array().tolist() == [42]


def test_json_and_binary_inputs_in_one_request() -> None:
    document = {
        "inputs": [
            {"name": "J", "datatype": "FP32", "shape": [2], "data": [1, 2.5]},
            binary("X", "INT32", [1], 4),
        ]
    }
    raw, length = body(document, b"\5\0\0\0")
    signature = model(TensorSpec("X", DataType.INT32, (1,)), TensorSpec("J", DataType.FP32, (2,)))
    decoder = InferDecoder()
    for _ in range(2):
        request = decoder.decode(signature, "", raw, length, offset=0)
        assert [tensor.array().tolist() for tensor in request.inputs] == [[1.0, 2.5], [5]]
        assert [tensor.offset for tensor in request.inputs] == [-1, length]


def raw_model(datatype: DataType, dims: Shape, max_batch_size: int = 0) -> Signature:
    return model(TensorSpec("X", datatype, dims), max_batch_size=max_batch_size)


@pytest.mark.parametrize(
    ("signature", "raw", "shape", "data"),
    [
        (raw_model(DataType.INT32, (-1,)), bytes(8), (2,), bytes(8)),
        (raw_model(DataType.INT32, (-1,)), b"", (0,), b""),
        (raw_model(DataType.FP32, (2, -1), 4), bytes(24), (1, 2, 3), bytes(24)),
        (raw_model(DataType.BYTES, (1,)), b"hello", (1,), join_bytes([b"hello"])),
        (raw_model(DataType.BYTES, (1,), 4), b"", (1, 1), join_bytes([b""])),
    ],
)
def test_raw_requests(signature: Signature, raw: bytes, shape: Shape, data: bytes) -> None:
    request = InferDecoder().decode(signature, "", raw, 0)
    (tensor,) = request.inputs
    assert (tensor.name, tensor.shape, bytes(tensor.data)) == ("X", shape, data)
    assert request.binary_default
    assert request.rows == 1


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        (raw_model(DataType.INT32, (-1,)), "size mismatch for input 'raw_input' for model 'm'. Expected 8, got 9"),
        (raw_model(DataType.INT32, (-1, -1)), "can not be deduced because there are more than one variable-sized"),
        (raw_model(DataType.BYTES, (2,)), "For BYTE datatype raw input 'X', the model must have input shape [1]"),
        (FULL_MODEL, "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model"),
    ],
)  # fmt: skip
def test_raw_requests_whose_shape_is_unknown(signature: Signature, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        InferDecoder().decode(signature, "", bytes(9), 0)
    assert message in caught.value.message


def test_size_limits() -> None:
    decoder = InferDecoder(max_input_size=200)
    with pytest.raises(
        InvalidArgument, match="request JSON size of 201 bytes exceeds the maximum allowed input size of 200"
    ):
        decoder.decode(model(), "", b" " * 201, None)
    with pytest.raises(InvalidArgument, match="request JSON size of 201 bytes"):
        decoder.decode(model(), "", b" " * 300, 201)
    with pytest.raises(InvalidArgument, match=r"Raw input has a byte_size \(204 bytes\)"):
        decoder.decode(model(), "", bytes(204), 0)
    big, length = body({"inputs": [binary("X", "INT32", [100], 400)]}, bytes(400))
    assert decoder.decode(model(), "", big, length).inputs[0].shape == (100,)
    for item in (
        {"datatype": "INT32", "shape": [100], "data": [1]},
        {"datatype": "BYTES", "shape": [1], "data": ["x" * 100]},
    ):
        small = InferDecoder(max_input_size=103) if item["datatype"] == "BYTES" else decoder
        text = json.dumps({"inputs": [{"name": "X", **item}]}, separators=(",", ":")).encode()
        with pytest.raises(InvalidArgument) as caught:
            small.decode(model(TensorSpec("X", DataType[str(item["datatype"])], (-1,))), "", text, len(text))
        assert "exceeds the maximum allowed" in caught.value.message


def test_an_empty_body_is_no_request() -> None:
    with pytest.raises(InvalidArgument, match="the request body is empty"):
        InferDecoder().decode(model(), "", b"", None)


@pytest.mark.parametrize(
    ("text", "expected"), [(None, None), ("0", 0), ("12", 12), (" 12", 12), ("12x", 12), ("+7", 7), ("110", 110)]
)
def test_header_length(text: str | None, expected: int | None) -> None:
    assert parse_header_length(text, 110) == expected


@pytest.mark.parametrize("text", ["-1", "111", "100000", "9" * 30, "-0x"])
def test_header_length_out_of_range(text: str) -> None:
    if text == "-0x":
        assert parse_header_length(text, 110) == 0
        return
    with pytest.raises(InvalidArgument, match=rf"inference header size should be in range \(0, 110\), got: {text}"):
        parse_header_length(text, 110)


@pytest.mark.parametrize("text", ["", "abc", "x12"])
def test_header_length_that_is_no_number(text: str) -> None:
    with pytest.raises(InvalidArgument, match="Unable to parse Inference-Header-Content-Length, got: "):
        parse_header_length(text, 110)


@pytest.mark.parametrize("is_binary", [True, False])
def test_requests_of_tritons_client_are_read(is_binary: bool) -> None:
    numbers = client.InferInput("X", [2, 3], "FP32")
    numbers.set_data_from_numpy(np.arange(6, dtype="f4").reshape(2, 3), binary_data=is_binary)
    strings = client.InferInput("S", [2, 1], "BYTES")
    strings.set_data_from_numpy(np.array([["a"], ["bc"]], dtype=object), binary_data=is_binary)
    outputs = [client.InferRequestedOutput("Y", binary_data=is_binary, class_count=2)]
    raw, length = client.InferenceServerClient.generate_request_body(
        [numbers, strings], outputs=outputs, request_id="7", sequence_id=5, sequence_start=True, priority=1, timeout=10
    )
    signature = model(TensorSpec("X", DataType.FP32, (-1,)), TensorSpec("S", DataType.BYTES, (1,)), max_batch_size=4)
    request = InferDecoder().decode(signature, "", raw, length)
    assert request.inputs[0].array().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert request.inputs[1].array().tolist() == [[b"a"], [b"bc"]]
    assert (request.id, request.correlation_id, request.flags, request.priority, request.timeout_us) == (
        "7",
        5,
        1,
        1,
        10,
    )
    assert (request.outputs[0].name, request.outputs[0].binary, request.outputs[0].classification) == (
        "Y",
        is_binary,
        2,
    )
    assert request.rows == 2


def test_every_cut_and_every_flipped_byte_of_a_request_is_a_request_or_a_refusal() -> None:
    raw, length = body(FULL, bytes(12), join_bytes([b"a", b"bc"]))
    decoder = InferDecoder()
    decoded = 0
    for at in range(len(raw)):
        flipped = raw[:at] + bytes((raw[at] ^ 0x15,)) + raw[at + 1 :]
        for damaged, size in ((raw[:at], min(at, length)), (flipped, length)):
            with contextlib.suppress(EdgeServeError):
                decoder.decode(FULL_MODEL, "", damaged, size)
                decoded += 1
    assert 0 < decoded < len(raw)
