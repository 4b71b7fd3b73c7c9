"""Responses written by hand, read back with protobuf; frames of replies as another HPACK and HTTP/2 see them."""

from __future__ import annotations

import urllib.parse

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.protocol.grpc import response as grpc_response
from edge_serve.protocol.grpc.grpc_service_pb2 import ModelInferResponse, ModelStreamInferResponse
from edge_serve.protocol.grpc.response import GrpcInferEncoder
from edge_serve.protocol.http2.frames import FRAME_HEAD

SIGNATURE = Signature("m", "1", "python", 8, {}, {"Y": TensorSpec("Y", DataType.FP32, (3,), labels=("a", "b", "c"))})
REQUEST = InferRequest("m")


def response(data: bytes = bytes(12), **rest: object) -> InferResponse:
    return InferResponse("m", "1", outputs=[InferTensor("Y", DataType.FP32, (1, 3), data)], **rest)  # type: ignore[arg-type]


def whole(encoder: GrpcInferEncoder, made: InferResponse, request: InferRequest = REQUEST) -> bytes:
    parts, size = encoder.encode(made, request, SIGNATURE)
    data = b"".join(parts)
    assert len(data) == size
    return data


@pytest.mark.parametrize("size", [0, 12, 120, 127, 128, 16384, 70_000])
def test_response_bytes_equal_those_of_protobuf(size: int) -> None:
    encoder = GrpcInferEncoder()
    expected = ModelInferResponse(model_name="m", model_version="1", id="i", raw_output_contents=[bytes(size), b"z"])
    expected.outputs.add(name="Y", datatype="UINT8", shape=[size])
    expected.outputs.add(name="Z", datatype="UINT8", shape=[1])
    for _ in range(2):
        made = InferResponse("m", "1", "i")
        made.outputs = [
            InferTensor("Y", DataType.UINT8, (size,), bytes(size)),
            InferTensor("Z", DataType.UINT8, (1,), b"z"),
        ]

        assert whole(encoder, made) == expected.SerializeToString()


def test_heads_that_are_remembered_do_not_mix() -> None:
    encoder = GrpcInferEncoder()
    first = ModelInferResponse.FromString(whole(encoder, response(id="1")))
    other = InferResponse("m", "2", "2", [InferTensor("Y", DataType.INT32, (3,), bytes(12))])
    second = ModelInferResponse.FromString(whole(encoder, other))

    assert (first.id, first.model_version, first.outputs[0].datatype) == ("1", "1", "FP32")
    assert (second.id, second.model_version, second.outputs[0].datatype) == ("2", "2", "INT32")


def test_parameters_keep_their_types() -> None:
    parameters = {"b": True, "i": -1, "s": "x", "d": 0.5, "big": 2**70}
    read = ModelInferResponse.FromString(whole(GrpcInferEncoder(), response(parameters=parameters)))

    kinds = {name: value.WhichOneof("parameter_choice") for name, value in read.parameters.items()}
    assert kinds == {"b": "bool_param", "i": "int64_param", "s": "string_param", "d": "double_param",
                     "big": "double_param"}  # fmt: skip


@pytest.mark.parametrize("final", [True, False])
def test_messages_of_a_stream_say_whether_they_are_the_last(final: bool) -> None:
    parts, size = grpc_response.wrap_response(*GrpcInferEncoder().encode(response(), REQUEST, SIGNATURE, final=final))
    data = b"".join(parts)
    assert len(data) == size
    read = ModelStreamInferResponse.FromString(data)

    assert read.infer_response.parameters["triton_final_response"].bool_param is final
    assert read.infer_response.outputs[0].name == "Y"


def test_classes_take_the_place_of_the_tensor() -> None:
    request = InferRequest("m", outputs=[RequestedOutput("Y", True, 1)])
    values = b"\0\0\0\0" + b"\0\0\x80\x3f" + b"\0\0\0\0"
    read = ModelInferResponse.FromString(whole(GrpcInferEncoder(), response(values), request))

    assert (read.outputs[0].datatype, list(read.outputs[0].shape)) == ("BYTES", [1, 1])
    assert read.raw_output_contents[0][4:] == b"1.000000:1:b"


def test_errors_and_finals_of_a_stream() -> None:
    request = InferRequest("m", "", "i")
    error = grpc_response.encode_stream_notice(request, True, InvalidArgument("no"))
    failed = ModelStreamInferResponse.FromString(error)
    refusal = grpc_response.encode_stream_notice(InferRequest("", id="i"), None, InvalidArgument("no"))
    refused = ModelStreamInferResponse.FromString(refusal)
    final = ModelStreamInferResponse.FromString(grpc_response.encode_stream_notice(request, final=True))

    assert (failed.error_message, failed.infer_response.model_name, failed.infer_response.id) == ("no", "m", "i")
    assert failed.infer_response.parameters["triton_final_response"].bool_param
    assert (refused.error_message, refused.infer_response) == ("no", ModelInferResponse(id="i"))
    assert final.infer_response.parameters["triton_final_response"].bool_param
    assert not final.error_message


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(kind, flags, stream, payload) of each."""
    found = []
    while data:
        upper, lower, kind, flags, stream = FRAME_HEAD.unpack_from(data)
        end = 9 + (upper << 8 | lower)
        assert end <= len(data)
        found.append((kind, flags, stream, data[9:end]))
        data = data[end:]
    return found


def fields_of(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in Decoder().decode(block)}


@pytest.mark.parametrize("size", [0, 1, 255, 16_379, 100_000])
def test_a_whole_reply(size: int) -> None:
    message = bytes(size)
    reply = grpc_response.build_reply_start(7, size) + message + grpc_response.build_ok(7)
    (head, data, trailers) = frames(reply)

    assert len(reply) == size + grpc_response.WHOLE_OVERHEAD
    assert (head[:3], data[:3], trailers[:3]) == ((1, 4, 7), (0, 0, 7), (1, 5, 7))
    assert data[3] == b"\0" + size.to_bytes(4, "big") + message
    fields = fields_of(head[3])
    assert fields == {
        ":status": "200", "content-type": "application/grpc", "grpc-accept-encoding": "identity,deflate,gzip",
    }  # fmt: skip
    assert fields_of(trailers[3]) == {"grpc-status": "0"}


def test_a_head_alone_is_the_same() -> None:
    assert grpc_response.build_reply_start(9, 0).startswith(grpc_response.build_head(9))
    ((_, _, _, block),) = frames(grpc_response.build_head(9, "gzip"))
    assert fields_of(block)["grpc-encoding"] == "gzip"


@pytest.mark.parametrize("started", [False, True])
def test_a_fault_says_what_and_why(started: bool) -> None:
    ((kind, flags, stream, block),) = frames(
        grpc_response.build_fault(5, "NOT_FOUND", "no such thing", started=started)
    )
    fields = fields_of(block)

    assert (kind, flags, stream) == (1, 5, 5)
    assert (fields["grpc-status"], fields["grpc-message"]) == ("5", "no such thing")
    assert (":status" in fields) is not started
    assert fields.get("grpc-accept-encoding") == (None if started else "identity,deflate,gzip")
    assert "grpc-message" not in fields_of(frames(grpc_response.build_fault(5, "UNKNOWN", "", started=True))[0][3])


@given(st.text(max_size=200))
def test_texts_come_back(text: str) -> None:
    quoted = grpc_response.quote(text)

    assert all(0x20 <= byte <= 0x7E for byte in quoted)
    assert urllib.parse.unquote_to_bytes(quoted) == text.encode("utf-8", "replace")


@pytest.mark.parametrize("text", ["x" * 100_000, "\u20ac" * 100_000, "x" * 4095 + "\u20ac"])
def test_long_texts_are_cut_between_characters_of_the_quoting(text: str) -> None:
    quoted = grpc_response.quote(text)

    assert len(quoted) <= 4100
    assert text.encode().startswith(urllib.parse.unquote_to_bytes(quoted))
