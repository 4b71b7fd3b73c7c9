"""A TorchScript model: loads `model.pt`, and calls its `forward`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, with_advice

from .gpu import failure
from .names import Argument, signature_of
from .settings import TorchSettings
from .signature import TensorPlaces

#: in scripts that were saved in training mode, these answer differently each time, or from the batch
_TRAINS = ("Dropout", "BatchNorm", "AlphaDropout", "FeatureAlphaDropout")
_NO_OPERATOR = re.compile(r"Unknown builtin op: (\w+(?:::\w+)*)|operator (\w+(?:::\w+)*) does not exist")


class ScriptedModel:
    """A loaded script. Several threads may run it, unless it changes attributes of its own.

    Attributes:
        words: before the text of an error in a run.
        signature: the places of its tensors.
    """

    words = "PyTorch execute failure"

    def __init__(self, module: Any, config: Mapping[str, Any], settings: TorchSettings) -> None:
        self.signature: TensorPlaces = signature_of(config, arguments_of(module))
        self._names = [*self.signature.inputs] if self.signature.keyed else []
        self._outputs = self.signature.outputs
        self._forward = module.forward
        self._settings = settings

    def run(self, arguments: list[Any]) -> Sequence[Any]:
        """Return the results in order: tensors, and lists of strings."""
        _set_executor(self._settings)
        if self._names:
            given = zip(self._names, arguments, strict=True)
            arguments = [{name: value for name, value in given if value is not None}]  # without optional ones
        try:
            return self._results(self._forward(*arguments))
        except UnicodeDecodeError as error:
            advice = "the model returns a string that is not UTF-8, which torch cannot hand over"
            raise Internal(with_advice(f"{self.words}: {error}", advice)) from error

    def _results(self, value: Any) -> Sequence[Any]:
        if isinstance(value, torch.Tensor):
            return (value,)
        if isinstance(value, dict):
            return self._by_name(value)
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return (value,)
        if isinstance(value, (tuple, list)):
            for index, one in enumerate(value):
                _check_result(one, index)
            return value
        raise Internal(
            f"{self.words}: output must be of type Tensor, List[str] or Tuple containing one of these two types. It "
            f"should not be a Scalar; found {type(value).__name__}"
        )

    def _by_name(self, found: Mapping[str, Any]) -> Sequence[Any]:
        """Return the results of a model that names them itself, which Triton refuses."""
        missing = [name for name in self._outputs if name not in found]
        if missing:
            raise InvalidArgument(
                f"the model returns a dictionary without '{missing[0]}': name the outputs in config.pbtxt after its "
                f"keys {', '.join(map(str, found))}"
            )
        results: list[Any] = [None] * (1 + max(self._outputs.values()))
        for name, place in self._outputs.items():
            _check_result(found[name], place)
            results[place] = found[name]
        return results


def load(path: Path, model: str, device: torch.device | None, settings: TorchSettings) -> Any:
    """Load a script; with `device` None to the devices that it was saved from.

    Raises:
        Internal: it does not load.
    """
    try:
        return _load(path, device, settings)
    except Exception as error:
        if not (_missing(error).startswith("torchvision::") and _has_torchvision()):
            raise _not_loaded(error, model) from error
    try:
        return _load(path, device, settings)
    except Exception as error:
        raise _not_loaded(error, model) from error


def _missing(error: Exception) -> str:
    """Return the operator that this torch lacks; "" = the error is another one."""
    match = _NO_OPERATOR.search(str(error))
    return next(filter(None, match.groups()), "") if match else ""


def _load(path: Path, device: torch.device | None, settings: TorchSettings) -> Any:
    with warnings.catch_warnings(), torch.inference_mode(settings.inference_mode):
        warnings.simplefilter("ignore", DeprecationWarning)  # torch wants torch.export in place of scripts
        return torch.jit.load(str(path), map_location=device)


def _has_torchvision() -> bool:
    """Import torchvision, which has operators of its own, as Triton's backend does. Return whether it is installed."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        return False
    return True


def _not_loaded(error: Exception, model: str) -> EdgeServeError:
    told, operator = failure(f"failed to load model '{model}'", error), _missing(error)
    if not operator:
        return told
    package = operator.partition("::")[0]
    advice = (
        f"this torch has no operator {operator}: name the library that has it in config.pbtxt, model_operations "
        '{ op_library_filename: "PATH" }, or export the model without it'
    )
    if package == "torchvision":
        advice = "the model has operators of torchvision: install that beside torch, in the version that belongs to it"
    return Internal(with_advice(told.message.rstrip(), advice))


def arguments_of(module: Any) -> list[Argument]:
    """Return the arguments of `forward`, without the module itself.

    Raises:
        Internal: it has no such method.
    """
    if not hasattr(module, "forward"):
        raise Internal("the script has no method forward(), which is what runs: give its module one, and save it again")
    found = module.forward.schema.arguments
    if found and found[0].type.kind() in ("ClassType", "InterfaceType"):
        found = found[1:]
    return [Argument(argument.name, argument.type.kind(), argument.type.annotation_str) for argument in found]


def trains(module: Any) -> str:
    """Return the layer of a script that was saved in training mode and answers differently there; "" = none."""
    for name, layer in module.named_modules():
        kind = str(getattr(layer, "original_name", ""))
        if kind.startswith(_TRAINS) and getattr(layer, "training", False):
            return f"{name} ({kind})" if name else kind
    return ""


def _check_result(value: Any, index: int) -> None:
    if isinstance(value, torch.Tensor) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return
    raise Internal(
        f"PyTorch execute failure: output at index {index} must be of type Tensor or List[str], received "
        f"{type(value).__name__}"
    )


def _set_executor(settings: TorchSettings) -> None:
    """Set what torch keeps for the process or the thread, as Triton does before each run."""
    torch._C._set_graph_executor_optimize(settings.optimized)
    if settings.jit_profiling is not None:
        torch._C._jit_set_profiling_mode(settings.jit_profiling)
    if settings.jit_executor is not None:
        torch._C._jit_set_profiling_executor(settings.jit_executor)
    if settings.tensor_fuser is not None:
        torch._C._jit_set_texpr_fuser_enabled(settings.tensor_fuser)
