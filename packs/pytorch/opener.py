"""Loads a model's file, and makes instances. One for each model version."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edge_serve.backends import host
from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.backends.binding_plan import make_plan
from edge_serve.config.model.complete import FoundTensor, check_onnx, complete_onnx

from . import compiled, exported, scripted
from .archive import FileKind, kind_of, source_of
from .cores import Cores
from .gpu import device_of, failure
from .instance import PyTorchInstance, TorchModel
from .settings import TorchSettings, settings_of
from .signature import TensorPlaces, states_of

#: of this process; torch knows how many threads it may use
_CORES = Cores(torch.get_num_threads())


class Opener:
    """One version of a model.

    Args:
        path: of its file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: what auto-completion has loaded already, for the first instance
        self._program: Any = None
        #: with ENABLE_WEIGHT_SHARING, by device
        self._shared: dict[str, TorchModel] = {}
        self._logged = False

    def complete(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the configuration with the tensors of an exported program; other files do not tell theirs.

        Raises:
            Internal, InvalidArgument: the file does not load, or contradicts the configuration.
        """
        if kind_of(self._path, spec.name) is not FileKind.EXPORTED:
            host.log(
                "WARNING",
                f"skipping model configuration auto-complete for '{spec.name}': not supported for pytorch backend; "
                f"{FileKind.SCRIPT.value} and AOTInductor do not tell types and shapes: write input and output in "
                "config.pbtxt",
            )
            return spec.config
        self._program = exported.load(self._path, spec.name, torch.device("cpu"))
        return complete_onnx(spec.config, *exported.found_tensors(self._program, spec.declared_names))

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[PyTorchInstance]:
        """Load the model for each instance.

        Raises:
            EdgeServeError: with the reason.
        """
        settings = settings_of(spec.config)
        self._log_settings(settings, spec)
        _set_process(settings, spec)
        kind = kind_of(self._path, spec.name)
        _load_operators(spec)
        opened: list[PyTorchInstance] = []
        try:
            for one in instances:
                opened.append(self._instance(spec, one, kind, settings, len(instances)))
        except BaseException:
            for instance in opened:
                instance.close()
            raise
        return opened

    def close(self) -> None:
        """Release what instances share."""
        self._shared.clear()
        self._program = None

    def _instance(
        self, spec: ModelSpec, instance: InstanceSpec, kind: FileKind, settings: TorchSettings, count: int
    ) -> PyTorchInstance:
        device = device_of(instance)
        model = self._shared.get(str(device))
        if model is None:
            model = self._load(spec, kind, device, settings, count)
            if settings.weight_sharing:
                self._shared[str(device)] = model
        else:
            loaded = "Inductor model loader" if kind is FileKind.COMPILED else "TorchScript model"
            host.log("INFO", f"Reusing {loaded} for instance '{instance.name}'")
        plan = make_plan(spec.config, (), _outputs(spec.config))
        return PyTorchInstance(model, plan, device, settings, _CORES)

    def _load(
        self, spec: ModelSpec, kind: FileKind, device: torch.device | None, settings: TorchSettings, count: int
    ) -> TorchModel:
        match kind:
            case FileKind.SCRIPT:
                return self._script(spec, device, settings)
            case FileKind.EXPORTED:
                return self._exported(spec, device)
            case FileKind.COMPILED:
                runners = count if settings.weight_sharing else 1
                loader = compiled.load(self._path, spec.name, device, runners)
                return compiled.CompiledModel(loader, spec.config, source_of(self._path, spec.name))

    def _script(self, spec: ModelSpec, device: torch.device | None, settings: TorchSettings) -> TorchModel:
        module = scripted.load(self._path, spec.name, device, settings)
        layer = scripted.trains(module)
        if layer and not self._shared:
            host.log(
                "WARNING",
                f"model '{spec.name}' was saved in training mode, in which {layer} answers otherwise: call "
                "model.eval() before it is saved",
            )
        return scripted.ScriptedModel(module, spec.config, settings)

    def _exported(self, spec: ModelSpec, device: torch.device | None) -> TorchModel:
        program, self._program = self._program, None
        if program is None or (device is not None and device.type != "cpu"):
            program = exported.load(self._path, spec.name, device)
        most, wanted = exported.most_rows(program), int(spec.config.get("max_batch_size", 0))
        if 0 < most < wanted:
            host.log(
                "WARNING",
                f"model '{spec.name}': max_batch_size is {wanted}, and the program takes batches of at most {most}: "
                f"larger ones fail, also those that the server joins; write max_batch_size: {most}, or export the "
                f'model with torch.export.Dim("batch", max={wanted})',
            )
        model = exported.ExportedModel(program, spec.config)
        _check_tensors(spec.config, model.signature, *exported.found_tensors(program))
        return model

    def _log_settings(self, settings: TorchSettings, spec: ModelSpec) -> None:
        """Write Triton's lines about the parameters, once: at INFO where the configuration sets them."""
        if self._logged:
            return
        self._logged = True
        for text, is_set in settings.lines:
            host.log("INFO" if is_set else "VERBOSE", text)


def _outputs(config: Mapping[str, Any]) -> list[FoundTensor]:
    """Return the outputs of a configuration and its states, of any shape."""
    types = {str(state["output_name"]): str(state["data_type"]) for state in states_of(config)}
    types |= {str(entry["name"]): str(entry["data_type"]) for entry in config.get("output", ())}
    return [FoundTensor(name, data_type, (-1,)) for name, data_type in types.items()]


def _check_tensors(
    config: Mapping[str, Any], signature: TensorPlaces, inputs: Sequence[FoundTensor], outputs: Sequence[FoundTensor]
) -> None:
    """Check types and shapes of a configuration by the program's own, under the names of the configuration."""
    sides = ((signature.inputs, inputs), (signature.outputs, outputs))
    named = [
        [
            FoundTensor(name, found[place].data_type, found[place].dims, found[place].kind)
            for name, place in places.items()
        ]
        for places, found in sides
    ]
    check_onnx(config, *named)


def _set_process(settings: TorchSettings, spec: ModelSpec) -> None:
    """Set what torch keeps for the whole process."""
    if not settings.cudnn:  # for all models: set before each run, it would change under those that run in other threads
        torch.backends.cudnn.enabled = False
    if not settings.inter_op_threads:
        return
    with contextlib.suppress(RuntimeError):  # only before the first work of this kind: another model set it
        torch.set_num_interop_threads(settings.inter_op_threads)
    host.log(
        "INFO", f"Inter op thread count is set to {torch.get_num_interop_threads()} for model instance '{spec.name}'"
    )


def _load_operators(spec: ModelSpec) -> None:
    """Load the libraries of `model_operations`, whose operators a model may use.

    Raises:
        Internal: one does not load.
    """
    load: Callable[[str], None] = torch.ops.load_library
    for name in (spec.config.get("model_operations") or {}).get("op_library_filename", ()):
        try:
            load(str(name))
        except Exception as error:
            raise failure(f"failed to load model '{spec.name}': op_library_filename '{name}'", error) from error
