"""An engine that is loaded: from the file, for one device and DLA core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge_serve.backends.base import ModelSpec
from edge_serve.backends.cuda.memory import free_memory
from edge_serve.backends.tensorrt.engine import EngineInfo, read_engine
from edge_serve.backends.tensorrt.errors import failure
from edge_serve.backends.tensorrt.library import Library, make_runtime
from edge_serve.backends.tensorrt.plan import BUILT_PLAN, PlanHost, Step, check_meta, find_plan, read_meta
from edge_serve.backends.tensorrt.settings import backend_settings, check_dla_core
from edge_serve.errors import Internal
from edge_serve.records import slotted


@slotted
class LoadedEngine:
    """An engine, its file, and its device.

    Attributes:
        runtime: kept, because an engine must not outlive it.
    """

    library: Library
    model: str
    info: EngineInfo
    engine: Any
    runtime: Any

    @property
    def is_shareable(self) -> bool:
        """Return whether several instances may use it: before TensorRT 10 a profile has one context, but for plans
        that were built with PROFILE_SHARING_0806. To choose another context's profile there ends the process.
        """
        is_old = not hasattr(self.library.module, "ExecutionContextAllocationStrategy")
        return not (is_old and (self.info.is_dynamic or self.info.has_shape_tensors))


def load_engine(library: Library, spec: ModelSpec, device: int, dla_core: int, instance: str) -> LoadedEngine:
    """Load the plan of a model for a device.

    Raises:
        Unavailable: there is no plan.
        InvalidArgument, Internal, Unsupported: it does not fit this device or library, or does not load.
    """
    settings = backend_settings(spec.backend_config)
    library.cuda.set_device(device)
    capability = library.cuda.capability(device)
    built = spec.backend_config.get(BUILT_PLAN)
    plan = Path(built) if built else find_plan(spec.version_directory, spec.config, capability, instance)
    meta = read_meta(plan, spec.name)
    if meta is not None:
        here = PlanHost(library.version, capability, host_code=settings.version_compatible)
        check_meta(meta, here, plan, spec.name)
    runtime = make_runtime(library, spec.name, dla_core, host_code=settings.version_compatible)
    check_dla_core(dla_core, int(getattr(runtime, "num_DLA_cores", 0)))
    engine = runtime.deserialize_cuda_engine(_content(plan))
    logged = library.errors.take()
    if engine is None:
        raise failure(Step.ENGINE, logged, spec.name, plan=plan, free=free_memory(library.cuda))
    return LoadedEngine(library, spec.name, read_engine(engine), engine, runtime)


def _content(plan: Path) -> bytes:
    try:
        return plan.read_bytes()  # not mapped: a file that is truncated meanwhile would end the worker with SIGBUS
    except OSError as error:
        raise Internal(f"{plan.name} cannot be read: {error.strerror}") from error
