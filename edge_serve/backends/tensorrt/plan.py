"""The file of an engine (a plan): which one a device takes, and the description beside it of where it runs.

A plan runs on the TensorRT and the device that it was built for. `<plan>.meta.json` records both, so that a plan from
elsewhere is refused before it is deserialized, with both values. A plan without one is left to TensorRT.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from enum import Enum
from pathlib import Path
from shlex import quote
from typing import Any

from edge_serve.config.model.layout import advice_on_file
from edge_serve.errors import Internal, InvalidArgument, Unavailable, with_advice
from edge_serve.files import read_small, write_durably
from edge_serve.records import frozen

DEFAULT_FILENAME = "model.plan"
#: `backend` of a configuration whose plans these are
PLATFORM = "tensorrt"
#: backend setting of a version whose engine was built at load: the path of its plan
BUILT_PLAN = "built-plan"
_SUFFIX = ".meta.json"
#: flags in a description, in TensorRT's words (BuilderFlag, HardwareCompatibilityLevel)
VERSION_COMPATIBLE, AMPERE_PLUS, NO_RUNTIME = "VERSION_COMPATIBLE", "AMPERE_PLUS", "EXCLUDE_LEAN_RUNTIME"
_AMPERE = (8, 0)
#: the first TensorRT that can build version-compatible plans
_FIRST_COMPATIBLE = (8, 6)
#: major version of a version-compatible plan -> major versions of TensorRT that run it, never an older one
_RUNS_ON = {8: (8, 9, 10), 9: (9, 10), 10: (10, 11), 11: (11,)}


class Step(Enum):
    """A step that can fail, with the text of its error: Triton's where it has one."""

    RUNTIME = "unable to create TensorRT runtime"
    ENGINE = "unable to create TensorRT engine"
    CONTEXT = "unable to create TensorRT context"
    RUN = "unable to enqueue for inference"
    BUILD = "unable to build TensorRT engine"


@frozen
class PlanMeta:
    """The description of a plan, as `edge-serve build` writes it.

    Attributes:
        tensorrt: version of the library that built it.
        capability: compute capability of the device, `8.7`.
        device: its name.
        onnx_sha256: of the ONNX file that it was built from.
        profiles: for each profile the smallest, best, and largest shape by input.
        flags: of the builder, in TensorRT's words.
        machine: the processor, as `uname -m` writes it.
        plan_bytes: size of the plan; 0 = unknown.
    """

    tensorrt: str
    capability: str
    device: str = ""
    onnx_sha256: str = ""
    profiles: tuple[Mapping[str, Sequence[Sequence[int]]], ...] = ()
    flags: tuple[str, ...] = ()
    machine: str = ""
    plan_bytes: int = 0


@frozen
class PlanHost:
    """The library and the machine that a plan is to run on.

    Attributes:
        tensorrt: version of the library.
        host_code: the library may run code out of plans (`version-compatible=true`).
    """

    tensorrt: str
    capability: tuple[int, int]
    machine: str = field(default_factory=lambda: os.uname().machine)
    host_code: bool = False


def plan_filename(config: Mapping[str, Any], capability: tuple[int, int]) -> str:
    """Return the name of the plan for a device of this compute capability."""
    names = config.get("cc_model_filenames") or {}
    major, minor = capability
    return str(names.get(f"{major}.{minor}") or config.get("default_model_filename") or DEFAULT_FILENAME)


def find_plan(version_directory: Path, config: Mapping[str, Any], capability: tuple[int, int], instance: str) -> Path:
    """Return the plan for a device of this compute capability.

    Args:
        instance: the name of the instance, for the message.

    Raises:
        Unavailable: there is no such file.
    """
    path = version_directory / plan_filename(config, capability)
    if path.is_file():
        return path
    model = str(config.get("name") or version_directory.parent.name)
    text = f"unable to find '{path}' for model instance '{instance}'"
    if any(version_directory.glob("*.onnx")):
        advice = f"build it from the ONNX file there: {rebuild_command(model)}"
    else:
        advice = advice_on_file(path.parent, path.name, model)
    others = sorted(config.get("cc_model_filenames") or {})
    if others and path.name not in (config.get("cc_model_filenames") or {}).values():
        major, minor = capability
        advice = (
            f"cc_model_filenames has plans for compute capability {', '.join(others)}, and this device has "
            f"{major}.{minor}: {rebuild_command(model)} makes one for it"
        )
    raise Unavailable(with_advice(text, advice))


def rebuild_command(model: str) -> str:
    """Return the command that builds the plan of a model on this device."""
    return f"edge-serve build {quote(model)}"


def meta_path(plan: Path) -> Path:
    """Return the path of a plan's description."""
    return plan.with_name(plan.name + _SUFFIX)


def write_meta(plan: Path, meta: PlanMeta) -> None:
    """Write the description of a plan beside it, atomically and durably.

    Raises:
        OSError: the file cannot be written.
    """
    write_durably(meta_path(plan), [json.dumps(asdict(meta), indent=2).encode(), b"\n"])


def read_meta(plan: Path, model: str) -> PlanMeta | None:
    """Return the description of a plan; None = it has none. Members that this version does not know are passed over.

    Raises:
        InvalidArgument: the file is not a description of `edge-serve build`.
    """
    path = meta_path(plan)
    try:
        found = json.loads(read_small(path))
        return _meta(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidArgument(
            f"{path.name} does not describe a plan ({type(error).__name__}: {error}): remove it, or build the plan "
            f"again: {rebuild_command(model)}"
        ) from error


def _meta(found: Any) -> PlanMeta:
    profiles = tuple(
        {str(name): [[int(dim) for dim in shape] for shape in shapes] for name, shapes in profile.items()}
        for profile in found.get("profiles", ())
    )
    _numbers(found["tensorrt"]), _numbers(found["capability"])
    return PlanMeta(
        found["tensorrt"],
        found["capability"],
        str(found.get("device", "")),
        str(found.get("onnx_sha256", "")),
        profiles,
        tuple(str(flag) for flag in found.get("flags", ())),
        str(found.get("machine", "")),
        int(found.get("plan_bytes", 0)),
    )


def check_meta(meta: PlanMeta, host: PlanHost, plan: Path, model: str) -> None:
    """Check that a plan runs here.

    Raises:
        Internal: it does not, with both values and the command that builds it again.
    """
    rebuild = f"build it again: {rebuild_command(model)}"
    for fault in (_other_machine, _other_version, _other_capability):
        if text := fault(meta, host):
            raise Internal(f"{Step.ENGINE.value}: {plan.name} {text}; {rebuild}")
    size = plan.stat().st_size
    if meta.plan_bytes and size != meta.plan_bytes:
        raise Internal(
            f"{Step.ENGINE.value}: {plan.name} has {size} bytes, and {meta_path(plan).name} says {meta.plan_bytes}; "
            f"copy both files again, or {rebuild}"
        )
    if not version_runs(meta, host.tensorrt, host_code=host.host_code):
        raise Internal(
            f"{Step.ENGINE.value}: {plan.name} is version-compatible: it carries the runtime of TensorRT "
            f"{meta.tensorrt}, whose code may not run here; if you trust the plan, start the server with "
            f"--backend-config=tensorrt,version-compatible=true, or {rebuild}"
        )


def version_runs(meta: PlanMeta, library: str, *, host_code: bool) -> bool:
    """Return whether a library of this version runs a plan.

    Args:
        host_code: the library may run code out of plans. Without it, a version-compatible plan that carries its own
            runtime does not load, not even into the version that built it.
    """
    compatible = VERSION_COMPATIBLE in meta.flags
    if compatible and NO_RUNTIME not in meta.flags and not host_code:
        return False
    built, here = _numbers(meta.tensorrt), _numbers(library)
    return _release(built) == _release(here) or (compatible and _may_run(built, here))


def _may_run(built: tuple[int, ...], here: tuple[int, ...]) -> bool:
    newer = built >= _FIRST_COMPATIBLE and _release(built) <= _release(here)
    return newer and here[0] in _RUNS_ON.get(built[0], ())


def _other_machine(meta: PlanMeta, host: PlanHost) -> str:
    if not meta.machine or not host.machine or meta.machine == host.machine:
        return ""
    return f"was built on a processor of type {meta.machine}, and this is {host.machine}"


def _other_version(meta: PlanMeta, host: PlanHost) -> str:
    if version_runs(meta, host.tensorrt, host_code=True):
        return ""
    kind = "version-compatible plan" if VERSION_COMPATIBLE in meta.flags else "plan"
    return f"is a {kind} of TensorRT {meta.tensorrt}, and this is TensorRT {host.tensorrt}"


def _other_capability(meta: PlanMeta, host: PlanHost) -> str:
    built = _numbers(meta.capability)
    if built == host.capability or (AMPERE_PLUS in meta.flags and min(built, host.capability) >= _AMPERE):
        return ""
    there = f" ({meta.device})" if meta.device else ""
    major, minor = host.capability
    return f"was built for compute capability {meta.capability}{there}, and this device has {major}.{minor}"


def _release(version: Sequence[int]) -> tuple[int, ...]:
    """Return major, minor, and patch; a missing one is 0. The fourth component is the build, which may differ."""
    return (*version, 0, 0)[:3]


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version or a compute capability, up to the first part that is none (`10.3.0.rc1`)."""
    found: list[int] = []
    for part in version.split("."):
        if not part.isascii() or not part.isdigit():
            break
        found.append(int(part))
    if not found:
        raise ValueError(f"{version!r} is no version")
    return tuple(found)
