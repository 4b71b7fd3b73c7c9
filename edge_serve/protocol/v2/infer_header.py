"""The JSON part of an inference request, with Triton's order of checks and its texts (server src/http_server.cc,
`ParseJsonTritonIO` and `ParseJsonTritonParams`).

Binary inputs come from the `Tail`, the bytes that follow the JSON part in the body. `split` cuts the text into the
members that differ between requests, and those that repeat. Clients write `id` and `parameters` (with a sequence's id
and flags) before `inputs`, or `parameters` after all else. Cut there, both pieces are JSON objects which together mean
the same as the whole. A cut that is not between members of the outermost object leaves a piece that is not JSON. So the
decoder reads `inputs` and `outputs` once, and not again for another request with the same text there.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from edge_serve.errors import InvalidArgument, NotFound, Unparsable
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, Parameter, RequestedOutput
from edge_serve.messages.shared_memory import Place, Regions
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import BY_NAME, DataType, InferTensor, Shape, Shared, Unseen, element_count, shape_text
from edge_serve.protocol.inference.validate import MAX_RANK, check_datatype, check_id_length, prefix
from edge_serve.protocol.v2 import infer_tensors
from edge_serve.protocol.v2.json_text import (
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    as_array,
    as_bool,
    as_string,
    as_unsigned,
    find,
    member,
)

#: Triton's own parameters; no header may be forwarded under their names
RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
_LENGTH = struct.Struct("<I")


class Tail:
    """The bytes after the JSON part, read from front to back.

    Attributes:
        body: the whole body.
        position: start of the next input in `body`.
        offset: start of the body in the tensor arena, -1 in ordinary memory.
        spans: (start, end) in `body` of each input so far; (-1, -1) for one in JSON.
    """

    __slots__ = ("body", "offset", "position", "spans")

    def __init__(self, body: memoryview, position: int, offset: int) -> None:
        self.body = body
        self.position = position
        self.offset = offset
        self.spans: list[tuple[int, int]] = []

    def take(self, size: int, name: str, model: str) -> tuple[memoryview, int]:
        """Return the next `size` bytes and their arena offset.

        Raises:
            InvalidArgument: the body is too short.
        """
        start, end = self.position, self.position + size
        if end > len(self.body):
            raise InvalidArgument(
                f"unexpected size for input '{name}', expecting {end - len(self.body)} additional bytes for model "
                f"'{model}'"
            )
        self.position = end
        self.spans.append((start, end))
        return self.body[start:end], -1 if self.offset < 0 else self.offset + start


def read(document: Any, tail: Tail, model: str, max_input_size: int, regions: Regions | None = None) -> InferRequest:
    """Return the request that `document` (a parsed JSON text) and `tail` describe.

    Args:
        regions: shared memory that the request may name; None = none.

    Raises:
        Internal: a member is missing or has the wrong JSON type (HTTP 500, as in Triton).
        InvalidArgument: a value is invalid. NotFound: there is no such shared memory region.
    """
    request = InferRequest(model)
    read_own(document, request)
    inputs = as_array(member(document, "inputs", "Unable to parse 'inputs': "), "Unable to parse 'inputs': ")
    names: set[str] = set()
    for item in inputs:
        tensor = _read_input(item, tail, request, max_input_size, regions)
        if tensor.name in names:
            raise InvalidArgument(f"{prefix(request.id)}input '{tensor.name}' already exists in request")
        names.add(tensor.name)
        request.inputs.append(tensor)
    if tail.position != len(tail.body):
        raise InvalidArgument(f"unexpected additional input data for model '{model}'")
    outputs = find(document, "outputs")
    if outputs is not None:
        _read_outputs(as_array(outputs, "Unable to parse 'outputs': "), request, regions)
    return request


def read_own(document: Any, request: InferRequest) -> None:
    """Read the members of a request besides tensors: `id` and `parameters`.

    Raises:
        Internal, InvalidArgument: as `read`.
    """
    request_id = find(document, "id")
    if request_id is not None:
        request.id = as_string(request_id, "Unable to parse 'id': ")
    parameters = find(document, "parameters")
    if parameters is not None:
        _read_parameters(parameters, request)


def read_forwarded(headers: Iterable[tuple[str, str]], pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the request headers that become parameters (`--http-header-forward-pattern`): their names contain a match.

    Raises:
        InvalidArgument: a reserved name matches.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        if pattern.search(name) is None:
            continue
        if name in RESERVED or name.startswith("triton_"):
            raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        found[name] = value
    return found


def _read_parameters(parameters: Any, request: InferRequest) -> None:
    if type(parameters) is not dict:
        raise Unparsable("failed to get request params.: attempt to get members for non-object")
    for name, value in parameters.items():
        match name:
            case "sequence_id" if type(value) is int and 0 <= value <= UINT64_MAX:
                request.correlation_id = value
            case "sequence_id":
                request.correlation_id = check_id_length(as_string(value, "Unable to parse 'sequence_id': "))
            case "sequence_start":
                request.flags |= SEQUENCE_START if as_bool(value, "Unable to parse 'sequence_start': ") else 0
            case "sequence_end":
                request.flags |= SEQUENCE_END if as_bool(value, "Unable to parse 'sequence_end': ") else 0
            case "priority":
                request.priority = as_unsigned(value, "Unable to parse 'priority': ")
            case "timeout":
                request.timeout_us = as_unsigned(value, "Unable to parse 'timeout': ")
            case "binary_data_output":
                request.binary_default = as_bool(value, "Unable to parse 'binary_data_output': ")
            case _ if name.startswith("triton_"):
                raise InvalidArgument(
                    "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
                )
            case _:
                request.parameters[name] = check_parameter_type(name, value)


def check_parameter_type(name: str, value: Any) -> Parameter:
    """Return the value of a parameter.

    Raises:
        InvalidArgument: the value is neither a number, a boolean, nor a string.
    """
    kind = type(value)
    if kind is int:
        return int(value) if INT64_MIN <= value <= INT64_MAX else float(value)
    if kind is str or kind is bool or kind is float:
        parameter: Parameter = value
        return parameter
    raise InvalidArgument(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


_SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)


def _read_input(
    item: Any, tail: Tail, request: InferRequest, max_input_size: int, regions: Regions | None
) -> InferTensor:
    data = find(item, "data")
    parameters = find(item, "parameters")
    size = find(parameters, "binary_data_size")
    region = find(parameters, "shared_memory_region")
    if (data is not None) + (size is not None) + (region is not None) != 1:
        fields = {"'data'": data, "'binary_data_size'": size, "'shared_memory_region'": region}
        given = [name for name, value in fields.items() if value is not None]
        raise InvalidArgument(f"{_SOURCES} set {' '.join(given)}" if given else f"{_SOURCES} no field is set")
    name = as_string(member(item, "name", "Unable to parse 'name': "), "Unable to parse 'name': ")
    type_name = as_string(member(item, "datatype", "Unable to parse 'datatype': "), "Unable to parse 'datatype': ")
    shape = _read_shape(item)
    datatype = BY_NAME.get(type_name)
    if region is not None:
        tail.spans.append((-1, -1))
        request.shared = True
        place = _find_place(parameters, region, regions)
        known = check_datatype(datatype, name)
        return Shared(name, known, shape, Unseen.buffer(place.size), -1, place.region, place.offset)
    if size is not None:
        count = as_unsigned(size, "Unable to parse 'binary_data_size': ")
        view, offset = tail.take(count, name, request.model_name)
        return InferTensor(name, check_datatype(datatype, name), shape, view, offset)
    tail.spans.append((-1, -1))
    packed = _read_data(data, name, datatype, shape, max_input_size)
    return InferTensor(name, check_datatype(datatype, name), shape, packed)


def _read_shape(item: Any) -> Shape:
    dims = as_array(member(item, "shape", "Unable to parse 'shape': "), "Unable to parse 'shape': ")
    if len(dims) > MAX_RANK:
        raise InvalidArgument(f"Unable to parse 'shape': found {len(dims)} dimensions, expected at most {MAX_RANK}")
    return tuple([as_unsigned(dim, "Unable to parse 'shape': ") for dim in dims])


def _read_data(data: Any, name: str, datatype: DataType | None, shape: Shape, max_input_size: int) -> bytes:
    if shape and max(shape) > INT64_MAX:
        raise InvalidArgument(
            f"invalid shape for input '{name}': shape {shape_text(shape)} contains one or more invalid dimensions"
        )
    count = element_count(shape) if shape else 0
    if count == 0:
        return b""
    if count > INT64_MAX:
        raise InvalidArgument(
            f"invalid shape for input '{name}': shape {shape_text(shape)} causes total element count to exceed maximum "
            f"size of {INT64_MAX}"
        )
    values = as_array(data, "Unable to parse 'data': ")
    datatype = check_datatype(datatype, name)
    if count * datatype.size > INT64_MAX:
        raise InvalidArgument(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({datatype.size}) "
            f"exceeds maximum allowed size ({INT64_MAX})"
        )
    if count * datatype.size > max_input_size:
        raise _refuse_size(name, count * datatype.size, max_input_size)
    packed = infer_tensors.read(values, datatype, shape, name)
    if len(packed) > max_input_size:  # BYTES
        raise _refuse_size(name, len(packed), max_input_size)
    return packed


def _refuse_size(name: str, size: int, limit: int) -> InvalidArgument:
    return InvalidArgument(
        f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def _read_outputs(items: list[Any], request: InferRequest, regions: Regions | None) -> None:
    outputs: dict[str, RequestedOutput] = {}
    for item in items:
        output = _read_output(item, regions)
        outputs.setdefault(output.name, output)  # as in Triton, the first of equal names counts
    request.outputs += outputs.values()
    request.shared |= any(output.place is not None for output in request.outputs)


def _read_output(item: Any, regions: Regions | None) -> RequestedOutput:
    parameters = find(item, "parameters")
    region = find(parameters, "shared_memory_region")
    binary = find(parameters, "binary_data")
    classification = find(parameters, "classification")
    if region is not None:
        if classification is not None:
            raise InvalidArgument("Output can't set both 'shared_memory_region' and 'classification'")
        if binary is not None and as_bool(binary, "Unable to set 'binary_data': "):
            raise InvalidArgument("Output can't set both 'shared_memory_region' and 'binary_data'")
    name = as_string(member(item, "name", "Unable to parse 'name': "), "Unable to parse 'name': ")
    classes = 0 if classification is None else as_unsigned(classification, "Unable to set 'classification': ")
    if region is not None:
        return RequestedOutput(name, place=_find_place(parameters, region, regions, name))
    return RequestedOutput(
        name, False if binary is None else as_bool(binary, "Unable to parse 'binary_data': "), classes
    )


def _find_place(parameters: Any, region: Any, regions: Regions | None, label: str = "") -> Place:
    """Return the part of a shared memory region that `parameters` name.

    Raises:
        NotFound, InvalidArgument: there is no such part.
    """
    name = as_string(region, "Unable to parse 'shared_memory_region': ")
    offset, size = find(parameters, "shared_memory_offset"), find(parameters, "shared_memory_byte_size")
    start = 0 if offset is None else as_unsigned(offset, "Unable to parse 'shared_memory_offset': ")
    nbytes = 0 if size is None else as_unsigned(size, "Unable to parse 'shared_memory_byte_size': ")
    if regions is None:
        raise NotFound(f"Unable to find shared memory region: '{name}'")
    return regions.find(name, start, nbytes, label)


_INPUTS, _PARAMETERS = b'"inputs"', b'"parameters"'
_OWN = {"id", "parameters"}
_SPACE = b" \t\r\n"


class Split(NamedTuple):
    """The two parts of a JSON text.

    Attributes:
        own: the members that belong to this request alone: `id` and `parameters`.
        common: the text of all other members.
    """

    own: dict[str, Any]
    common: bytes

    def is_clean(self) -> bool:
        """Return whether `common` has neither `id` nor `parameters` again. The text must have been read as a whole."""
        text = self.common.rstrip(_SPACE)
        members = _parse_members(b"{" + (text[:-1] + b"}" if text[-1:] == b"," else text))
        return "inputs" in members and not _OWN & members.keys()


def split(text: bytes) -> Split | None:
    """Split a JSON text; None if its members have another order."""
    start = text.find(_INPUTS)
    front = text[: max(start, 0)].rstrip(_SPACE)
    own: dict[str, Any] = {}
    if front != b"{" and not (front[-1:] == b"," and (own := _parse_members(front[:-1] + b"}"))):
        return None
    common = text[start:]
    last = common.rfind(_PARAMETERS)
    before = common[: max(last, 0)].rstrip(_SPACE)
    if before[-1:] == b"," and before[:-1].rstrip(_SPACE)[-1:] == b"]":  # after `inputs` or `outputs`
        behind = _parse_members(b"{" + common[last:])
        if behind:
            own, common = {**own, **behind}, before
    return Split(own, common) if own and own.keys() <= _OWN else None


def _parse_members(text: bytes) -> dict[str, Any]:
    """Return the members of a JSON object; none if the text is not one."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return {}
    return found if type(found) is dict else {}


def make_raw_input(signature: Signature, view: memoryview, offset: int) -> InferTensor:
    """Return the only input of a raw request, with its shape from the configuration and the number of bytes.

    Raises:
        InvalidArgument: the shape cannot be deduced.
    """
    if len(signature.inputs) != 1:
        raise InvalidArgument(
            f"{prefix('')}Raw request must only have 1 input (found 1) to be deduced but got {len(signature.inputs)} "
            f"inputs in '{signature.model_name}' model configuration"
        )
    (spec,) = signature.inputs.values()
    variable = spec.dims.count(-1)
    if variable > 1:
        raise InvalidArgument(
            f"{prefix('')}The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    batch = (1,) if signature.max_batch_size > 0 else ()
    fixed = element_count([dim for dim in spec.dims if dim != -1])
    if spec.datatype is DataType.BYTES:
        if variable or fixed != 1:
            raise InvalidArgument(
                f"{prefix('')}For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
            )
        return InferTensor(spec.name, spec.datatype, batch + spec.dims, b"".join((_LENGTH.pack(len(view)), view)))
    unit = fixed * spec.datatype.size
    shape = batch + tuple([len(view) // unit if dim == -1 else dim for dim in spec.dims])
    expected = element_count(shape) * spec.datatype.size
    if expected != len(view):
        raise InvalidArgument(
            f"{prefix('')}input byte size mismatch for input 'raw_input' for model '{signature.model_name}'. Expected "
            f"{expected}, got {len(view)}"
        )
    return InferTensor(spec.name, spec.datatype, shape, view, offset)
