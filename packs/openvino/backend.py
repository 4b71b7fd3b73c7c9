"""The backend `openvino`: models of OpenVINO, ONNX, TensorFlow, TensorFlow Lite, and PaddlePaddle on the CPU.

Start in `instance` for what happens to a batch, in `settings` for what the configuration can say, and in `signature`
for shapes and types. docs/openvino.md is the user's page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.backends.binding_plan import make_plan
from edge_serve.backends.parameters import integer
from edge_serve.config.model.complete import FoundTensor
from edge_serve.config.model.layout import advice_on_file
from edge_serve.errors import InvalidArgument, Unavailable, with_advice

from . import library, signature
from .instance import OpenVinoInstance, Runnable
from .settings import OpenVinoSettings, settings_of


class OpenVinoBackend:
    """One version of a model. Its instances share the compiled model, and have a request of it each."""

    def __init__(self) -> None:
        self._runnable: Runnable | None = None

    def complete_config(self, spec: ModelSpec) -> dict[str, Any]:
        """The configuration with the model's own inputs and outputs filled in, and whether it batches.

        Raises:
            InvalidArgument: the configuration contradicts the model.
            Internal, Unavailable: the model does not load.
        """
        config = spec.config
        if (config.get("input") or config.get("batch_input")) and config.get("output"):
            return config
        settings, declared = settings_of(config, 1), spec.declared_names
        path, opened = model_path(spec), library.OpenVino(spec.name)
        model = opened.read(path, settings)
        taken = {name for port in _ports(model, path)[0] for name in port.names}
        opened.add_outputs(model, [name for name in declared if name not in taken])
        most = spec.backend_config.get("default-max-batch-size")
        return signature.completed(config, *_ports(model, path), None if most is None else integer(most), declared)

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[OpenVinoInstance]:
        """Load the model.

        Raises:
            InvalidArgument: the configuration contradicts the model, or has a value that is not known.
            Internal, Unavailable: the model does not load.
        """
        if any(instance.kind != "CPU" for instance in instances):
            text = f"unable to load model '{spec.name}', Triton OpenVINO backend supports only Kind CPU and AUTO"
            raise InvalidArgument(with_advice(text, "another device is named by the parameter TARGET_DEVICE"))
        if self._runnable is None:
            self._runnable = _load(spec, settings_of(spec.config, len(instances)))
        return [OpenVinoInstance(self._runnable) for _ in instances]

    def close(self) -> None:
        """Release the compiled model."""
        self._runnable = None


def _load(spec: ModelSpec, settings: OpenVinoSettings) -> Runnable:
    """Read, reshape, check, convert and compile a model."""
    config, path, opened = spec.config, model_path(spec), library.OpenVino(spec.name)
    model = opened.read(path, settings)
    opened.add_outputs(model, [str(entry.get("name")) for entry in config.get("output", ())])
    opened.reshape(model, signature.shaped_inputs(config, _ports(model, path)[0], settings))
    inputs, outputs = _ports(model, path)
    signature.check(config, inputs, outputs)
    taken = [signature.declared_type(config, port, "input") for port in inputs]
    given = [signature.declared_type(config, port, "output") for port in outputs]
    compiled = opened.compile(opened.convert(model, taken, given), settings)
    found = [
        [
            FoundTensor(signature.name_in(config, port, side), data_type, port.dims or ())
            for port, data_type in zip(ports, types, strict=True)
        ]
        for side, ports, types in (("input", inputs, taken), ("output", outputs, given))
    ]
    most = int(config.get("max_batch_size", 0)) if settings.pads else 0
    return Runnable(compiled, make_plan(config, *found), found[0], found[1], most)


def _ports(model: library.Model, path: Path) -> tuple[list[signature.Port], list[signature.Port]]:
    """Return the inputs and the outputs of a model."""
    is_tensorflow = path.is_dir() or path.suffix in (".graphdef", ".pb")
    return (
        library.ports(model.inputs, "input", is_tensorflow=is_tensorflow),
        library.ports(model.outputs, "output", is_tensorflow=is_tensorflow),
    )


def model_path(spec: ModelSpec) -> Path:
    """Return the model's file, or the directory of a SavedModel.

    Raises:
        Unavailable: it is not there.
    """
    path = spec.version_directory / (spec.config.get("default_model_filename") or "model.xml")
    if path.is_dir() and not (path / "saved_model.pb").is_file() and (path / path.name).is_file():
        path /= path.name
    if not path.exists():
        text = f"unable to find '{path}' for model '{spec.name}'"
        raise Unavailable(with_advice(text, advice_on_file(path.parent, path.name, spec.name)))
    return path


#: the name that the loader looks for
Backend = OpenVinoBackend
