"""Converts a ModelInferRequest message into an `InferRequest`, with Triton's order of checks and its texts
(server src/grpc/infer_handler.cc, `SetInferenceRequestMetadata`, and infer_handler.h, `InferGRPCToInput`).

The message comes without its raw contents: `infer` passes them as views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, Parameter, RequestedOutput
from edge_serve.messages.shared_memory import Regions
from edge_serve.messages.tensors import BY_NAME, Buffer, DataType, InferTensor, Shared, Unseen, join_bytes
from edge_serve.protocol.grpc.grpc_service_pb2 import InferParameter, InferTensorContents, ModelInferRequest
from edge_serve.protocol.inference.validate import MAX_RANK, check_datatype, check_id_length, prefix

EMPTY_FINAL = "triton_enable_empty_final_response"

#: field of InferTensorContents -> its type in error messages, and the NumPy type of its values
_CONTENTS = {
    "bool_contents": ("BOOL", "?"), "int_contents": ("INT32", "<i4"), "int64_contents": ("INT64", "<i8"),
    "uint_contents": ("UINT32", "<u4"), "uint64_contents": ("UINT64", "<u8"), "fp32_contents": ("FP32", "<f4"),
    "fp64_contents": ("FP64", "<f8"), "bytes_contents": ("BYTES", "O"),
}  # fmt: skip
#: datatype -> the field with its values; FP16 and BF16 have none
_FIELDS = {
    DataType.BOOL: "bool_contents", DataType.INT8: "int_contents", DataType.INT16: "int_contents",
    DataType.INT32: "int_contents", DataType.INT64: "int64_contents", DataType.UINT8: "uint_contents",
    DataType.UINT16: "uint_contents", DataType.UINT32: "uint_contents", DataType.UINT64: "uint64_contents",
    DataType.FP32: "fp32_contents", DataType.FP64: "fp64_contents", DataType.BYTES: "bytes_contents",
}  # fmt: skip
_INPUT = "unexpected explicit tensor data for input tensor"


def read(message: ModelInferRequest, raw: Sequence[Buffer], regions: Regions) -> tuple[InferRequest, bool]:
    """Convert a message; also return whether the client wants an empty final response of a decoupled model.

    Raises:
        InvalidArgument: a value is invalid. NotFound: a shared memory region is unknown. Unsupported: the sequence id
            is too long.
    """
    request = InferRequest(message.model_name, message.model_version, message.id, binary_default=True)
    wants_final = _read_parameters(message.parameters, request)
    names: set[str] = set()
    taken = 0
    for item in message.inputs:
        if item.name in names:
            raise InvalidArgument(f"{prefix(request.id)}input '{item.name}' already exists in request")
        names.add(item.name)
        tensor, taken = _read_input(item, raw, taken, request.model_name, regions)
        request.shared |= type(tensor) is Shared
        request.inputs.append(tensor)
    if taken < len(raw):
        raise InvalidArgument(
            f"expected {taken} entries of raw_input_contents for model '{request.model_name}', one for each input that "
            f"is not in shared memory, got {len(raw)}"
        )
    _read_outputs(message, request, regions)
    return request, wants_final


# ---- parameters -------------------------------------------------------------------------------------------------


def _read_parameters(parameters: Mapping[str, InferParameter], request: InferRequest) -> bool:
    wants_final = False
    for name, value in parameters.items():
        match name:
            case "sequence_id":
                found = _read(name, value, "int64_param", "string_param")
                # an integer as in a C cast
                request.correlation_id = check_id_length(found) if type(found) is str else found & (2**64 - 1)
            case "sequence_start":
                request.flags |= SEQUENCE_START if _read(name, value, "bool_param") else 0
            case "sequence_end":
                request.flags |= SEQUENCE_END if _read(name, value, "bool_param") else 0
            case "priority":
                request.priority = _read_integer(name, value, "int64_param", "uint64_param")
            case "timeout":
                request.timeout_us = _read_integer(name, value, "int64_param")
            case _ if name == EMPTY_FINAL:
                wants_final = _read(name, value, "bool_param")
            case _:
                request.parameters[name] = _read_custom(name, value)
    return wants_final


def _read(name: str, value: InferParameter, *kinds: str, tensor: str | None = None) -> Any:
    """Read a parameter of the request, or of a tensor."""
    kind = value.WhichOneof("parameter_choice")
    if kind not in kinds:
        where = "" if tensor is None else f" for tensor '{tensor}'"
        raise InvalidArgument(f"invalid value type for '{name}' parameter{where}, expected {' or '.join(kinds)}.")
    return getattr(value, kind)


def _read_integer(name: str, value: InferParameter, *kinds: str, tensor: str | None = None) -> int:
    number: int = _read(name, value, *kinds, tensor=tensor)
    if number < 0:
        raise InvalidArgument(f"invalid value for '{name}', expected value >= 0.")
    return number


def _read_custom(name: str, value: InferParameter) -> Parameter:
    kind = value.WhichOneof("parameter_choice")
    if name.startswith("triton_"):
        raise InvalidArgument(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            f"with 'triton_' are allowed: {EMPTY_FINAL}"
        )
    if kind is None or kind == "uint64_param":
        text = f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or string_param."
        raise InvalidArgument(text)
    parameter: Parameter = getattr(value, kind)
    return parameter


# ---- inputs -----------------------------------------------------------------------------------------------------


def _read_input(
    item: ModelInferRequest.InferInputTensor, raw: Sequence[Buffer], taken: int, model: str, regions: Regions
) -> tuple[InferTensor, int]:
    """Read an input; return its tensor, and how many raw contents are used now."""
    if len(item.shape) > MAX_RANK:
        raise InvalidArgument(f"input '{item.name}' has {len(item.shape)} dimensions, expected at most {MAX_RANK}")
    shape = tuple(item.shape)
    datatype = BY_NAME.get(item.datatype)
    part = _read_part(item.parameters, item.name)
    if part is not None:
        if item.HasField("contents"):
            raise InvalidArgument(
                f"unexpected 'content' provided when using shared memory for input tensor '{item.name}' for model "
                f"'{model}'"
            )
        place = regions.find(*part)
        known = check_datatype(datatype, item.name)
        return Shared(item.name, known, shape, Unseen.buffer(place.size), -1, place.region, place.offset), taken
    if item.HasField("contents") and raw:
        raise InvalidArgument(
            f"contents field must not be specified when using raw_input_contents for '{item.name}' for model '{model}'"
        )
    if item.HasField("contents"):
        data: Buffer = _read_typed(item.contents, datatype, item, model)
    elif taken < len(raw):
        data, taken = raw[taken], taken + 1
    else:
        raise InvalidArgument(f"unable to find data for input tensor '{item.name}' for model '{model}' in request.")
    return InferTensor(item.name, check_datatype(datatype, item.name), shape, data), taken


def _read_typed(
    contents: InferTensorContents, datatype: DataType | None, item: ModelInferRequest.InferInputTensor, model: str
) -> bytes:
    given = [field.name for field, _ in contents.ListFields()]
    if not given:
        return b""
    wanted = _FIELDS.get(datatype) if datatype is not None else None
    if wanted != given[0]:
        raise InvalidArgument(
            f"{_INPUT} '{item.name}' for model '{model}' of type '{_CONTENTS[given[0]][0]}', expected datatype "
            f"'{item.datatype}'"
        )
    if len(given) > 1:
        raise InvalidArgument(f"{_INPUT} '{item.name}' for model '{model}', binary data was already supplied.")
    values = getattr(contents, given[0])
    if datatype is DataType.BYTES:
        return join_bytes(values)
    assert datatype is not None, "it has a field"
    import numpy as np

    # values that are too large for narrower integers wrap, as in a C cast
    return np.array(values, dtype=_CONTENTS[given[0]][1]).astype(datatype.numpy, copy=False).tobytes()


def _read_part(parameters: Mapping[str, InferParameter], tensor: str) -> tuple[str, int, int] | None:
    """Return the region, offset, and size in bytes that the parameters of a tensor name; None if they name no region.

    Raises:
        InvalidArgument: a value is invalid, or they have one without the other.
    """
    region = None
    if (value := parameters.get("shared_memory_region")) is not None:
        region = _read("shared_memory_region", value, "string_param", tensor=tensor)
    numbers = {"shared_memory_offset": 0, "shared_memory_byte_size": -1}
    for name in numbers:
        if name not in parameters:
            continue
        if region is None:
            raise InvalidArgument(
                f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor}'"
            )
        numbers[name] = _read_integer(name, parameters[name], "int64_param", tensor=tensor)
    if region is None:
        return None
    offset, size = numbers.values()
    if size < 0:
        raise InvalidArgument(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor}'"
        )
    return region, offset, size


# ---- outputs ----------------------------------------------------------------------------------------------------


def _read_outputs(message: ModelInferRequest, request: InferRequest, regions: Regions) -> None:
    outputs: dict[str, RequestedOutput] = {}
    for item in message.outputs:
        output = _read_output(item, regions)
        first = outputs.setdefault(output.name, output)
        if output.classification:  # as in Triton, the first of a name counts, but the last that asks for classes
            outputs[output.name] = replace(first, classification=output.classification)
    request.outputs += outputs.values()
    request.shared |= any(output.place is not None for output in request.outputs)


def _read_output(output: ModelInferRequest.InferRequestedOutputTensor, regions: Regions) -> RequestedOutput:
    part = _read_part(output.parameters, output.name)
    classes = 0
    if "classification" in output.parameters:
        value = output.parameters["classification"]
        if value.WhichOneof("parameter_choice") != "int64_param":
            raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
        classes = value.int64_param
        if classes <= 0:
            raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
        if part is not None:
            raise InvalidArgument("output can't set both 'shared_memory_region' and 'classification'")
    place = None if part is None else regions.find(*part, output.name)
    return RequestedOutput(output.name, True, classes, place)
