"""The structured values of the server's settings, and how each is written on the command line.

The forms are Triton's (server src/command_line_parser.cc). Parsers raise ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from edge_serve.config.settings.kinds import SettingKind, shown
from edge_serve.messages.settings import TraceSettings
from edge_serve.records import frozen

#: the values of `--http-restricted-api` and `--grpc-restricted-protocol`
RESTRICTABLE = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
GRPC_HEADER_PREFIX = "triton-grpc-protocol-"
OPENTELEMETRY = "opentelemetry"
_METRICS_SETTINGS = ("counter_latencies", "summary_latencies", "summary_quantiles", "histogram_latencies")


@frozen
class BackendSetting:
    """`--backend-config=<backend>,<key>=<value>`; `backend` is "" when the setting is for all of them."""

    backend: str
    key: str
    value: str

    @property
    def text(self) -> str:
        """The setting as it is written."""
        return f"{self.backend}{self.backend and ','}{self.key}={self.value}"


@frozen
class Restriction:
    """Operations that need a header with a certain value; header names are compared in any case."""

    apis: tuple[str, ...]
    header: str
    value: str


@frozen
class RateLimitResource:
    """`--rate-limit-resource=<name>:<count>[:<device>]`; `device` None = on each device."""

    name: str
    count: int
    device: int | None = None


@frozen
class TraceConfig(TraceSettings):
    """The trace settings at the start; the trace settings endpoint changes them later.

    Attributes:
        mode: "triton" or OPENTELEMETRY.
    """

    mode: str = "triton"

    def without_export(self) -> TraceConfig:
        """Return the settings in force for mode opentelemetry: mode triton, and nothing is traced."""
        return replace(self, mode="triton", level=())


NO_TRACE = TraceConfig()


def _parse_backend_setting(text: str) -> BackendSetting:
    return BackendSetting(*_scoped(text, "[<backend>,]<setting>=<value>"))


#: settings of `--backend-config` that our backends read; those of other backends are not known here
_READ = {
    "onnxruntime": frozenset(
        ("default-max-batch-size", "enable-global-threadpool", "intra_op_thread_count", "inter_op_thread_count")
    ),
    "python": frozenset[str](),
    "tensorrt": frozenset(("coalesce-request-input", "execution-policy", "library", "plugins", "version-compatible"))
    | {"engine-build-secs", "engine-cache", "engine-cache-mb"},
}


def settings_of(backend: str, settings: Sequence[BackendSetting]) -> dict[str, str]:
    """Return `--backend-config` for one backend: the settings for all of them, and over these its own."""
    chosen = [one for one in settings if not one.backend] + [one for one in settings if one.backend == backend]
    return {one.key: one.value for one in chosen}


def unread_backend_settings(settings: Sequence[BackendSetting]) -> list[str]:
    """Return a line for the log about each setting of our own backends that they do not read.

    `backends.packs.notes_on_backends` looks for the others.
    """
    notes = []
    for setting in settings:
        name, known = setting.backend, _READ.get(setting.backend)
        if known is not None and setting.key not in known:
            reason = f"backend '{name}' reads {', '.join(sorted(known)) or 'no settings'}"
            notes.append(f"--backend-config={name},{shown(setting.key)} is accepted and ignored: {reason}")
    return notes


def _scoped(text: str, form: str) -> tuple[str, str, str]:
    """Split `[scope,]key=value` into its three parts. The value may have any characters."""
    left, equals, value = text.partition("=")
    scope, comma, key = left.rpartition(",")
    if not (equals and key and value) or (comma and not scope):
        raise ValueError(f"found '{shown(text)}', expected {form}")
    return scope, key, value


def _parse_metrics_setting(text: str) -> str:
    scope, key, _ = _scoped(text, "<setting>=<value>")
    if scope or key not in _METRICS_SETTINGS:
        raise ValueError(
            f"found '{shown(text)}', expected <setting>=<value> with one of {', '.join(_METRICS_SETTINGS)}"
        )
    return text


def _parse_rate_limit_resource(text: str) -> RateLimitResource:
    name, *numbers = text.split(":")
    try:
        count, *device = map(int, numbers)
    except ValueError:
        count, device = -1, []
    if not name or count < 0 or len(device) > 1:
        raise ValueError(f"found '{shown(text)}', expected <resource_name>:<count> or <resource_name>:<count>:<device>")
    return RateLimitResource(name, count, device[0] if device else None)


def _parse_gpu_share(text: str) -> tuple[int, float]:
    device, _, fraction = text.partition(":")
    try:
        found = int(device), float(fraction)
    except ValueError:
        found = -1, 0.0
    if found[0] < 0 or not 0.0 < found[1] <= 1.0:
        raise ValueError(f"found '{shown(text)}', expected <device_id>:<fraction>, the fraction above 0 and at most 1")
    return found


def _parse_restriction(header_prefix: str, text: str) -> Restriction:
    apis, colon, pair = text.partition(":")
    key, equals, value = pair.partition("=")
    if not (apis and colon and key and equals and value):
        raise ValueError(f"found '{shown(text)}', expected <apis>:<header>=<value>")
    for api in apis.split(","):
        if api not in RESTRICTABLE:
            raise ValueError(f"unknown restricted api '{shown(api)}', expected one of {', '.join(RESTRICTABLE)}")
    return Restriction(tuple(apis.split(",")), header_prefix + key, value)


def combine_restrictions(parts: Sequence[Restriction]) -> tuple[Restriction, ...]:
    """Return all restrictions, and refuse an operation that two of them have."""
    seen: set[str] = set()
    for api in [api for part in parts for api in part.apis]:
        if api in seen:
            raise ValueError(f"restricted api '{api}' can not be specified in multiple config groups")
        seen.add(api)
    return tuple(parts)


def _parse_origin(text: str) -> str:
    scheme, colon, host = text.partition("://")
    if text != "*" and (scheme not in ("http", "https") or not colon or not host or "/" in host or " " in host):
        raise ValueError(f"found '{shown(text)}', expected an origin as https://dashboard.example:8443, or *")
    return text


def _parse_cache_setting(text: str) -> str:
    name, key, value = _scoped(text, "<cache name>,<setting>=<value>")
    if not name:
        raise ValueError(f"No cache specified: found '{shown(text)}', expected <cache name>,<setting>=<value>")
    if name != "local":
        raise ValueError(f"unknown cache '{shown(name)}', expected local")
    if key != "size":
        raise ValueError(f"unknown setting '{shown(key)}' of cache '{name}', expected size")
    return value


def combine_cache(sizes: Sequence[str]) -> int | None:
    """Return the bytes of the response cache: the last size counts, and without one there is no cache."""
    if not sizes:
        return None
    size = sizes[-1]
    if not size.isascii() or not size.isdigit() or not int(size):
        raise ValueError(f"cache size: found '{shown(size)}', expected a positive number of bytes")
    return int(size)


def _parse_trace_setting(text: str) -> tuple[str, str, str]:
    mode, key, value = _scoped(text, "[<mode>,]<setting>=<value>")
    known = {"": ("rate", "level", "count", "mode"), "triton": ("file", "log-frequency")}
    if mode.lower() == OPENTELEMETRY:
        return OPENTELEMETRY, key, value
    if mode.lower() not in known:
        raise ValueError(f"unknown trace mode '{shown(mode)}', expected triton or opentelemetry")
    if key not in known[mode.lower()]:
        raise ValueError(f"unknown trace setting '{shown(key)}', expected one of {', '.join(known[mode.lower()])}")
    return mode.lower(), key, value


def combine_trace(parts: Sequence[tuple[str, str, str]]) -> TraceConfig:
    """Apply the settings one after the other. Levels add up, and OFF overrides all of them."""
    levels: list[str] = []
    changes: dict[str, Any] = {}
    for key, value in [(key.replace("-", "_"), value) for mode, key, value in parts if mode != OPENTELEMETRY]:
        if key == "level":
            levels.append(_trace_level(value))
        elif key == "mode":
            changes[key] = _trace_mode(value)
        else:
            changes[key] = value if key == "file" else _trace_number(key, value)
    if levels and "OFF" not in levels:
        changes["level"] = tuple(dict.fromkeys(levels))
    return TraceConfig(**changes)


def _trace_number(key: str, value: str) -> int:
    least = -1 if key == "count" else 0
    try:
        found = int(value)
    except ValueError:
        found = least - 1
    if found < least:
        raise ValueError(f"trace {key}: found '{shown(value)}', expected an integer of at least {least}")
    return found


#: levels by the words for them
_LEVELS = {
    **dict.fromkeys(("false", "off"), "OFF"),
    **dict.fromkeys(("true", "on", "min", "max", "timestamps"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}


def _trace_level(word: str) -> str:
    if word.lower() not in _LEVELS:
        raise ValueError(f"trace level: found '{shown(word)}', expected OFF, TIMESTAMPS or TENSORS")
    return _LEVELS[word.lower()]


def _trace_mode(word: str) -> str:
    if word.lower() not in ("triton", OPENTELEMETRY):
        raise ValueError(f"trace mode: found '{shown(word)}', expected triton or opentelemetry")
    return word.lower()


BACKEND_SETTING = SettingKind("[backend,]setting=value", _parse_backend_setting)
METRICS_SETTING = SettingKind("setting=value", _parse_metrics_setting)
RATE_LIMIT_RESOURCE = SettingKind("name:count[:device]", _parse_rate_limit_resource)
GPU_SHARE = SettingKind("device_id:fraction", _parse_gpu_share)
HTTP_RESTRICTION = SettingKind("apis:header=value", partial(_parse_restriction, ""))
GRPC_RESTRICTION = SettingKind("apis:header=value", partial(_parse_restriction, GRPC_HEADER_PREFIX))
ORIGIN = SettingKind("origin", _parse_origin)
CACHE_SETTING = SettingKind("cache,setting=value", _parse_cache_setting)
TRACE_SETTING = SettingKind("[mode,]setting=value", _parse_trace_setting)
