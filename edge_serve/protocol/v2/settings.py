"""The bodies of `/v2/logging` and `/v2/trace/setting` (server src/http_server.cc, HandleLogging and HandleTrace)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from edge_serve.errors import InvalidArgument, Unavailable, Unsupported
from edge_serve.messages.settings import LOG_FORMATS, TRACE_LEVELS, LogSettings, TraceChanges, TraceSettings
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.v2 import json_text
from edge_serve.protocol.v2.json_text import NULL, as_array, as_bool, as_string, as_unsigned, find

_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1


def log_settings(settings: LogSettings) -> bytes:
    """Encode the answer to GET and POST /v2/logging."""
    return orjson.dumps(
        {
            "log_file": settings.file,
            "log_info": settings.info,
            "log_warning": settings.warning,
            "log_error": settings.error,
            "log_verbose_level": settings.verbose_level,
            "log_format": settings.format,
        }
    )


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


def _make_number_reader(name: str, least: int, most: int) -> Callable[[Any], int]:
    """Return a function that parses a number in a string."""

    def read(value: Any) -> int:
        text = as_string(value)
        if not re.fullmatch(r"\s*[+-]?[0-9]+", text):
            raise InvalidArgument(f"Unable to parse '{name}', got: {text}")
        number = int(text) if len(text) < 32 else most + 1
        if name == "trace_count" and -_INT32_MAX - 1 <= number < least:
            raise InvalidArgument(f"Unable to parse '{name}'. Expecting value >= {least}, got:{text}")
        if not least <= number <= most:
            raise InvalidArgument(f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}")
        return number

    return read


_TRACE_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "level": ("trace_level", _read_levels),
    "rate": ("trace_rate", _make_number_reader("trace_rate", 0, _UINT32_MAX)),
    "count": ("trace_count", _make_number_reader("trace_count", -1, _INT32_MAX)),
    "log_frequency": ("log_frequency", _make_number_reader("log_frequency", 0, _UINT32_MAX)),
}
