"""Answers as bytes: the frames of a reply over HTTP/2, and an `InferResponse` as a ModelInferResponse.

The messages are encoded without protobuf. A memo has the parts that repeat, and the bytes of the outputs are not
copied. The header blocks that every reply repeats are constant bytes, because they do not use HPACK's dynamic table.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace

from edge_serve.aio.memo import Memo
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest, InferResponse, Parameter
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer, InferTensor, is_unseen
from edge_serve.protocol.grpc.grpc_service_pb2 import InferParameter, ModelInferResponse, ModelStreamInferResponse
from edge_serve.protocol.grpc.wire import ENCODINGS, PREFIX, STATUS, encode_varint
from edge_serve.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, build_frame
from edge_serve.protocol.http2.heads import encode, encode_literal
from edge_serve.protocol.inference.classification import classify

_Key = tuple[object, ...]
#: the model's name and version; the outputs' descriptions; the prefix of each output's data; the size of all, with data
_Head = tuple[bytes, bytes, list[bytes], int]
_MAX_HEADS = 1024
_FINAL = "triton_final_response"
_INT64 = range(-(2**63), 2**63)

#: bytes of `grpc-message`; clients accept 8 KiB of trailers
_MAX_TEXT = 4096
_CONTENT_TYPE = (b"content-type", b"application/grpc")
_ACCEPT = (b"grpc-accept-encoding", ",".join(ENCODINGS).encode())


def _encode_head(encoding: str) -> bytes:
    named = [(b"grpc-encoding", encoding.encode())] if encoding else []
    return encode(200, [_CONTENT_TYPE, _ACCEPT, *named])


#: the header block before the first message, by the encoding that it names
_HEADS = {encoding: _encode_head(encoding) for encoding in ("", "gzip", "deflate")}
_OK = encode(None, [(b"grpc-status", b"0")])
_PLAIN_HEAD = _HEADS[""]

_WHOLE = struct.Struct(f">HBBBI{len(_PLAIN_HEAD)}sHBBBIBI")
_TAIL = struct.Struct(f">HBBBI{len(_OK)}s")
#: bytes of a unary reply other than its message
WHOLE_OVERHEAD = _WHOLE.size + _TAIL.size


def build_head(stream: int, encoding: str = "") -> bytes:
    """Build the HEADERS frame of an answer that has messages."""
    return build_frame(HEADERS, END_HEADERS, stream, _HEADS[encoding])


def build_reply_start(stream: int, size: int) -> bytes:
    """Build the frames before the only message, of `size` bytes, of a reply: HEADERS, and the start of DATA."""
    whole = size + PREFIX.size
    return _WHOLE.pack(
        0, len(_PLAIN_HEAD), HEADERS, END_HEADERS, stream, _PLAIN_HEAD,
        whole >> 8, whole & 0xFF, DATA, 0, stream, 0, size,
    )  # fmt: skip


def build_ok(stream: int) -> bytes:
    """Build the trailers of a successful call."""
    return _TAIL.pack(0, len(_OK), HEADERS, END_HEADERS | END_STREAM, stream, _OK)


def build_fault(stream: int, code: str, text: str, *, started: bool) -> bytes:
    """Build the trailers of a failed call, with the fields of a head unless that is sent already (`started`)."""
    fields = encode_literal(b"grpc-status", b"%d" % STATUS.get(code, STATUS["UNKNOWN"]))
    if text:
        fields += encode_literal(b"grpc-message", quote(text))
    block = fields if started else _PLAIN_HEAD + fields
    return build_frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


def build_refusal(stream: int, status: int) -> bytes:
    """Build the answer to a request that is not a gRPC call: an HTTP status."""
    return build_frame(HEADERS, END_HEADERS | END_STREAM, stream, encode(status, []))


def quote(text: str) -> bytes:
    """Encode a `grpc-message`: percent-encoding for all but printable ASCII."""
    quoted = bytearray()
    for byte in text.encode("utf-8", "replace"):
        quoted += b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        if len(quoted) >= _MAX_TEXT:
            break
    return bytes(quoted)


def encode_delimited(tag: int, data: Buffer) -> bytes:
    """Encode a length-delimited field; `tag` is its first byte."""
    return b"".join((bytes((tag,)), encode_varint(len(data)), data))


class GrpcInferEncoder:
    """Encodes responses, with a memo of the parts that repeat."""

    def __init__(self) -> None:
        self._heads: Memo[_Key, _Head] = Memo(_MAX_HEADS)

    def encode(
        self, response: InferResponse, request: InferRequest, signature: Signature, *, final: bool | None = None
    ) -> tuple[list[Buffer], int]:
        """Encode a response; return the message in parts, among them the outputs' own bytes, and its length.

        Args:
            final: value of `triton_final_response`; None = leave it out, as unary calls do.

        Raises:
            InvalidArgument: an output cannot be classified. Internal: an output's bytes do not match its shape.
        """
        outputs = response.outputs
        if request.shared:  # outputs in the client's shared memory are not in the message
            outputs = [replace(one, data=b"") if is_unseen(one.data) else one for one in outputs]
        if any(output.classification for output in request.outputs):
            outputs = _classify_outputs(outputs, request, signature)
        key = (
            response.model_name,
            response.model_version,
            *[(tensor.name, tensor.datatype._value_, tensor.shape, len(tensor.data)) for tensor in outputs],
        )
        head = self._heads.get(key)
        if head is None:
            head = self._heads.add(key, _build_head(response, outputs))
        names, described, befores, size = head
        parts: list[Buffer] = [names]
        if response.id:
            given = encode_delimited(0x1A, response.id.encode())
            parts.append(given)
            size += len(given)
        if response.parameters or final is not None:
            given = _encode_parameters(response.parameters, final)
            parts.append(given)
            size += len(given)
        parts.append(described)
        for before, tensor in zip(befores, outputs, strict=True):
            parts.append(before)
            parts.append(tensor.data)
        return parts, size


def wrap_response(parts: list[Buffer], size: int) -> tuple[list[Buffer], int]:
    """Wrap a ModelInferResponse of `size` bytes into a ModelStreamInferResponse."""
    before = b"\x12" + encode_varint(size)
    return [before, *parts], len(before) + size


def encode_stream_notice(request: InferRequest, final: bool | None, error: EdgeServeError | None = None) -> bytes:
    """Encode a ModelStreamInferResponse without outputs: an error, or an empty final response.

    Args:
        final: value of `triton_final_response`; None = leave it out.
    """
    inner = ModelInferResponse(model_name=request.model_name, model_version=request.model_version, id=request.id)
    if final is not None:
        inner.parameters[_FINAL].bool_param = final
    message = "" if error is None else error.message
    return ModelStreamInferResponse(error_message=message, infer_response=inner).SerializeToString()


def _build_head(response: InferResponse, outputs: list[InferTensor]) -> _Head:
    message = ModelInferResponse()
    for tensor in outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape)
    names = ModelInferResponse(model_name=response.model_name, model_version=response.model_version)
    befores = [b"\x32" + encode_varint(len(tensor.data)) for tensor in outputs]
    named, described = names.SerializeToString(), message.SerializeToString()
    size = len(named) + len(described) + sum(map(len, befores)) + sum(len(tensor.data) for tensor in outputs)
    return named, described, befores, size


def _encode_parameters(parameters: Mapping[str, Parameter], final: bool | None) -> bytes:
    message = ModelInferResponse()
    for name, value in parameters.items():
        _set(message.parameters[name], value)
    if final is not None:
        message.parameters[_FINAL].bool_param = final
    return message.SerializeToString()


def _set(parameter: InferParameter, value: Parameter) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int) and value in _INT64:
        parameter.int64_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    else:
        parameter.double_param = value


def _classify_outputs(outputs: list[InferTensor], request: InferRequest, signature: Signature) -> list[InferTensor]:
    wanted = {output.name: output.classification for output in request.outputs}
    batched = signature.max_batch_size > 0
    return [
        classify(tensor, wanted[tensor.name], signature.outputs.get(tensor.name), batched)
        if wanted.get(tensor.name)
        else tensor
        for tensor in outputs
    ]
