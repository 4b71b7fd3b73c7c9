"""An exported program (`torch.export`): loads `model.pt2`, and calls its module. Python calls each operator."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from edge_serve.config.model.complete import FoundTensor

from .call_spec import input_leaves, ordinals, output_leaves, signature_of
from .gpu import failure
from .instance import datatype_of
from .signature import TensorPlaces

#: more rows than any batch has; torch writes several kinds of infinity for a dimension without a limit
_ENDLESS = 2**31
#: torch keeps the state of a load in the process, and refuses a second one beside it
_LOADING = threading.Lock()


class ExportedModel:
    """A loaded program. Several threads may run it, unless it changes buffers of its own.

    Attributes: as `ScriptedModel`.
    """

    words = "PyTorch execute failure"

    def __init__(self, program: Any, config: Mapping[str, Any]) -> None:
        self._in_spec = program.call_spec.in_spec
        inputs, outputs = _leaves(program)
        self.signature: TensorPlaces = signature_of(config, inputs, outputs)
        #: the arguments are tensors one beside the other, so that no tree has to be built
        self._plain = inputs == [f"ARGS[{index}]" for index in range(len(inputs))]
        self._module = program.module()

    def run(self, arguments: list[Any]) -> Sequence[Any]:
        """Return the leaves of the result, in order. Those that are no tensors are not served."""
        if self._plain:
            return _flat(self._module(*arguments))
        args, kwargs = pytree.tree_unflatten(arguments, self._in_spec)
        return _flat(self._module(*args, **kwargs))


def load(path: Path, model: str, device: torch.device | None) -> Any:
    """Load a program, and move it to a device.

    Raises:
        Internal: it does not load.
    """
    with _LOADING:
        return _load(path, model, device)


def _load(path: Path, model: str, device: torch.device | None) -> Any:
    log = logging.getLogger("torch.export")
    level, log.level = log.level, logging.CRITICAL  # the error has the reason
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with path.open("rb") as file:  # a name that does not end in .pt2 is a warning
                program = torch.export.load(file)
            if device is not None and device.type != "cpu":
                from torch.export.passes import move_to_device_pass

                program = move_to_device_pass(program, device)
    except Exception as error:
        raise failure(f"failed to load model '{model}'", error) from error
    finally:
        log.level = level
    return program


def found_tensors(program: Any, declared: Sequence[str] = ()) -> tuple[list[FoundTensor], list[FoundTensor]]:
    """Return the inputs and outputs of a program, with -1 for variable dimensions.

    A tensor is called by its number, or by its place in the arguments or the result if that name is declared.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    sides = (program.graph_signature.user_inputs, program.graph_signature.user_outputs)
    inputs, outputs = ([values.get(name) for name in names] for names in sides)
    input_names, output_names = _leaves(program)
    return _found("input", inputs, input_names, declared), _found("output", outputs, output_names, declared)


def most_rows(program: Any) -> int:
    """Return the most rows that a batch may have; 0 = the program does not say."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs = [values.get(name) for name in program.graph_signature.user_inputs]
    rows = [value.shape[0] for value in inputs if isinstance(value, torch.Tensor) and value.dim()]
    ranges = [program.range_constraints.get(one.node.expr) for one in rows if isinstance(one, torch.SymInt)]
    return min((int(found.upper) for found in ranges if found is not None and found.upper < _ENDLESS), default=0)


def _leaves(program: Any) -> tuple[list[str], list[str]]:
    spec = program.call_spec
    return input_leaves(pytree.treespec_dumps(spec.in_spec)), output_leaves(pytree.treespec_dumps(spec.out_spec))


def _found(side: str, values: Sequence[Any], leaves: Sequence[str], declared: Sequence[str]) -> list[FoundTensor]:
    numbers = ordinals(side, len(values))
    names = [leaf if leaf in declared else number for leaf, number in zip(leaves, numbers, strict=True)]
    return [_described(name, value) for name, value in zip(names, values, strict=True)]


def _described(name: str, value: Any) -> FoundTensor:
    if not isinstance(value, torch.Tensor):
        return FoundTensor(name, "", (), type(value).__name__)
    datatype = datatype_of(value)
    dims = tuple(dim if isinstance(dim, int) else -1 for dim in value.shape)
    return FoundTensor(name, datatype.config_name if datatype else "", dims, "" if datatype else str(value.dtype))


def _flat(value: Any) -> Sequence[Any]:
    if isinstance(value, torch.Tensor):
        return (value,)
    found: Sequence[Any] = pytree.tree_leaves(value)
    return found
