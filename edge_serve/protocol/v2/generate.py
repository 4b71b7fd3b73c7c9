"""The bodies of `generate` and `generate_stream`: a flat JSON object for the request, and one for each response.

Rules: triton-inference-server/server src/http_server.cc, GenerateRequestClass. A member with the name of an input
becomes its tensor; all others become request parameters, `sequence_id`, `priority` and the like among them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import orjson

from edge_serve.errors import EdgeServeError, InvalidArgument, Unparsable
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import Buffer, DataType, InferTensor, Shape, element_count
from edge_serve.protocol.inference.cost import NO_LIMITS, WorkLimits, check_json
from edge_serve.protocol.inference.validate import prefix, validate
from edge_serve.protocol.v2 import infer_tensors, json_text
from edge_serve.protocol.v2.infer import refuse_json_size
from edge_serve.protocol.v2.infer_header import check_parameter_type

#: the member whose members are read like those of the whole object
_NESTED = "parameters"


def read(
    body: Buffer, signature: Signature, version: str, max_input_size: int, limits: WorkLimits = NO_LIMITS
) -> InferRequest:
    """Decode and validate a request.

    Args:
        version: as in the URL, "" for the highest.
        max_input_size: --http-max-input-size, for the body and for all tensors in it together.

    Raises:
        EdgeServeError: with Triton's text and status.
        TooExpensive: the body is longer than `limits` allow.
    """
    if len(body) > max_input_size:
        raise refuse_json_size(len(body), max_input_size)
    check_json(len(body), signature, limits)
    document = json_text.parse(body)
    if type(document) is not dict:
        raise Unparsable("attempt to get members for non-object")
    request = InferRequest(signature.model_name, version)
    if "id" in document:
        request.id = json_text.as_string(document["id"], "Unable to parse 'id': ")
    _check_repeated(bytes(body), request, signature)
    reader = _Reader(request, signature, max_input_size)
    for name, value in document.items():
        if name == _NESTED:
            reader.read_nested(value)
        else:
            reader.read(name, value)
    validate(request, signature)
    return request


def _check_repeated(raw: bytes, request: InferRequest, signature: Signature) -> None:
    """Refuse an input that is given twice. The parser keeps the last of equal names, so the text may be read again."""
    if not any(raw.count(b'"%b"' % name.encode()) > 1 for name in signature.inputs):
        return
    try:
        pairs = json.loads(raw, object_pairs_hook=_Pairs, parse_int=float)
    except (ValueError, RecursionError):
        return  # a text that only orjson accepts
    _check_names(pairs, request, signature)
    nested = dict(pairs).get(_NESTED)
    if type(nested) is _Pairs:
        with _name_nested():
            _check_names(nested, request, signature)


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, repeated names included."""


def _check_names(pairs: _Pairs, request: InferRequest, signature: Signature) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen and name in signature.inputs:
            raise _exists(request, name)
        seen.add(name)


@contextlib.contextmanager
def _name_nested() -> Iterator[None]:
    """Say in errors that they concern the nested object."""
    try:
        yield
    except EdgeServeError as error:
        raise type(error)(f"Converting keyword: '{_NESTED}': {error.message}") from None


def _exists(request: InferRequest, name: str) -> InvalidArgument:
    return InvalidArgument(f"{prefix(request.id)}input '{name}' already exists in request")


class _Reader:
    """Reads the members of the JSON object into a request."""

    def __init__(self, request: InferRequest, signature: Signature, max_input_size: int) -> None:
        self._request = request
        self._signature = signature
        self._max = max_input_size
        self._size = 0

    def read_nested(self, members: Any) -> None:
        """Read the members of the object `parameters`."""
        if _NESTED in self._signature.inputs:
            raise InvalidArgument(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        if type(members) is not dict:
            text = "attempt to access JSON non-object as object"
            raise Unparsable(f"Expected JSON object for keyword: '{_NESTED}': {text}")
        with _name_nested():
            for name, value in members.items():
                self.read(name, value)

    def read(self, name: str, value: Any) -> None:
        """Read one member: an input or a parameter."""
        spec = self._signature.inputs.get(name)
        if spec is None:
            self._request.parameters[name] = check_parameter_type(name, value)
            return
        if any(tensor.name == name for tensor in self._request.inputs):
            raise _exists(self._request, name)
        self._request.inputs.append(self._read_tensor(spec, value))

    def _read_tensor(self, spec: TensorSpec, value: Any) -> InferTensor:
        values = value if type(value) is list else [value]
        dims = (-1, *spec.dims) if self._signature.max_batch_size > 0 else spec.dims
        if spec.datatype is DataType.BYTES:  # the order of Triton's checks
            data = infer_tensors.read(values, spec.datatype, (), spec.name)
            self._count(spec, len(data))
            shape = deduce_shape(len(values), dims, spec.name)
        else:
            self._count(spec, len(values) * spec.datatype.size)
            shape = deduce_shape(len(values), dims, spec.name)
            data = infer_tensors.read(values, spec.datatype, shape, spec.name)
        return InferTensor(spec.name, spec.datatype, shape, data)

    def _count(self, spec: TensorSpec, size: int) -> None:
        if self._size + size > self._max:
            raise InvalidArgument(
                f"request size of {self._size} bytes with input '{spec.name}' of size {size} bytes exceeds the maximum "
                f"allowed input size of {self._max}. Use --http-max-input-size to increase the limit."
            )
        self._size += size


def deduce_shape(count: int, dims: Shape, name: str) -> Shape:
    """Return the shape of `count` elements: the innermost variable dimension takes all that the fixed ones leave.

    Raises:
        InvalidArgument: no shape has this number of elements.
    """
    fixed = element_count([dim for dim in dims if dim != -1])
    fits = fixed > 0 and count % fixed == 0 if -1 in dims else count == fixed
    if not fits:
        raise InvalidArgument(f"The schema can not convert input '{name}' to tensor with proper shape")
    rest = count // fixed if -1 in dims else 1
    shape = list(dims)
    for i in reversed(range(len(shape))):
        if shape[i] == -1:
            shape[i], rest = rest, 1
    return tuple(shape)


def write(response: InferResponse) -> bytes:
    """Encode a response as a JSON object: members in alphabetical order, outputs with one element as scalars.

    Raises:
        InvalidArgument: an output cannot be encoded as JSON.
        Internal: the bytes of an output do not match its shape.
    """
    members: dict[str, bytes] = {"id": orjson.dumps(response.id)} if response.id else {}
    members["model_name"] = orjson.dumps(response.model_name)
    members["model_version"] = orjson.dumps(response.model_version)
    for name, value in response.parameters.items():
        # json prints NaN and Infinity, as Triton does
        members.setdefault(name, json.dumps(value).encode() if type(value) is float else orjson.dumps(value))
    for tensor in response.outputs:
        if tensor.name not in members:
            text = infer_tensors.write(tensor.data, tensor.datatype, tensor.shape, tensor.name)
            members[tensor.name] = text[1:-1] if element_count(tensor.shape) == 1 else text
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(name), members[name]) for name in sorted(members)]) + b"}"


def encode_event(data: bytes) -> bytes:
    """Encode a server-sent event."""
    return b"data: " + data + b"\n\n"
