"""Triton's other runtime for PyTorch (`runtime: "model.py"`): a network as Python code, a python-based backend.

The version directory has `model.py` with a class of torch.nn.Module, and perhaps its weights in `model.pt`, which
`torch.save(network.state_dict(), ...)` wrote; or TorchScript in `model.pt` alone. Inputs and outputs are in the order
of the configuration. Triton's own one: triton-inference-server/pytorch_backend src/model.py.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import triton_python_backend_utils as pb_utils

from edge_serve.backends.base import InstanceSpec
from edge_serve.backends.loader import pack_package
from edge_serve.backends.parameters import parameters_of
from edge_serve.backends.python.api.errors import Refusal
from edge_serve.errors import EdgeServeError, InvalidArgument, with_advice

#: the files beside this one as a package: the name `backend` alone could be a module of the network's
_PACKAGE = pack_package("pytorch", Path(__file__).parent)
#: the network is code already, so what it reads by itself is its own matter
_RESTRICTED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_by_operator = os.environ.get(_RESTRICTED)
importlib.import_module(f"{_PACKAGE}.backend").import_torch()
if _by_operator is None:
    del os.environ[_RESTRICTED]
_archive = importlib.import_module(f"{_PACKAGE}.archive")
_gpu = importlib.import_module(f"{_PACKAGE}.gpu")
_settings = importlib.import_module(f"{_PACKAGE}.settings")

import torch  # noqa: E402  # after its variables are set

_FAILED = "PyTorch execute failure"
_FILES = ("model.py", "model.pt")
_COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
#: of the imported file of a network; one process has one
_MODULE = "edge_serve_network"


class TritonPythonModel:
    """One instance, in a process of its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the network.

        Raises:
            Refusal: with the reason.
        """
        with _refusals():
            self._load(args)

    def _load(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._name = args["model_name"]
        self._batches = config["max_batch_size"] > 0
        self._inputs = [str(one["name"]) for one in config["input"]]
        self._outputs = [str(one["name"]) for one in config["output"]]
        if not (self._inputs and self._outputs):
            raise InvalidArgument("a network does not tell its tensors: write input and output in config.pbtxt")
        self._settings = _settings.settings_of(config)
        instance = InstanceSpec(self._name, args["model_instance_kind"], int(args["model_instance_device_id"]))
        device = _gpu.device_of(instance)
        torch.set_num_threads(self._settings.intra_op_threads or _share_of_cores(config))
        if self._settings.inter_op_threads:
            with contextlib.suppress(RuntimeError):  # only before the first work of this kind
                torch.set_num_interop_threads(self._settings.inter_op_threads)
        torch.backends.cudnn.enabled = self._settings.cudnn
        with torch.no_grad():  # it may write into its parameters when it is made
            network = _load(_path(config), device, self._name)
        if device is not None:
            network.to(device)
        self._device = device if device is not None else next((one.device for one in network.parameters()), None)
        self._network = _compiled(network.eval(), config)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Run the requests as one batch, where the model has batches.

        Raises:
            Refusal: the run failed, for all of them.
        """
        with _refusals():
            return self._execute(requests)

    def _execute(self, requests: Sequence[Any]) -> list[Any]:
        given = [[self._input(request, name) for name in self._inputs] for request in requests]
        if not self._batches:
            return [self._response(self._run(tensors)) for tensors in given]
        results = self._run([torch.cat(tensors) for tensors in zip(*given, strict=True)])
        rows = [tensors[0].shape[0] for tensors in given]
        for name, result in zip(self._outputs, results, strict=False):
            if not result.dim() or result.shape[0] != sum(rows):
                found = list(result.shape)
                raise InvalidArgument(f"output '{name}' has shape {found}, expected {sum(rows)} rows, as the batch has")
        parts = zip(*(torch.split(result, rows) for result in results[: len(self._outputs)]), strict=True)
        return [self._response(part) for part in parts]

    def _input(self, request: Any, name: str) -> torch.Tensor:
        given = pb_utils.get_input_tensor_by_name(request, name)
        if given is None:
            raise InvalidArgument(f"the request has no input '{name}': a network has a value for each of its arguments")
        tensor = torch.from_dlpack(given.to_dlpack())
        return tensor if self._device is None else tensor.to(self._device)

    def _run(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        try:
            with torch.inference_mode(self._settings.inference_mode), torch.no_grad():
                result = self._network(*tensors)
        except Exception as error:
            told: EdgeServeError = _gpu.failure(_FAILED, error)
            if told.message == f"{_FAILED}: {error}":
                raise  # with its type and its place in the network's file
            raise told from error
        results = result if isinstance(result, (tuple, list)) else [result]
        for one in results:
            if not isinstance(one, torch.Tensor):
                raise InvalidArgument(
                    f"the network returns {type(one).__name__}, expected tensors, alone or in a tuple"
                )
        if len(results) < len(self._outputs):
            raise InvalidArgument(
                f"the network returns {len(results)} tensors, and config.pbtxt has {len(self._outputs)} outputs: "
                f"{', '.join(self._outputs)}"
            )
        return results

    def _response(self, results: Sequence[torch.Tensor]) -> Any:
        pairs = zip(self._outputs, results, strict=False)
        tensors = [pb_utils.Tensor.from_dlpack(name, one.detach().cpu().contiguous()) for name, one in pairs]
        return pb_utils.InferenceResponse(output_tensors=tensors)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Let the client see the text of our errors, without the place in this file."""
    try:
        yield
    except EdgeServeError as error:
        raise Refusal(error.message) from error


def _share_of_cores(config: Mapping[str, Any]) -> int:
    """Return the threads of an instance: each one is a process, and would take all cores."""
    instances = sum(int(group.get("count") or 1) for group in config.get("instance_group", ()))
    return max(1, int(torch.get_num_threads()) // max(1, instances))


def _path(config: Mapping[str, Any]) -> Path:
    folder = Path(pb_utils.get_model_dir())
    names = [name for name in (config.get("default_model_filename"), *_FILES) if name]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise InvalidArgument(
        f"no model found in {folder}: expected {' or '.join(dict.fromkeys(names))}, a class of torch.nn.Module or "
        "TorchScript"
    )


def _load(path: Path, device: torch.device | None, model: str) -> Any:
    """Load a network. TorchScript is loaded to `device`, or with None to the devices that its file names."""
    words = f"failed to load model '{model}'"
    if path.suffix != ".py":
        try:
            _archive.kind_of(path, model)
        except EdgeServeError as error:
            advice = "weights alone need the class of their network beside them, in model.py"
            raise InvalidArgument(with_advice(error.message, advice)) from error
        try:
            return torch.jit.load(str(path), map_location=device)
        except Exception as error:
            raise _gpu.failure(words, error) from error
    network = _network_class(_imported(path), path.name)()
    weights = path.with_suffix(".pt")
    if not weights.is_file():
        pb_utils.Logger.log_info(f"Model parameter file not found for '{model}': {weights.name}")
        return network
    wanted = f"expected the weights of the class in {path.name}: torch.save(network.state_dict(), '{weights.name}')"
    try:
        found = torch.load(weights, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).partition(". ")[0]  # what follows advises to run any code that a file has
        raise InvalidArgument(f"{words}: {weights.name} cannot be read: {reason}; {wanted}") from error
    try:
        network.load_state_dict(found)
    except Exception as error:
        raise InvalidArgument(f"{words}: {weights.name} has others: {error}; {wanted}") from error
    return network


def _imported(path: Path) -> ModuleType:
    with contextlib.suppress(ValueError):
        sys.path.remove(str(Path(__file__).parent))  # its files have names that a network's may have, too
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _network_class(module: ModuleType, file: str) -> type[torch.nn.Module]:
    """Return the class of a file: one that it defines, else one that it imports; of several, the first by name."""
    values = dict.fromkeys(one for _, one in sorted(vars(module).items()) if isinstance(one, type))
    classes = [one for one in values if issubclass(one, torch.nn.Module)]
    found = [one for one in classes if one.__module__ == module.__name__] or classes
    if not found:
        raise InvalidArgument(f"Cannot find a subclass of torch.nn.Module: {file} has to define one, without arguments")
    if len(found) > 1:
        names = ", ".join(one.__name__ for one in found)
        pb_utils.Logger.log_warn(f"{file} has the classes {names}: the first of these names is the network")
    return found[0]


def _compiled(network: Any, config: Mapping[str, Any]) -> Any:
    """Compile a network, where the configuration asks for it: torch.compile needs a C++ compiler on the device, at the
    first request. Triton always compiles."""
    text = parameters_of(config).get(_COMPILE)
    if text is None or isinstance(network, torch.jit.ScriptModule):
        return network
    try:
        options = json.loads(text)
        if not isinstance(options, dict) or "model" in options:
            raise ValueError("'model' is not an optional parameter for 'torch.compile'")
        return torch.compile(network, **options)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidArgument(
            f"the parameter {_COMPILE}: {error}; expected a JSON object of torch.compile's arguments, as in "
            '{"fullgraph": true}'
        ) from error
