"""Wire format between the front end and a codec process: one job and its answer.

    DECODE, ENCODE  header | bytes of the next two | signature (JSON) | question (JSON) | bytes that are in no arena
    CODED           header | answer (JSON)

A tensor is `[name, number of the data type, shape, offset in the arena or -1, bytes]`. A tensor in a client's shared
memory, which a codec process does not map, has the offset -2; an input has the region's name and the offset there too.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

from edge_serve.errors import Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse, RequestedOutput
from edge_serve.messages.shared_memory import Place
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import BY_NUMBER, Buffer, InferTensor, Shared, Unseen, is_unseen
from edge_serve.workers.wire.frames import HEADER, LONGEST, VERSION, Frame, FrameError, parse_json

_SIZES = struct.Struct("<II")
#: the offset of a tensor in a client's shared memory
_SHARED = -2
#: offset, bytes -> the memory there
Look = Callable[[int, int], Buffer]

_PARSE_ERRORS = (KeyError, IndexError, ValueError, TypeError, AttributeError)


def pack_job(kind: int, number: int, signature: bytes, value: dict[str, Any], loose: Sequence[Buffer]) -> list[Buffer]:
    """Return a DECODE or ENCODE frame as buffers to be sent one after another.

    Args:
        loose: bytes of the body or the tensors that are in no arena.

    Raises:
        Unavailable: the frame would be too long.
    """
    text = json.dumps(value).encode()
    size = _SIZES.size + len(signature) + len(text) + sum(map(len, loose))
    if size > LONGEST:
        raise Unavailable(f"{size} bytes are more than the {LONGEST} that can be coded outside of an arena")
    head = HEADER.pack(size, VERSION, kind, 0, number) + _SIZES.pack(len(signature), len(text)) + signature + text
    return [head, *loose]


def unpack_job(received: Frame) -> tuple[bytes, dict[str, Any], memoryview]:
    """Return the signature, the value and the loose bytes of a DECODE or ENCODE frame."""
    view = memoryview(received.payload)
    first, second = _SIZES.unpack_from(view)
    at = _SIZES.size
    signature, text = bytes(view[at : at + first]), view[at + first : at + first + second]
    return signature, parse_json(text), view[at + first + second :]


# ---- signatures ---------------------------------------------------------------------------------------------------


def pack_signature(signature: Signature) -> bytes:
    """Return a signature without its labels and reshapes, which decoding does not need."""

    def spec(one: TensorSpec) -> dict[str, Any]:
        return {
            "name": one.name,
            "datatype": one.datatype.value,
            "dims": one.dims,
            "optional": one.optional,
            "allow_ragged_batch": one.allow_ragged_batch,
            "is_shape_tensor": one.is_shape_tensor,
        }

    value = {field.name: getattr(signature, field.name) for field in dataclasses.fields(signature)}
    value["inputs"] = [spec(one) for one in signature.inputs.values()]
    value["outputs"] = [spec(one) for one in signature.outputs.values()]
    value["correlation_id_type"] = signature.correlation_id_type and signature.correlation_id_type.value
    return json.dumps(value).encode()


def unpack_signature(text: bytes) -> Signature:
    """Return the signature that `pack_signature` has packed."""

    def specs(values: list[dict[str, Any]]) -> dict[str, TensorSpec]:
        made = {}
        for one in values:
            shaped = {"datatype": BY_NUMBER[one["datatype"]], "dims": tuple(one["dims"])}
            made[one["name"]] = TensorSpec(**{**one, **shaped})
        return made

    value = parse_json(text)
    value["inputs"], value["outputs"] = specs(value["inputs"]), specs(value["outputs"])
    number = value["correlation_id_type"]
    value["correlation_id_type"] = None if number is None else BY_NUMBER[number]
    return Signature(**value)


# ---- tensors ------------------------------------------------------------------------------------------------------


def pack_tensor(tensor: InferTensor, offset: int) -> list[Any]:
    """Describe a tensor whose bytes start at `offset`."""
    if type(tensor) is Shared:
        size = len(tensor.data)
        return [tensor.name, tensor.datatype.value, tensor.shape, _SHARED, size, tensor.region, tensor.place]
    return [tensor.name, tensor.datatype.value, tensor.shape, offset, len(tensor.data)]


def unpack_tensor(value: list[Any], look: Look) -> InferTensor:
    """Return the tensor that `pack_tensor` has described."""
    if value[3] == _SHARED:
        name, number, shape, _, size, region, place = value
        return Shared(name, BY_NUMBER[number], tuple(shape), Unseen.buffer(size), -1, region, place)
    name, number, shape, offset, size = value
    return InferTensor(
        name, BY_NUMBER[number], tuple(shape), look(offset, size) if size else b"", offset if size else -1
    )


# ---- requests -----------------------------------------------------------------------------------------------------


def pack_request(request: InferRequest, inputs: list[list[Any]]) -> dict[str, Any]:
    """Return a decoded request, whose tensors are described in `inputs`."""
    plain = {key: getattr(request, key) for key in _REQUEST_FIELDS}
    return {"inputs": inputs, "outputs": _pack_outputs(request), **plain}


def unpack_request(value: dict[str, Any], signature: Signature, version: str, look: Look) -> InferRequest:
    """Return the request that `pack_request` has packed; a codec process has validated it against `signature`.

    Raises:
        FrameError: the value is malformed.
    """
    try:
        plain = {key: value[key] for key in _REQUEST_FIELDS}
        return InferRequest(
            signature.model_name,
            version,
            inputs=[unpack_tensor(one, look) for one in value["inputs"]],
            outputs=_unpack_outputs(value["outputs"]),
            validated=signature,
            **plain,
        )
    except _PARSE_ERRORS as error:
        raise FrameError(f"no request: {type(error).__name__}: {error}") from error


_REQUEST_FIELDS = (
    "id", "parameters", "correlation_id", "flags", "priority", "timeout_us", "binary_default", "rows", "shared",
)  # fmt: skip


def _pack_outputs(request: InferRequest) -> list[list[Any]]:
    """Describe each requested output. Keep its place in shared memory only while that is a region's name: a codec
    process knows no regions."""
    values: list[list[Any]] = []
    for output in request.outputs:
        place, there = output.place, []
        if place is not None and isinstance(place.region, str):
            there = [place.region, place.offset, place.size, place.label]
        values.append([output.name, output.binary, output.classification, *there])
    return values


def _unpack_outputs(values: list[list[Any]]) -> list[RequestedOutput]:
    return [
        RequestedOutput(name, binary, classes, Place(*there) if there else None)
        for name, binary, classes, *there in values
    ]


# ---- responses ----------------------------------------------------------------------------------------------------


def pack_response(
    response: InferResponse,
    request: InferRequest,
    signature: Signature,
    accept: str,
    in_arena: bool,
    generate: bool = False,
) -> tuple[dict[str, Any], list[Buffer]]:
    """Return a response to be encoded, and the bytes of its tensors that are in no arena.

    Args:
        in_arena: the tensors lie in an arena, at their offsets.
        generate: the response answers `generate`.
    """
    outputs, loose = [], []
    for tensor in response.outputs:
        if is_unseen(tensor.data):
            outputs.append(pack_tensor(tensor, _SHARED))
            continue
        offset = tensor.offset if in_arena else -1
        outputs.append(pack_tensor(tensor, offset))
        if offset < 0 and len(tensor.data):
            loose.append(tensor.data)
    classified = {output.name for output in request.outputs if output.classification}
    labels = {name: spec.labels for name, spec in signature.outputs.items() if name in classified}
    value = {
        "model_name": response.model_name,
        "model_version": response.model_version,
        "id": response.id,
        "parameters": response.parameters,
        "outputs": outputs,
        "wanted": _pack_outputs(request),
        "binary_default": request.binary_default,
        "max_batch_size": signature.max_batch_size,
        "labels": labels,
        "accept": accept,
        "generate": generate,
    }
    return value, loose


def unpack_response(
    value: dict[str, Any], look: Look, loose: memoryview
) -> tuple[InferResponse, InferRequest, Signature]:
    """Return the response, request and signature that `pack_response` has packed, as far as encoding needs them."""
    outputs, position = [], 0
    for one in value["outputs"]:
        if one[3] >= 0:
            outputs.append(unpack_tensor(one, look))
        elif one[3] == _SHARED:
            outputs.append(InferTensor(one[0], BY_NUMBER[one[1]], tuple(one[2]), Unseen.buffer(one[4])))
        else:
            start, position = position, position + one[4]
            outputs.append(InferTensor(one[0], BY_NUMBER[one[1]], tuple(one[2]), loose[start:position]))
    name, version = value["model_name"], value["model_version"]
    response = InferResponse(name, version, value["id"], outputs, value["parameters"])
    request = InferRequest(name, outputs=_unpack_outputs(value["wanted"]), binary_default=value["binary_default"])
    labels = value["labels"]
    specs = {
        one.name: TensorSpec(one.name, one.datatype, (), labels=tuple(labels.get(one.name, ()))) for one in outputs
    }
    return response, request, Signature(name, version, "", value["max_batch_size"], {}, specs)
