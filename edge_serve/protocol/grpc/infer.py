"""Decodes the bytes of a ModelInferRequest into an `InferRequest`, with a memo for requests that repeat.

The hot path is a client that repeats its request: the bytes before the raw contents are equal, except for the `id`.
They are the key of a memo of validated requests. So a repeated request costs a walk over its top-level fields, one
look-up, and a view of each raw content. Without an `id` the message has the same length too, and a comparison of
bytes replaces the walk. Other requests are parsed with protobuf.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError

from edge_serve.aio.memo import Memo
from edge_serve.errors import Internal, InvalidArgument
from edge_serve.messages.infer import InferRequest, copy_request
from edge_serve.messages.shared_memory import Regions
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer, DataType, InferTensor, Shape, element_count
from edge_serve.protocol.grpc import request as grpc_request
from edge_serve.protocol.grpc.grpc_service_pb2 import ModelInferRequest
from edge_serve.protocol.grpc.wire import encode_varint
from edge_serve.protocol.inference.validate import check_strings, validate
from edge_serve.records import slotted

#: tags of the fields, all length-delimited: the field's number times 8, plus 2
_MODEL, _VERSION, _ID, _RAW = 1 << 3 | 2, 2 << 3 | 2, 3 << 3 | 2, 7 << 3 | 2
_TAGS = frozenset(number << 3 | 2 for number in range(1, 7))
#: raw contents of a message: each takes memory and time before the message is compared with its model
_MAX_RAW = 4096
#: bytes at a message's beginning in which `peek` looks for fields
PEEKED = 4096


class Version(Protocol):
    """A version of a model, as the look-up returns it."""

    @property
    def signature(self) -> Signature: ...


V = TypeVar("V", bound=Version)
#: a request, its version, and whether the client wants an empty final response
_Decoded = tuple[InferRequest, V, bool]


class Unreadable(Internal):
    """The bytes are not a valid message. The text is gRPC's own."""

    def __init__(self) -> None:
        super().__init__("Unable to parse request")


@slotted
class MessageParts:
    """A message cut into its top-level fields.

    Attributes:
        head: the bytes before the raw contents, without the id.
        starts: position in the message of each raw content.
    """

    head: bytes
    id: str
    raw: list[Buffer]
    starts: list[int]


@slotted
class _Input:
    """An input of a known request.

    Attributes:
        size: of its raw content; -1 for BYTES, whose `elements` are checked.
        before: the tag and the length before its raw content.
    """

    name: str
    datatype: DataType
    shape: Shape
    size: int
    elements: int
    before: bytes


@slotted
class _Template:
    """A decoded head, for requests with an equal one. `request` has its fields, except the id and the inputs."""

    head: bytes
    request: InferRequest
    inputs: list[_Input]
    wants_final: bool


def cut(data: Buffer) -> MessageParts | None:
    """Cut a message into its parts. Return None if its fields are in no serializer's order, or it is malformed.

    Raises:
        InvalidArgument: it has more raw contents than any model has inputs.
    """
    position, end = 0, len(data)
    head_end = end
    id_start = id_end = 0
    text = ""
    raw: list[Buffer] = []
    starts: list[int] = []
    view = memoryview(data)
    try:
        while position < end:
            tag = data[position]
            length = data[position + 1]
            start = position + 2
            if length > 0x7F:
                length, start = _read_varint(data, position + 1)
            stop = start + length
            if tag == _RAW:
                if not raw:
                    head_end = position
                elif len(raw) == _MAX_RAW:
                    raise InvalidArgument(f"expected at most {_MAX_RAW} entries of raw_input_contents, got more")
                raw.append(view[start:stop])
                starts.append(start)
            elif raw or tag not in _TAGS:
                return None
            elif tag == _ID:
                if id_end:
                    return None
                id_start, id_end, text = position, stop, str(view[start:stop], "utf-8")
            position = stop
    except (IndexError, UnicodeDecodeError):
        return None
    if position != end:
        return None
    if type(data) is not bytes:
        data = bytes(view[:head_end])
    head = data[:id_start] + data[id_end:head_end] if id_end else data[:head_end]
    return MessageParts(head, text, raw, starts)


class Beginning(NamedTuple):
    """First fields of a message: its model and id ("" = not found), and the position of its first raw content (-1)."""

    model_name: str
    model_version: str
    id: str
    first_raw: int


def peek(data: Buffer) -> Beginning:
    """Read the beginning of a message that may be incomplete or malformed."""
    position, names, first_raw = 0, {_MODEL: "", _VERSION: "", _ID: ""}, -1
    with contextlib.suppress(IndexError, UnicodeDecodeError):
        while (tag := data[position]) in _TAGS and position < PEEKED:
            length, start = _read_varint(data, position + 1)
            position = start + length
            if tag in names:
                names[tag] = bytes(data[start:position]).decode()
        if tag == _RAW:
            first_raw = _read_varint(data, position + 1)[1]
    return Beginning(names[_MODEL], names[_VERSION], names[_ID], first_raw)


def _read_varint(data: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    raise IndexError(position)


class GrpcInferDecoder(Generic[V]):
    """Decodes messages, with a memo of those that clients repeat.

    Args:
        lookup: returns the version of a model by its name and number; raises as `Service.lookup`.
        regions: the registered shared memory regions.
    """

    _MAX_TEMPLATES = 1024
    _MAX_TEMPLATE_SIZE = 4096

    def __init__(self, lookup: Callable[[str, str], V], regions: Regions) -> None:
        self._regions = regions
        self._lookup = lookup
        self._templates: Memo[bytes, _Template] = Memo(self._MAX_TEMPLATES)
        #: the latest template of messages without an id, by the length of the message
        self._by_length: Memo[int, _Template] = Memo(self._MAX_TEMPLATES)

    def decode(self, data: Buffer, forwarded: Mapping[str, str] | None = None, offset: int = -1) -> _Decoded[V]:
        """Decode and validate a request, whose raw tensors are views of `data`.

        Return it with the version that it is for, and whether the client wants an empty final response.

        Args:
            offset: where `data` starts in the model's tensor arena; -1 in ordinary memory.

        Raises:
            EdgeServeError: with Triton's text and code.
        """
        found = (self._repeated(data) if offset < 0 else None) or self._decode(data, offset)
        if forwarded:
            found[0].parameters.update(forwarded)
        return found

    def _repeated(self, data: Buffer) -> _Decoded[V] | None:
        """Decode a message that differs from a known one in its raw contents alone; return None for others."""
        template = self._by_length.get(len(data))
        if template is None:
            return None
        one, tensors = template.request, _match(template, data)
        if tensors is None:
            return None
        served = self._lookup(one.model_name, one.model_version)
        if served.signature is not one.validated:
            return None
        return copy_request(one, "", tensors), served, template.wants_final

    def _decode(self, data: Buffer, offset: int) -> _Decoded[V]:
        parts = cut(data)
        if parts is None:
            message = parse(bytes(data))
            return self._read(message, list(message.raw_input_contents))
        template, known = self._templates.get(parts.head), None
        if template is not None:
            served = self._lookup(template.request.model_name, template.request.model_version)
            if served.signature is template.request.validated:
                known, wants_final = _fill(template, parts), template.wants_final
        if known is not None:
            request = known
        else:
            message = parse(parts.head)
            message.id = parts.id
            request, served, wants_final = self._read(message, parts.raw)
            template = self._add_template(parts, request, wants_final)
        if template is not None and not parts.id:
            self._by_length.add(len(data), template)
        if offset >= 0:
            _set_offsets(request, parts, offset)
        return request, served, wants_final

    def _read(self, message: ModelInferRequest, raw: list[Buffer]) -> _Decoded[V]:
        served = self._lookup(message.model_name, message.model_version)
        request, wants_final = grpc_request.read(message, raw, self._regions)
        validate(request, served.signature)
        return request, served, wants_final

    def _add_template(self, parts: MessageParts, request: InferRequest, wants_final: bool) -> _Template | None:
        if len(parts.head) > self._MAX_TEMPLATE_SIZE or len(parts.raw) != len(request.inputs) or request.shared:
            return None  # typed contents, or a region whose name may mean another one next time
        inputs = []
        for tensor in request.inputs:
            size = -1 if tensor.datatype is DataType.BYTES else len(tensor.data)
            before, elements = bytes((_RAW,)) + encode_varint(len(tensor.data)), element_count(tensor.shape)
            inputs.append(_Input(tensor.name, tensor.datatype, tensor.shape, size, elements, before))
        own = copy_request(request, "", [])
        return self._templates.add(parts.head, _Template(parts.head, own, inputs, wants_final))


def parse(data: bytes) -> ModelInferRequest:
    """Parse a message.

    Raises:
        Unreadable: the bytes are not a ModelInferRequest.
    """
    try:
        return ModelInferRequest.FromString(data)
    except DecodeError as error:
        raise Unreadable from error


def _set_offsets(request: InferRequest, parts: MessageParts, offset: int) -> None:
    """Set the arena offsets of the tensors that are views of the message."""
    starts = {id(view): start for view, start in zip(parts.raw, parts.starts, strict=True)}
    for tensor in request.inputs:
        start = starts.get(id(tensor.data))
        if start is not None:
            tensor.offset = offset + start


def _match(template: _Template, data: Buffer) -> list[InferTensor] | None:
    """Return the inputs of a message; None if other bytes than the raw contents differ from the template's.

    The message may be longer: a template is found under the length of a message with an empty id, which takes bytes.
    """
    position = len(template.head)
    if data[:position] != template.head:
        return None
    view, tensors = memoryview(data), []
    for known in template.inputs:
        start = position + len(known.before)
        if known.size < 0 or data[position:start] != known.before:
            return None
        position = start + known.size
        tensors.append(InferTensor(known.name, known.datatype, known.shape, view[start:position]))
    return tensors if position == len(data) else None


def _fill(template: _Template, parts: MessageParts) -> InferRequest | None:
    """Build a request from a template; return None if its raw contents do not match the template."""
    raw = parts.raw
    if len(raw) != len(template.inputs):
        return None
    one, tensors = template.request, []
    for known, data in zip(template.inputs, raw, strict=True):
        if known.size < 0:
            check_strings(data, known.elements, known.name, one.model_name, parts.id)
        elif known.size != len(data):
            return None
        tensors.append(InferTensor(known.name, known.datatype, known.shape, data))
    return copy_request(one, parts.id, tensors)
