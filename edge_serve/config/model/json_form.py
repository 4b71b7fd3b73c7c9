"""ModelConfig <-> Triton's JSON: the `/config` endpoint, load overrides, and the form in which workers receive it.

Protobuf's JSON with the original field names, all scalar fields printed, and 64-bit integers as numbers where Triton
has made them numbers (core src/model_config_utils.cc, ModelConfigToJson); elsewhere they stay strings. Configurations
that clients send are read as protobuf's C++ parser reads them (JsonToModelConfig), which Triton uses and clients count
on: bare keys, single quotes, and commas before a closing bracket are accepted, also line breaks and unknown escapes in
strings, booleans in quotes, and null for an element.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any

import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.text import reword
from edge_serve.errors import InvalidArgument

#: 64-bit fields which Triton leaves as protobuf prints them: strings
_STAY_STRINGS = frozenset(
    {
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelSequenceBatching.InitialState.dims",
    }
)
_ROOT = pb.DESCRIPTOR.message_types_by_name["ModelConfig"]
_LONG = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64)
#: booleans as protobuf's C++ reader takes them in quotes, in any case
_BOOLEANS = dict.fromkeys(("true", "t", "yes", "y", "1"), True) | dict.fromkeys(("false", "f", "no", "n", "0"), False)

#: errors of protobuf's JSON reader for values of the wrong shape
_READER_ERRORS = (json_format.Error, ValueError, TypeError, AttributeError, OverflowError, RecursionError)


def model_config_to_json(config: pb.ModelConfig) -> dict[str, Any]:
    """Convert `config` into Triton's JSON object."""
    document: dict[str, Any] = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _as_triton_prints(document, _ROOT)
    ensemble = document.get("ensemble_scheduling")
    # newer than the Triton releases most clients know: printed only where it says something
    if ensemble and not ensemble["max_inflight_requests"]:
        del ensemble["max_inflight_requests"]
    return document


def model_config_from_json(document: bytes | str | dict[str, Any]) -> pb.ModelConfig:
    """Read a configuration in Triton's JSON, text or parsed. Enum names may have any case, and integers quotes.

    Raises:
        InvalidArgument: not JSON, not an object, an unknown field, or a value of the wrong type.
    """
    if not isinstance(document, dict):
        document = _parse(document)
    try:
        ready = _as_read_here(document, _ROOT)
        return json_format.ParseDict(ready, pb.ModelConfig(), ignore_unknown_fields=False)
    except _READER_ERRORS as error:
        raise InvalidArgument(f"not a model configuration: {reword(str(error))}") from error


def _parse(text: bytes | str) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        document = _parse_loosely(text)
    if not isinstance(document, dict):
        raise InvalidArgument(f"found a JSON {type(document).__name__}, expected an object with a model configuration")
    return document


def _parse_loosely(text: bytes | str) -> Any:
    """Parse with the standard library, which accepts NaN and Infinity (histogram buckets) and control characters in
    strings, and else as `loads_loosely` does."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        try:
            return loads_loosely(text if isinstance(text, str) else text.decode())
        except (ValueError, RecursionError):
            raise InvalidArgument(f"not JSON: {error}") from error


def _as_triton_prints(document: dict[str, Any], message: Descriptor) -> None:
    """Turn the strings that protobuf prints for 64-bit integers into numbers, and give floats Triton's digits.

    Put the fields in the order of the .proto, the values of a oneof after the others. Protobuf's Python writer puts
    the fields with default values last, but scripts search the answer of Triton, whose writer is C++, for pieces of
    text that depend on the order.
    """
    for field in sorted(message.fields, key=lambda field: not (field.containing_oneof is None or field.message_type)):
        if field.name not in document:
            continue
        value = document.pop(field.name)
        if field.message_type is not None:
            _each_message(field.message_type, value, _as_triton_prints)
        elif field.type in _LONG and field.full_name not in _STAY_STRINGS:
            value = _each(int, value)
        elif field.type == FieldDescriptor.TYPE_FLOAT:
            value = _each(_print_float, value)
        document[field.name] = value


def _each(act: Callable[[Any], Any], value: Any) -> Any:
    """Apply `act` to the value of a field, or to each of a repeated one."""
    return [act(item) for item in value] if isinstance(value, list) else act(value)


def _print_float(value: Any) -> Any:
    """Return an FP32 value with the digits of protobuf's C++ text: 6 if they suffice, else 9."""
    if not isinstance(value, float):  # NaN and infinities are strings
        return value
    exact = _as_fp32(value)
    text = f"{exact:.6g}"
    return json.loads(text if _as_fp32(float(text)) == exact else f"{exact:.9g}")


def _as_fp32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _as_read_here(document: dict[str, Any], message: Descriptor) -> dict[str, Any]:
    """Return a copy of `document` with all that protobuf's Python reader needs and its C++ reader does not: enum names
    as in the .proto, booleans without quotes, a value in place of null, and a list around the only value of a repeated
    field."""
    result = dict(document)
    for name, value in document.items():
        field = message.fields_by_name.get(name) or message.fields_by_camelcase_name.get(name)
        if field is None:
            continue
        if field.message_type is not None:
            result[name] = _each_message(field.message_type, value, _as_read_here)
        elif field.enum_type is not None:
            result[name] = _each(partial(_spell, enum=field.enum_type), value)
        elif field.type == FieldDescriptor.TYPE_BOOL:
            result[name] = _each(_read_boolean, value)
        if _only_value(value, field):
            result[name] = [result[name]]
    return result


def _only_value(value: Any, field: FieldDescriptor) -> bool:
    """Return whether the value belongs to a repeated field and is written without a list."""
    if field.default_value != []:  # which it is for repeated fields, in every version of protobuf
        return False
    if field.message_type is None:
        return not isinstance(value, (list, dict, NoneType))
    return isinstance(value, dict) and not field.message_type.GetOptions().map_entry


def _spell(value: Any, enum: EnumDescriptor) -> Any:
    if isinstance(value, str) and value not in enum.values_by_name:
        upper = value.upper().replace("-", "_")
        return upper if upper in enum.values_by_name else value
    return value


def _read_boolean(value: Any) -> Any:
    return _BOOLEANS.get(value.lower(), value) if isinstance(value, str) else value


def _each_message(kind: Descriptor, value: Any, act: Callable[[dict[str, Any], Descriptor], Any]) -> Any:
    """Return the value of a field of type `kind` with `act` applied to each object in it, a map's values included.

    As in Triton, null is no element of a list, and the default value in a map. What is not an object is left for
    protobuf's reader to refuse.
    """
    if not kind.GetOptions().map_entry:
        if isinstance(value, list):
            return [act(part, kind) if isinstance(part, dict) else part for part in value if part is not None]
        return act(value, kind) if isinstance(value, dict) else value
    if not isinstance(value, dict):
        return value
    values = kind.fields_by_name["value"]
    default: Any = values.default_value if values.message_type is None else {}
    full = {key: default if part is None else part for key, part in value.items()}
    if values.message_type is None:
        return full
    return {key: act(part, values.message_type) if isinstance(part, dict) else part for key, part in full.items()}


#: Strings and words are matched as a whole or not at all: the time is linear in the length of any text. A string that
#: does not end is one piece.
_PIECE = re.compile(
    r"""
      "((?:[^"\\]|\\.)*)(?:"|\\?\Z)                  # 1: a string
    | '((?:[^'\\]|\\.)*)(?:'|\\?\Z)                  # 2: a string in single quotes
    | (?<![\w$])([A-Za-z_$][\w$]*)(?![\w$])(?=\s*:)   # 3: a bare key
    | ,(?=\s*[\]}])                                   # a comma too many
    """,
    re.VERBOSE | re.DOTALL,
)


#: in a string: an escape, or a double quote that is none
_ESCAPE = re.compile(r'\\(.)|"', re.DOTALL)


def loads_loosely(text: str) -> Any:
    """Parse JSON as protobuf's C++ reader does; NaN and Infinity too.

    Raises:
        ValueError, RecursionError: not JSON, even so.
    """
    return json.loads(_PIECE.sub(_write_strictly, text), strict=False)


def _write_strictly(piece: re.Match[str]) -> str:
    if piece.lastindex is None:  # the comma
        return ""
    if piece.lastindex == 3:
        return f'"{piece[3]}"'
    return f'"{_ESCAPE.sub(_write_escape, piece[piece.lastindex])}"'


def _write_escape(escape: re.Match[str]) -> str:
    """Return an escape of JSON as it is, and of any other the character, as the C++ reader does."""
    if escape[1] is None:
        return '\\"'
    if escape[1] == "v":
        return "\v"
    return escape[0] if escape[1] in '"\\/bfnrtu' else escape[1]
