"""The parameters of a model in config.pbtxt, as plain values. Pure, without the library.

Names and texts: triton-inference-server/openvino_backend README.md and src/openvino.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_serve.backends.parameters import parameters_of
from edge_serve.errors import InvalidArgument

_THREADS = ("INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS")
_HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")
_PRECISIONS = ("f32", "f16", "bf16", "dynamic")
#: devices without a choice of the precision
_FIXED_PRECISION = ("NPU",)


@dataclass(frozen=True, slots=True)
class OpenVinoSettings:
    """How a model is compiled and run.

    Attributes:
        properties: of the library, as it names them.
        pads: batches are filled up to `max_batch_size` rows, and the model is compiled for this size.
        reshapes: inputs get the dims of the configuration.
        extension: library with further operators; "" = none.
    """

    device: str = "CPU"
    pads: bool = False
    reshapes: bool = False
    extension: str = ""
    properties: Mapping[str, str | int] = field(default_factory=dict)


def settings_of(config: Mapping[str, Any], instances: int) -> OpenVinoSettings:
    """Return the settings of a model with so many instances.

    Raises:
        InvalidArgument: a parameter has another value than it may have.
    """
    given = parameters_of(config)
    device = given.get("TARGET_DEVICE", "").upper() or "CPU"
    return OpenVinoSettings(
        device=device,
        pads=_is_yes(given, "ENABLE_BATCH_PADDING"),
        reshapes=_is_yes(given, "RESHAPE_IO_LAYERS"),
        extension=given.get("CPU_EXTENSION_PATH", ""),
        properties=_properties(given, device, instances),
    )


def _properties(given: Mapping[str, str], device: str, instances: int) -> dict[str, str | int]:
    found: dict[str, str | int] = {name: _number(name, given[name]) for name in _THREADS if given.get(name)}
    if device == "CPU":
        found.pop("COMPILATION_NUM_THREADS", None)  # Triton's page has it for every device, and this one refuses it
    if hint := given.get("PERFORMANCE_HINT", "").upper():
        found["PERFORMANCE_HINT"] = _one_of("PERFORMANCE_HINT", hint, _HINTS)
    if streams := given.get("NUM_STREAMS", "").upper():
        found["NUM_STREAMS"] = _streams(streams)
    elif instances > 1 and not hint and device == "CPU":
        found["NUM_STREAMS"] = instances  # else they wait for each other: the library runs one request at a time
    if not device.startswith(_FIXED_PRECISION):
        found["INFERENCE_PRECISION_HINT"] = _precision(given)
    return found


def _precision(given: Mapping[str, str]) -> str:
    """Return the precision of the computation. The library's own choice is bfloat16 on CPUs that have it."""
    if bf16 := given.get("HINT_BF16", ""):
        _one_of("HINT_BF16", bf16.upper(), ("YES",))
        return "bf16"
    return _one_of("INFERENCE_PRECISION_HINT", given.get("INFERENCE_PRECISION_HINT", "").lower() or "f32", _PRECISIONS)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgument(f"expected the parameter '{name}' to be a non-negative number, got {text.lower()}")
    return int(text)


def _streams(text: str) -> str | int:
    if text in ("AUTO", "NUMA"):
        return text
    if not (text.isascii() and text.isdigit()):
        found = text.lower()
        raise InvalidArgument(f"expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got {found}")
    return int(text)


def _one_of(name: str, text: str, values: tuple[str, ...]) -> str:
    if text not in values:
        raise InvalidArgument(f"expected the parameter '{name}' to be {'/'.join(values)}, got {text.lower()}")
    return text


def _is_yes(given: Mapping[str, str], name: str) -> bool:
    """Return whether a switch is on. Triton takes every other word for no."""
    return given.get(name, "").lower() == "yes"
