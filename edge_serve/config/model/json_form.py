"""ModelConfig <-> Triton's JSON: the `/config` endpoint, load overrides, and the form in which workers receive it.

Protobuf's JSON with the original field names, all scalar fields printed, and 64-bit integers as numbers where Triton
has made them numbers (core src/model_config_utils.cc, ModelConfigToJson); elsewhere they stay strings. Configurations
that clients send are read as protobuf's C++ parser reads them (JsonToModelConfig), which Triton uses and clients count
on: bare keys, single quotes, and commas before a closing bracket are accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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

#: errors of protobuf's JSON reader for values of the wrong shape
_READER_ERRORS = (json_format.Error, ValueError, TypeError, AttributeError, OverflowError, RecursionError)


def model_config_to_json(config: pb.ModelConfig) -> dict[str, Any]:
    """`config` as Triton's JSON object."""
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
    """The configuration in Triton's JSON, text or already parsed. Enum names in any case, quoted integers accepted.

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
    """The standard library's reader, which takes NaN and Infinity (histogram buckets); then what is looser still."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            return loads_loosely(text if isinstance(text, str) else text.decode())
        except (ValueError, RecursionError):
            raise InvalidArgument(f"not JSON: {error}") from error


def _as_triton_prints(document: dict[str, Any], message: Descriptor) -> None:
    """The strings that protobuf prints for 64-bit integers become numbers; fields stand as the .proto declares them.

    Protobuf's Python writer puts the fields with default values last; scripts that look for a piece of text in the
    answer of Triton, whose writer is C++, count on the order.
    """
    for field in message.fields:
        if field.name not in document:
            continue
        value = document.pop(field.name)
        if field.message_type is not None:
            _each_message(field.message_type, value, _as_triton_prints)
        elif field.type in _LONG and field.full_name not in _STAY_STRINGS:
            value = [int(item) for item in value] if isinstance(value, list) else int(value)
        document[field.name] = value


def _as_read_here(document: dict[str, Any], message: Descriptor) -> dict[str, Any]:
    """A copy of `document` with what protobuf's Python reader wants and its C++ reader does without: enum names spelt
    as in the .proto, and a list also around the only value of a repeated field."""
    result = dict(document)
    for name, value in document.items():
        field = message.fields_by_name.get(name) or message.fields_by_camelcase_name.get(name)
        if field is None:
            continue
        if field.message_type is not None:
            result[name] = _each_message(field.message_type, value, _as_read_here)
        elif field.enum_type is not None:
            result[name] = _spell(value, field.enum_type)
        if _only_value(value, field):
            result[name] = [result[name]]
    return result


def _only_value(value: Any, field: FieldDescriptor) -> bool:
    """Whether the value belongs to a repeated field and is written without a list."""
    if field.default_value != []:  # which it is for repeated fields, in every version of protobuf
        return False
    if field.message_type is None:
        return not isinstance(value, (list, dict, NoneType))
    return isinstance(value, dict) and not field.message_type.GetOptions().map_entry


def _spell(value: Any, enum: EnumDescriptor) -> Any:
    if isinstance(value, list):
        return [_spell(item, enum) for item in value]
    if isinstance(value, str) and value not in enum.values_by_name:
        upper = value.upper().replace("-", "_")
        return upper if upper in enum.values_by_name else value
    return value


def _each_message(kind: Descriptor, value: Any, act: Callable[[dict[str, Any], Descriptor], Any]) -> Any:
    """`act` on each object in the JSON of a field of type `kind`, a map's values included; the results in its form.

    What is not an object is left for protobuf's reader to refuse.
    """
    if not kind.GetOptions().map_entry:
        parts = value if isinstance(value, list) else [value]
        done = [act(part, kind) if isinstance(part, dict) else part for part in parts]
        return done if isinstance(value, list) else done[0]
    values = kind.fields_by_name["value"].message_type
    if values is None or not isinstance(value, dict):
        return value
    return {key: act(part, values) if isinstance(part, dict) else part for key, part in value.items()}


#: Strings and words are matched as a whole or not at all: the time is linear in the length of any text. A string that
#: does not end is one piece.
_PIECE = re.compile(
    r"""
      "(?:[^"\\]|\\.)*(?:"|\\?\Z)                    # a string stays as it is
    | '((?:[^'\\]|\\.)*)(?:'|\\?\Z)                  # 1: a string in single quotes
    | (?<![\w$])([A-Za-z_$][\w$]*)(?![\w$])(?=\s*:)   # 2: a bare key
    | ,(?=\s*[\]}])                                   # a comma too many
    """,
    re.VERBOSE | re.DOTALL,
)


def loads_loosely(text: str) -> Any:
    """The value that `text` holds; NaN and Infinity too.

    Raises:
        ValueError, RecursionError: not JSON, even so.
    """
    return json.loads(_PIECE.sub(_write_strictly, text))


def _write_strictly(piece: re.Match[str]) -> str:
    quoted, key = piece.group(1, 2)
    if key is not None:
        return f'"{key}"'
    if quoted is not None:
        return '"' + quoted.replace("\\'", "'").replace('"', '\\"') + '"'
    return "" if piece.group() == "," else piece.group()
