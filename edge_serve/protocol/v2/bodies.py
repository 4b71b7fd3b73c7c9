"""The JSON bodies of all v2 operations except inference (server src/http_server.cc).

`orjson` encodes the records of `messages`, whose fields have the names of the members.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import orjson

from edge_serve.errors import InvalidArgument, Unavailable, Unparsable, Unsupported
from edge_serve.messages.infer import Parameter
from edge_serve.messages.metadata import IndexEntry, ModelMetadata, ServerMetadata
from edge_serve.messages.settings import LOG_FORMATS, TRACE_LEVELS, LogSettings, TraceChanges, TraceSettings
from edge_serve.messages.shared_memory import CudaRegionStatus, RegionStatus
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.v2 import json_text
from edge_serve.protocol.v2.json_text import NULL, as_array, as_bool, as_string, as_unsigned, find, member

#: the statistics that are durations, of a version and of a batch size
DURATIONS = (
    "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
)  # fmt: skip
BATCH_DURATIONS = ("compute_input", "compute_infer", "compute_output")


def metadata(of: ServerMetadata | ModelMetadata) -> bytes:
    """Encode the answer to GET /v2 or /v2/models/{m}."""
    return orjson.dumps(of)


def repository_index(entries: Iterable[IndexEntry]) -> bytes:
    """Encode the answer to POST /v2/repository/index, without empty fields."""
    return orjson.dumps([_index_entry(entry) for entry in entries])


def _index_entry(entry: IndexEntry) -> dict[str, str]:
    fields = {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
    return {name: value for name, value in fields.items() if value or name == "name"}


def statistics(models: Sequence[tuple[str, str, ModelStatistics]]) -> bytes:
    """Encode the answer to GET .../stats from (name, version, statistics) of each version."""
    return orjson.dumps({"model_stats": [_model_statistics(*model) for model in models]})


#: text around the statistics of the versions, which commas separate
STATISTICS_HEAD, STATISTICS_TAIL = b'{"model_stats":[', b"]}"


def statistics_of_each(models: Iterable[tuple[str, str, ModelStatistics]]) -> Iterator[bytes]:
    """Encode the statistics of each version on its own, for many versions."""
    return (orjson.dumps(_model_statistics(*model)) for model in models)


def _model_statistics(name: str, version: str, of: ModelStatistics) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "last_inference": of.last_inference_ms,
        "inference_count": of.inference_count,
        "execution_count": of.execution_count,
        "inference_stats": {duration: getattr(of, duration) for duration in DURATIONS},
        "response_stats": of.responses,
        "batch_stats": [
            {"batch_size": size, **{duration: getattr(of.batches[size], duration) for duration in BATCH_DURATIONS}}
            for size in sorted(of.batches)
        ],
        "memory_usage": [],
    }


def shared_memory(regions: Iterable[RegionStatus | CudaRegionStatus]) -> bytes:
    """Encode the answer to GET /v2/systemsharedmemory/status or /v2/cudasharedmemory/status, for one region or all."""
    return orjson.dumps(list(regions))


def read_shared_memory(body: Buffer) -> tuple[str, int, int]:
    """Return key, offset, and size of a region to register.

    Raises:
        Internal: the body is not JSON, or a member has the wrong type. InvalidArgument: the key or size is missing.
    """
    document = json_text.parse(body) if len(body) else {}
    key, offset, byte_size = (find(document, name) for name in ("key", "offset", "byte_size"))
    if key is None:
        raise InvalidArgument("Shared memory register request has no 'key' field")
    key_text, start = as_string(key), 0 if offset is None else as_unsigned(offset)
    if byte_size is None:
        raise InvalidArgument("Shared memory register request has no 'byte_size' field")
    return key_text, start, as_unsigned(byte_size)


def read_cuda_shared_memory(body: Buffer) -> tuple[bytes, int, int]:
    """Return handle, device, and size of a GPU's memory to register. A handle that is not base64 is empty.

    Raises:
        Internal: the body is not JSON, or a member is missing or has the wrong type. InvalidArgument: it has no handle.
    """
    document = json_text.parse(body) if len(body) else {}
    handle = find(document, "raw_handle")
    if handle is None:
        raise InvalidArgument("Shared memory register request has no 'raw_handle' field")
    text = as_string(member(handle, "b64", ""))
    byte_size, device = (as_unsigned(member(document, name, "")) for name in ("byte_size", "device_id"))
    try:
        return base64.b64decode(text, validate=True), device, byte_size
    except (binascii.Error, ValueError):
        return b"", device, byte_size


def read_index_request(body: Buffer) -> bool:
    """Return whether the client requests ready models only. An empty body requests all.

    Raises:
        Internal: the body is not JSON, or `ready` is not a boolean.
    """
    if not len(body):
        return False
    ready = find(json_text.parse(body), "ready")
    return False if ready is None else as_bool(ready)


def read_load_request(body: Buffer) -> dict[str, Parameter | bytes]:
    """Return the load parameters: `config` as text and `file:<path>` as bytes. An empty body has none.

    Raises:
        Internal: the body is not JSON, or has an unknown parameter. InvalidArgument: a file is not base64.
    """
    read: dict[str, Parameter | bytes] = {}
    for name, value in _find_parameters(body).items():
        text = as_string(value)
        if name == "config":
            read[name] = text
        elif name.startswith("file:"):
            read[name] = _decode_file(name, text)
        else:
            raise Unparsable("unexpected error on creating Triton parameter")
    return read


def _decode_file(name: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as wrong:
        raise InvalidArgument(f"load parameter '{name}' is not base64: {wrong}") from wrong


def read_unload_request(body: Buffer) -> bool:
    """Return the parameter `unload_dependents`.

    Raises:
        Internal: the body is not JSON, or the parameter is not a boolean.
    """
    value = find(find(json_text.parse(body), "parameters"), "unload_dependents") if len(body) else None
    return False if value is None else as_bool(value, "Unable to parse 'unload_dependents': ")


def _find_parameters(body: Buffer) -> dict[str, Any]:
    parameters = find(json_text.parse(body), "parameters") if len(body) else None
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise Unparsable("attempt to get members for non-object")
    return parameters


_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1


def log_settings(settings: LogSettings) -> bytes:
    """Encode the answer to GET and POST /v2/logging."""
    return orjson.dumps({f"log_{field.name}": getattr(settings, field.name) for field in fields(settings)})


def read_log_settings(body: Buffer, current: LogSettings) -> LogSettings:
    """Return the settings after POST /v2/logging; a field that is missing or null stays as it is.

    Raises:
        Internal: the body is not JSON, or a value has the wrong type.
        Unsupported: the body has `log_file`.
        Unavailable: there is no such `log_format`.
    """
    document = json_text.parse(body)
    if find(document, "log_file") not in (None, NULL):
        raise Unsupported("log file location can not be updated through network protocol")
    changes: dict[str, Any] = {}
    for field, read in _LOG_FIELDS.items():
        value = find(document, f"log_{field}")
        if value is not None and value is not NULL:
            changes[field] = read(value)
    if changes.get("format", LOG_FORMATS[0]) not in LOG_FORMATS:
        raise Unavailable(f"invalid argument for --log_format, got: {changes['format']}")
    return replace(current, **changes)


_LOG_FIELDS: dict[str, Callable[[Any], Any]] = {
    "info": as_bool,
    "warning": as_bool,
    "error": as_bool,
    "verbose_level": lambda value: min(as_unsigned(value), _INT32_MAX),
    "format": as_string,
}


def trace_settings(settings: TraceSettings) -> bytes:
    """Encode the answer to GET and POST .../trace/setting."""
    members: dict[str, Any] = {
        "trace_level": list(settings.level) or ["OFF"],
        "trace_rate": str(settings.rate),
        "trace_count": str(settings.count),
        "log_frequency": str(settings.log_frequency),
        "trace_file": settings.file,
        "trace_mode": "triton",
    }
    return orjson.dumps(members)


def read_trace_changes(body: Buffer) -> TraceChanges:
    """Return the changes that POST .../trace/setting requests; null clears a field.

    Raises:
        Internal: the body is not JSON, or a value has the wrong type.
        Unsupported: the body has `trace_file`.
        InvalidArgument: a value is invalid.
    """
    document = json_text.parse(body)
    if find(document, "trace_file") is not None:
        raise Unsupported("trace file location can not be updated through network protocol")
    changes: dict[str, Any] = {}
    cleared: set[str] = set()
    for field, (name, read) in _TRACE_FIELDS.items():
        value = find(document, name)
        if value is NULL:
            cleared.add(field)
        elif value is not None:
            changes[field] = read(value)
    return TraceChanges(**changes, cleared=frozenset(cleared))


def _read_levels(value: Any) -> tuple[str, ...] | None:
    """Return the levels, None if there are none; as in Triton, unknown words are ignored."""
    words = [as_string(word) for word in as_array(value)]
    if "OFF" in words:
        if len(words) > 1:
            raise InvalidArgument("Expect only one trace level 'OFF' is specified")
        return ()
    return tuple(level for level in TRACE_LEVELS if level in words) or None


def _read_number(name: str, least: int, most: int, value: Any) -> int:
    """Parse a number in a string."""
    text = as_string(value)
    if not re.fullmatch(r"\s*[+-]?[0-9]+", text):
        raise InvalidArgument(f"Unable to parse '{name}', got: {text}")
    number = int(text) if len(text) < 32 else most + 1
    if name == "trace_count" and -_INT32_MAX - 1 <= number < least:
        raise InvalidArgument(f"Unable to parse '{name}'. Expecting value >= {least}, got:{text}")
    if not least <= number <= most:
        raise InvalidArgument(f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}")
    return number


_TRACE_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "level": ("trace_level", _read_levels),
    "rate": ("trace_rate", partial(_read_number, "trace_rate", 0, _UINT32_MAX)),
    "count": ("trace_count", partial(_read_number, "trace_count", -1, _INT32_MAX)),
    "log_frequency": ("log_frequency", partial(_read_number, "log_frequency", 0, _UINT32_MAX)),
}
