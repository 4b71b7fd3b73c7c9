"""The settings of TensorRT in a configuration and in `--backend-config`, and the refusal of unsupported ones.

Follows tensorrt_backend src/tensorrt.cc, src/model_state.cc, and src/tensorrt_model.cc, texts included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from edge_serve.backends.cuda.path_settings import PathSettings, path_settings
from edge_serve.backends.parameters import boolean, parameters_of
from edge_serve.errors import InvalidArgument, Unsupported, with_advice
from edge_serve.records import frozen

Json = Mapping[str, Any]

_STRATEGY = "execution_context_allocation_strategy"
#: modules that `library` may name
LIBRARIES = ("tensorrt", "tensorrt_lean", "tensorrt_rtx")
_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")
_NVDLA = "KIND_NVDLA"


class Strategy(Enum):
    """When an execution context allocates its memory."""

    STATIC = "STATIC"
    ON_PROFILE_CHANGE = "ON_PROFILE_CHANGE"


@frozen
class BackendSettings:
    """`--backend-config=tensorrt,KEY=VALUE`.

    Attributes:
        plugins: libraries to load before an engine is.
        version_compatible: run code out of version-compatible plans, which must be trusted.
        notes: settings that have no effect, for the log.
        library: the module of TensorRT to use; "" = the best one that is installed.
    """

    plugins: tuple[str, ...] = ()
    version_compatible: bool = False
    notes: tuple[str, ...] = ()
    library: str = ""


@frozen
class ModelSettings:
    """`optimization` and `parameters` of one model. `graphs` reads `optimization.cuda.graphs`.

    Attributes:
        path: how tensors are copied.
        notes: settings that have no effect, for the log.
    """

    strategy: Strategy = Strategy.STATIC
    path: PathSettings = field(default_factory=PathSettings)
    notes: tuple[str, ...] = ()


def backend_settings(backend_config: Mapping[str, str]) -> BackendSettings:
    """Return the settings of the backend.

    Raises:
        InvalidArgument: a value does not fit its key.
    """
    notes = []
    if boolean(backend_config.get("coalesce-request-input", "false")):
        notes.append(
            "coalesce-request-input is not supported and has no effect: each request is copied from its own place to "
            "the device"
        )
    policy = backend_config.get("execution-policy", "BLOCKING")
    if policy not in _POLICIES:
        raise InvalidArgument(f"execution-policy is '{policy}', expected one of {', '.join(_POLICIES)}")
    if policy != "BLOCKING":
        notes.append(f"execution-policy={policy} is not supported and has no effect: each instance has its own thread")
    plugins = tuple(filter(None, (part.strip() for part in backend_config.get("plugins", "").split(";"))))
    version_compatible = boolean(backend_config.get("version-compatible", "false"))
    library = backend_config.get("library", "")
    if library and library not in LIBRARIES:
        raise InvalidArgument(
            f"--backend-config=tensorrt,library={library} names no library, expected one of {', '.join(LIBRARIES)}"
        )
    return BackendSettings(plugins, version_compatible, tuple(notes), library)


def model_settings(config: Json) -> ModelSettings:
    """Return the settings of a model.

    Raises:
        InvalidArgument: a parameter has a value that it cannot have.
        Unsupported: the model spreads over several devices.
    """
    parameters = parameters_of(config)
    if parameters.get("enable_multi_device", "").lower() in ("true", "1"):  # as in Triton, others are false
        raise Unsupported(
            f"model '{config.get('name', '')}' sets enable_multi_device, and TensorRT Multi-Device is not supported: "
            "remove the parameter, and give each device an instance (kind: KIND_GPU, gpus: [ ... ])"
        )
    optimization = config.get("optimization") or {}
    notes = []
    if optimization.get("gather_kernel_buffer_threshold"):
        notes.append(
            "gather_kernel_buffer_threshold is not supported and has no effect: no kernel gathers the inputs of a batch"
        )
    return ModelSettings(
        _strategy(parameters, str(config.get("name", ""))),
        path_settings(optimization),
        tuple(notes),
    )


def _strategy(parameters: Mapping[str, str], model: str) -> Strategy:
    text = parameters.get(_STRATEGY, Strategy.STATIC.value)
    try:
        return Strategy(text)
    except ValueError as error:
        raise InvalidArgument(
            f"Invalid value for '{_STRATEGY}': '{text}' for model instance '{model}'. Supported values are 'STATIC' "
            "and 'ON_PROFILE_CHANGE'."
        ) from error


def group_of(config: Json, instance: str) -> Json:
    """Return the instance group of an instance, which is named after it; {} = there is none."""
    for group in config.get("instance_group") or ():
        if re.fullmatch(rf"{re.escape(str(group.get('name', '')))}(?:_gpu\d+)?_\d+", instance):
            return dict(group)
    return {}


def dla_core(group: Json, instance: str, model: str) -> int:
    """Return the DLA core of the instances of a group; -1 = they run on the GPU alone.

    Raises:
        InvalidArgument: the group has several secondary devices, or one that is no DLA.
    """
    devices = group.get("secondary_devices") or ()
    if not devices:
        return -1
    if len(devices) > 1:
        raise InvalidArgument(f"{instance} of model {model} must have either zero or or one secondary devices")
    if devices[0].get("kind", _NVDLA) != _NVDLA:
        raise InvalidArgument(f"secondary device for {instance} of model {model} must be KIND_NVDLA")
    return int(devices[0].get("device_id", 0))


def check_dla_core(core: int, available: int) -> None:
    """Check that the device has a DLA core.

    Raises:
        InvalidArgument: it does not.
    """
    if core != -1 and not 0 <= core < available:
        text = f"unable to create TensorRT runtime with DLA Core ID: {core}, available number of DLA cores: {available}"
        advice = f"write a device_id below {available}" if available else "remove secondary_devices"
        raise InvalidArgument(with_advice(text, f"{advice} in instance_group"))
