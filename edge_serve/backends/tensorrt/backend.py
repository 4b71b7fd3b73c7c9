"""The backend `tensorrt`: plans of TensorRT 8.6 to 11 on NVIDIA GPUs.

Start in `instance` for what happens to a batch, in `loaded_engine` for how a plan is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from edge_serve.backends import host
from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.backends.binding_plan import make_plan
from edge_serve.backends.cuda.registered_arena import registered_memory
from edge_serve.backends.cuda.tensor_path import TensorPath
from edge_serve.backends.tensorrt.bindings import BindingRole, input_bindings
from edge_serve.backends.tensorrt.checks import check_tensorrt
from edge_serve.backends.tensorrt.complete import complete_tensorrt
from edge_serve.backends.tensorrt.context import Context
from edge_serve.backends.tensorrt.engine import TensorInfo
from edge_serve.backends.tensorrt.graphs import graph_specs, plan_graphs, wants_graphs
from edge_serve.backends.tensorrt.instance import TensorRtInstance
from edge_serve.backends.tensorrt.library import Library, load_library, load_plugins
from edge_serve.backends.tensorrt.loaded_engine import LoadedEngine, load_engine
from edge_serve.backends.tensorrt.profiles import Choice, instance_profiles, largest_shape
from edge_serve.backends.tensorrt.settings import backend_settings, dla_core, group_of, model_settings
from edge_serve.config.model.complete import FoundTensor
from edge_serve.messages.tensors import Shape


class TensorRtBackend:
    """One version of a model: an engine for each device and DLA core that its instances are on.

    Where instances cannot share an engine, each has its own.

    Args:
        load: returns TensorRT, once something is loaded; as `load_library` with `library` alone.
    """

    def __init__(self, load: Callable[..., Library] = load_library) -> None:
        self._load = load
        self._library: Library | None = None
        self._engines: dict[tuple[int, int], LoadedEngine] = {}

    def complete_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the configuration, completed from the engine.

        Raises:
            EdgeServeError: the plan does not load, or contradicts the configuration.
        """
        group = (spec.config.get("instance_group") or [{}])[0]
        device = int((group.get("gpus") or [0])[0])
        core = dla_core(group, str(group.get("name", "")), spec.name)
        return complete_tensorrt(spec.config, self._engine(spec, device, core, spec.name).info)

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[TensorRtInstance]:
        """Load the engine and make the instances.

        Raises:
            EdgeServeError: the plan does not load, or contradicts the configuration.
        """
        for note in (*backend_settings(spec.backend_config).notes, *model_settings(spec.config).notes):
            host.log("WARNING", f"model '{spec.name}': {note}")
        opened: list[TensorRtInstance] = []
        try:
            for one in instances:
                opened.append(self._open_one(spec, one))
        except BaseException:
            for made in opened:
                made.close()
            raise
        if self._library is not None and wants_graphs(spec.config) and not self._library.cuda.has_graphs:
            reason = "optimization.cuda.graphs has no effect with PyCUDA, which has no CUDA graphs"
            host.log("WARNING", f"model '{spec.name}': {reason}: pip install 'edge-serve[cuda]'")
        return opened

    def close(self) -> None:
        """Release the engines."""
        self._engines.clear()

    def _open_one(self, spec: ModelSpec, one: InstanceSpec) -> TensorRtInstance:
        group = group_of(spec.config, one.name)
        core = dla_core(group, one.name, spec.name)
        loaded = self._engine(spec, one.device_id, core, one.name)
        if not loaded.is_shareable:
            del self._engines[one.device_id, core]  # the next instance loads its own
        choices = instance_profiles([str(name) for name in group.get("profile") or ()], loaded.info, one.name)
        check_tensorrt(spec.config, loaded.info, choices, one.name)
        cuda, settings = loaded.library.cuda, model_settings(spec.config)
        cuda.set_device(one.device_id)
        inputs, outputs = (_found(tensors) for tensors in (loaded.info.inputs, loaded.info.outputs))
        plan = make_plan(spec.config, inputs, outputs)
        seats = 1 if plan.states or loaded.info.has_shape_tensors else 2
        path = TensorPath(cuda, seats, settings.path, registered_memory(cuda, spec, one.device_id))
        contexts: list[Context] = []
        try:
            for choice in choices:
                largest = _largest(spec, loaded, choice)
                contexts.append(Context(loaded, choice, largest, settings.strategy, path.compute_stream, path.seats))
            if wants_graphs(spec.config) and cuda.has_graphs:  # once all have reserved buffers, which graphs refer to
                for context in contexts:
                    specs, whole = graph_specs(spec.config), plan.without_rows
                    graphs = plan_graphs(specs, loaded.info, context.choice, one.name, whole)
                    # only further rows of a batch can be cut off again
                    by_rows = plan.batches and not whole
                    context.capture(graphs if by_rows else replace(graphs, padded=False))
        except BaseException:
            for context in contexts:
                context.close()
            path.close()
            raise
        return TensorRtInstance(one.name, loaded, contexts, path, plan)

    def _engine(self, spec: ModelSpec, device: int, core: int, instance: str) -> LoadedEngine:
        loaded = self._engines.get((device, core))
        if loaded is None:
            if self._library is None:
                settings = backend_settings(spec.backend_config)
                self._library = self._load(library=settings.library)
                load_plugins(self._library, settings.plugins)
            loaded = self._engines[device, core] = load_engine(self._library, spec, device, core, instance)
        return loaded


def _found(tensors: Iterable[TensorInfo]) -> list[FoundTensor]:
    return [FoundTensor(tensor.name, tensor.data_type, tensor.shape) for tensor in tensors]


def _largest(spec: ModelSpec, loaded: LoadedEngine, choice: Choice) -> dict[str, Shape]:
    """Return the largest shape of each input, for which memory is allocated."""
    most = int(spec.config.get("max_batch_size", 0))
    dims = {
        binding.name: binding.full_dims(most)
        for binding in input_bindings(spec.config)
        if binding.role is not BindingRole.BATCH
    }
    return {
        tensor.name: largest_shape(
            choice.profile.shapes[tensor.name], dims.get(tensor.name, tensor.shape), most, tensor.name, spec.name
        )
        for tensor in loaded.info.inputs
        if not tensor.is_shape
    }


#: the name that `backends.loader` looks for
Backend = TensorRtBackend
