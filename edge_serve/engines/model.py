"""The request for an engine of a model: shapes and options from its configuration, files from its version directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_serve.backends.parameters import parameters_of
from edge_serve.backends.tensorrt.plan import plan_filename
from edge_serve.backends.tensorrt.settings import backend_settings
from edge_serve.devices.device import Gpus
from edge_serve.engines.options import EngineOptions, over, parse_options, with_accelerator
from edge_serve.engines.profiles import BatchHints
from edge_serve.engines.request import EngineRequest
from edge_serve.engines.settings import CacheSettings
from edge_serve.errors import InvalidArgument

#: model parameter: build the engine at load from the ONNX file of the version; `true`, or options of a build
BUILD_PARAMETER = "EDGE_SERVE_BUILD_ENGINE"
ONNX_FILE, _ONNX = "model.onnx", ".onnx"
NO_OPTIONS = EngineOptions()
_NONE = ("", "false")
_PLAIN = "true"

Json = Mapping[str, Any]


def builds_at_load(config: Json, version_directory: Path, device: int, gpus: Gpus) -> bool:
    """Return whether a load of a version builds its engine: the configuration says so, and there is no plan."""
    if parameters_of(config).get(BUILD_PARAMETER, "").strip().lower() in _NONE:
        return False
    return not (version_directory / plan_filename(config, _capability(gpus, device))).exists()


def model_request(
    config: Json, version_directory: Path, cache: CacheSettings, gpus: Gpus, backend_config: Mapping[str, str],
    options: EngineOptions = NO_OPTIONS, device: int = 0,
) -> EngineRequest:  # fmt: skip
    """Return the request for the engine of a version.

    Args:
        options: those of the command line, which go before those of the configuration.

    Raises:
        InvalidArgument: there is no ONNX file, or the configuration has values that it cannot have.
    """
    model, settings = str(config.get("name") or version_directory.parent.name), backend_settings(backend_config)
    text = parameters_of(config).get(BUILD_PARAMETER, "").strip()
    words = "" if text.lower() in (*_NONE, _PLAIN) else text
    configured = parse_options(words, f"parameter {BUILD_PARAMETER} of model '{model}'")
    options = with_accelerator(over(configured, options), config)
    if options.dla_core < 0:
        options = replace(options, dla_core=_dla_core(config))
    onnx = find_onnx(version_directory, config)
    return replace(
        file_request(onnx, cache, gpus, options, device),
        root=str(version_directory.parent),
        model=model,
        hints=batch_hints(config),
        names=dict(config.get("cc_model_filenames") or {}),
        plugins=settings.plugins,
        library=settings.library,
    )


def file_request(onnx: Path, cache: CacheSettings, gpus: Gpus, options: EngineOptions, device: int) -> EngineRequest:
    """Return the request for the engine of an ONNX file alone."""
    gpu = next((one for one in gpus.found if one.id == device), None)
    return EngineRequest(
        str(onnx.absolute()), str(onnx.absolute().parent), str(cache.directory.absolute()), cache.most_mb * 10**6,
        cache.timing_cache, onnx.stem, options, BatchHints(), device, gpu.name if gpu else "",
        ".".join(map(str, gpus.cuda)) if gpu else "",
    )  # fmt: skip


def find_onnx(version_directory: Path, config: Json) -> Path:
    """Return the ONNX file of a version: the one that the configuration names, model.onnx, or the only one.

    Raises:
        InvalidArgument: there is none, or several.
    """
    name = str(config.get("default_model_filename") or "")
    path = version_directory / (name if name.endswith(_ONNX) else ONNX_FILE)
    if path.is_file():
        return path
    others = sorted(version_directory.glob(f"*{_ONNX}"))
    if len(others) == 1:
        return others[0]
    found = ", ".join(one.name for one in others) if others else "no ONNX file"
    raise InvalidArgument(f"found {found} in '{version_directory}', expected {path.name} to build the engine from")


def plan_output(version_directory: Path, config: Json) -> Path:
    """Return the file that the plan of a version belongs in, on devices that `cc_model_filenames` does not name."""
    name = plan_filename({"default_model_filename": config.get("default_model_filename")}, (0, 0))
    return version_directory / (name if not name.endswith(_ONNX) else f"{Path(name).stem}.plan")


def batch_hints(config: Json) -> BatchHints:
    """Return the shapes and batch sizes of a configuration."""
    dims = {}
    for entry in config.get("input") or ():
        shape = (entry.get("reshape") or {}).get("shape", entry.get("dims") or ())
        if shape and not entry.get("is_shape_tensor"):
            dims[str(entry.get("name"))] = tuple(int(dim) for dim in shape)
    preferred = (config.get("dynamic_batching") or {}).get("preferred_batch_size") or ()
    return BatchHints(int(config.get("max_batch_size", 0)), tuple(map(int, preferred)), dims)


def _dla_core(config: Json) -> int:
    """Return the DLA core that the instances are on; -1 = they are on the GPU."""
    groups = config.get("instance_group") or ()
    found = {bool(group.get("secondary_devices")) for group in groups}
    if len(found) > 1:
        raise InvalidArgument(
            "some instance groups have secondary_devices and others have none: one engine cannot serve both; build one "
            "for each with 'edge-serve build MODEL.onnx --dla-core=N', in two models"
        )
    cores = [int(one.get("device_id", 0)) for group in groups for one in group.get("secondary_devices") or ()]
    return min(cores, default=-1)


def _capability(gpus: Gpus, device: int) -> tuple[int, int]:
    return next((one.capability for one in gpus.found if one.id == device), (0, 0))
