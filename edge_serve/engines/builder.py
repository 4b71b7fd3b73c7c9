"""The calls of TensorRT's builder, 8.6 to 11: network, profiles, flags, memory, timing cache, progress.

Differences between versions are asked for by attribute: `EXPLICIT_BATCH` is needed by 8.6 and gone in 11, the flags of
precisions are gone in 11, and `IProgressMonitor` came with 9.1 (NVIDIA/TensorRT CHANGELOG.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_serve.backends import host
from edge_serve.backends.cuda.memory import memory_info
from edge_serve.backends.tensorrt.errors import QUANTIZED_ADVICE, failure
from edge_serve.backends.tensorrt.library import Library
from edge_serve.backends.tensorrt.plan import AMPERE_PLUS, VERSION_COMPATIBLE, Step
from edge_serve.engines import timing
from edge_serve.engines.options import EngineOptions
from edge_serve.engines.profiles import NetworkInput, Range, plan_profiles
from edge_serve.engines.request import EngineRequest
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable
from edge_serve.messages.line import shortened
from edge_serve.records import frozen

#: share of the device's free memory that one layer of a build may have as its workspace
WORKSPACE_SHARE = 0.5
#: errors of the parser in one message
_MOST_ERRORS = 3

#: takes the phase of TensorRT and its percentage; None = it is unknown
Report = Callable[[str, "int | None"], None]


@frozen
class BuildResult:
    """A plan in memory, and the profiles and flags that it was built with.

    Attributes:
        profiles: input -> range, for every input.
        flags: in TensorRT's words, as in a description of a plan.
    """

    content: memoryview
    profiles: tuple[Mapping[str, Range], ...]
    flags: tuple[str, ...]
    workspace_bytes: int


def build_plan(library: Library, request: EngineRequest, timing_cache: Path, report: Report) -> BuildResult:
    """Build a plan. Takes minutes and most of the device's free memory. The plugins must be loaded.

    Raises:
        EdgeServeError: TensorRT cannot build it, with its reason and advice.
    """
    module, options = library.module, request.options
    builder = _made(lambda: module.Builder(library.logger), library, request)
    explicit = getattr(module.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    report("parsing", None)
    _parse(library, network, request)
    inputs = [_input(network.get_input(number)) for number in range(network.num_inputs)]
    profiles = plan_profiles(inputs, options.shapes, request.hints)
    config = builder.create_builder_config()
    flags = _set_flags(library, builder, config, network, options)
    for profile in profiles:
        _add_profile(library, builder, config, profile, inputs, request)
    workspace = _set_workspace(library, config, options.workspace_bytes)
    _log(timing.load(timing_cache, config))
    monitor = _monitor(module, report)
    if monitor is not None:
        config.progress_monitor = monitor
    report("building", None)
    library.errors.take()
    content = builder.build_serialized_network(network, config)
    if content is None:
        raise failure(Step.BUILD, library.errors.take(), request.model)
    _log(timing.save(timing_cache, config))
    fixed = {one.name: (one.shape, one.shape, one.shape) for one in inputs if not one.is_open}
    ranges = tuple({**fixed, **profile} for profile in profiles or [{}])
    return BuildResult(memoryview(content), ranges, flags, workspace)


def _made(make: Callable[[], Any], library: Library, request: EngineRequest) -> Any:
    """Return an object of TensorRT, whose constructor raises TypeError if the library returned none."""
    library.errors.take()
    try:
        found = make()
    except (TypeError, RuntimeError) as error:
        raise failure(Step.BUILD, library.errors.take(), request.model) from error
    logged = library.errors.take()
    if found is None or logged.errors:
        raise failure(Step.BUILD, logged, request.model)
    return found


def _parse(library: Library, network: Any, request: EngineRequest) -> None:
    parser = library.module.OnnxParser(network, library.logger)
    if parser.parse_from_file(request.onnx):
        return
    found = [_error_text(parser.get_error(number)) for number in range(parser.num_errors)]
    shown = [shortened(text, 400) for text in found[:_MOST_ERRORS]] or [*library.errors.take().errors[:1]]
    more = f" (and {len(found) - _MOST_ERRORS} more)" if len(found) > _MOST_ERRORS else ""
    raise InvalidArgument(
        f"TensorRT {library.version} cannot read {Path(request.onnx).name}: {'; '.join(shown) or 'it gave no reason'}"
        f"{more}; is it a whole ONNX file? If an operator is not supported, export the model otherwise, name a plugin "
        "library, or serve it with backend 'onnxruntime'"
    )


def _error_text(error: Any) -> str:
    """Return an error of the parser as text. 8.6 reports only the number of a node."""
    name, operator = (str(getattr(error, part)()) if hasattr(error, part) else "" for part in
                      ("node_name", "node_operator"))  # fmt: skip
    named = f"node {name or error.node()}" + (f", operator {operator}" if operator else "")
    return f"{error.desc()} ({named})" if error.node() >= 0 else str(error.desc())


def _input(tensor: Any) -> NetworkInput:
    return NetworkInput(str(tensor.name), tuple(int(dim) for dim in tensor.shape), bool(tensor.is_shape_tensor))


def _set_flags(library: Library, builder: Any, config: Any, network: Any, options: EngineOptions) -> tuple[str, ...]:
    module, lenient = library.module, "BEST" in options.precisions
    wanted = [name for name in options.precisions if name != "BEST"]
    known = [name for name in wanted if hasattr(module.BuilderFlag, name)]
    if missing := [name for name in wanted if name not in known and not _is_typed(library, network, name)]:
        _refuse_precision(missing[0], library.version, lenient=lenient)
    if "INT8" in known and not _is_quantized(module, network):
        _refuse_int8(lenient=lenient)
        known.remove("INT8")
    flags = [*known]
    if options.version_compatible:
        flags.append(VERSION_COMPATIBLE)
    for name in flags:
        config.set_flag(getattr(module.BuilderFlag, name))
    if not options.tf32:
        config.clear_flag(module.BuilderFlag.TF32)
    if options.hardware_compatible:
        config.hardware_compatibility_level = module.HardwareCompatibilityLevel.AMPERE_PLUS
        flags.append(AMPERE_PLUS)
    if options.level >= 0:
        config.builder_optimization_level = options.level
    if options.dla_core >= 0:
        _use_dla(module, builder, config, options.dla_core)
    return tuple(flags)


def _is_typed(library: Library, network: Any, name: str) -> bool:
    """Return whether the types in the ONNX file decide, and this precision is among them. Log the share of layers that
    have it: a single cast is enough."""
    if not _decide_types(library.version):
        return False
    if name == "INT8":
        return _is_quantized(library.module, network)
    wanted = {"FP16": "HALF"}.get(name, name)
    typed = sum(wanted in _output_types(network.get_layer(number)) for number in range(network.num_layers))
    if 0 < typed < network.num_layers:
        _log(f"{typed} of {network.num_layers} layers of the ONNX file are {name}: the others keep their types")
    return typed > 0


def _output_types(layer: Any) -> set[str]:
    """Return the types of a layer's outputs. TensorRT has None in place of an optional one that is left out."""
    outputs = map(layer.get_output, range(layer.num_outputs))
    return {output.dtype.name for output in outputs if output is not None}


def _decide_types(version: str) -> bool:
    """Return whether networks are strongly typed: TensorRT has no flags of precisions then."""
    return int(version.partition(".")[0]) >= 11


def _refuse_precision(name: str, version: str, *, lenient: bool) -> None:
    if lenient:
        _log(f"TensorRT {version} has no flag {name}: it is left out")
        return
    if _decide_types(version):
        raise InvalidArgument(
            f"precision {name} cannot be asked for: from TensorRT 11 (this is {version}) the types in the ONNX file "
            f"decide, and none in it is {name}; export the model in this precision, and build that file"
        )
    raise InvalidArgument(f"TensorRT {version} has no precision {name}: use another one, or a newer TensorRT")


def _is_quantized(module: Any, network: Any) -> bool:
    """Return whether a layer quantizes: without scales, TensorRT refuses INT8."""
    kinds = (module.LayerType.QUANTIZE, module.LayerType.DEQUANTIZE)
    return any(network.get_layer(number).type in kinds for number in range(network.num_layers))


def _refuse_int8(*, lenient: bool) -> None:
    if not lenient:
        raise InvalidArgument(f"precision INT8 was asked for, and {QUANTIZED_ADVICE}, or build with another precision")
    _log("the ONNX file has no Q-DQ nodes: INT8 is left out")


def _use_dla(module: Any, builder: Any, config: Any, core: int) -> None:
    available = int(builder.num_DLA_cores)
    if core >= available:
        advice = f"name one below {available}" if available else "build for the GPU, without --dla-core"
        raise InvalidArgument(f"DLA core {core} was asked for, and this device has {available}: {advice}")
    config.default_device_type = module.DeviceType.DLA
    config.DLA_core = core
    config.set_flag(module.BuilderFlag.GPU_FALLBACK)


def _add_profile(
    library: Library, builder: Any, config: Any, ranges: Mapping[str, Range], inputs: Sequence[NetworkInput],
    request: EngineRequest,
) -> None:  # fmt: skip
    profile = builder.create_optimization_profile()
    shape_tensors = {one.name for one in inputs if one.is_shape}
    try:
        for name, (least, best, most) in ranges.items():
            set_range = profile.set_shape_input if name in shape_tensors else profile.set_shape
            set_range(name, least, best, most)
        index = config.add_optimization_profile(profile)
    except (ValueError, RuntimeError) as error:
        raise InvalidArgument(f"TensorRT refuses the shapes {dict(ranges)}: {error}") from error
    if index < 0:
        raise failure(Step.BUILD, library.errors.take(), request.model)


def _set_workspace(library: Library, config: Any, wanted: int) -> int:
    """Set the size of the workspace: as wanted; 0 = a share of the free memory. Return the size."""
    free, total = memory_info(library.cuda)
    workspace = min(wanted, total) if wanted else int(free * WORKSPACE_SHARE)
    if wanted > free:
        _log(f"workspace of {wanted >> 20} MiB was asked for, and {free >> 20} MiB of the device are free: a limit of "
             f"{workspace >> 20} MiB is set, and the build may run out of memory")  # fmt: skip
    config.set_memory_pool_limit(library.module.MemoryPoolType.WORKSPACE, workspace)
    return workspace


def _log(text: str) -> None:
    if text:
        host.current().log("WARNING", text)


def _monitor(module: Any, report: Report) -> Any:
    """Return a progress monitor; None = TensorRT before 9.1 has none."""
    if not hasattr(module, "IProgressMonitor"):
        return None

    class Monitor(module.IProgressMonitor):  # type: ignore[misc]  # the base exists where TensorRT is installed only
        """Called by several threads of TensorRT. A phase has steps, and a step may be a phase of its own."""

        def __init__(self) -> None:
            super().__init__()
            self._phases = Phases(report)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._phases.start(phase_name, parent_phase or "", num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._phases.step(phase_name, step + 1)
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._phases.finish(phase_name)

    return Monitor()


class Phases:
    """The nested phases of a build, and the percentage of the outermost one, which never falls within a phase."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        #: phase -> parent, steps, steps done
        self._phases: dict[str, tuple[str, int, int]] = {}
        self._reported: dict[str, int] = {}

    def start(self, name: str, parent: str, steps: int) -> None:
        """Record that a phase has started; parent "" = an outermost one."""
        with self._lock:
            self._phases[name] = (parent, max(1, steps), 0)
            self._notify(name)

    def step(self, name: str, done: int) -> None:
        """Record how many of its steps a phase has done."""
        with self._lock:
            if name in self._phases:
                parent, steps, _ = self._phases[name]
                self._phases[name] = (parent, steps, done)
                self._notify(name)

    def finish(self, name: str) -> None:
        """A phase ends. TensorRT does not tell the last step of each."""
        with self._lock:
            parent, steps, _ = self._phases.get(name, ("", 1, 0))
            if name in self._phases:
                self._phases[name] = (parent, steps, steps)
                self._notify(name)
                del self._phases[name]

    def _notify(self, name: str) -> None:
        share = 0.0
        top = name
        while name in self._phases:
            parent, steps, done = self._phases[name]
            top, share, name = name, min(1.0, (done + share) / steps), parent
        percent = int(100 * share)
        if percent > self._reported.get(top, -1):
            self._reported[top] = percent
            self._report(top, percent)


def check_builder(library: Library) -> None:
    """Check that a library can build.

    Raises:
        Unavailable: it is a runtime only.
    """
    if not hasattr(library.module, "Builder"):
        raise Unavailable(
            f"{library.module.__name__} {library.version} runs engines and cannot build them: pip install "
            "'edge-serve[tensorrt]' (on a Jetson: apt-get install tensorrt), or build on another such machine"
        )


def lost_memory(error: MemoryError) -> EdgeServeError:
    """Return the error for a build that ran out of the machine's memory."""
    return Internal(
        f"{Step.BUILD.value}: the machine's memory ran out ({error or 'no details'}); unload models or stop other "
        "programs during the build, or build with --optimization-level=1"
    )
