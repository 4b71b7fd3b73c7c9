"""A package that AOTInductor compiled (`platform: "torch_aoti"`): native code, which torch loads and calls.

The code believes the shapes and types of its inputs, and would read beyond a tensor that is smaller. It has checks of
its own, which AOTI_RUNTIME_CHECK_INPUTS enables. But these refuse batches of one row, because torch.export takes every
variable dimension for 2 or more, while the code computes such batches correctly. So the limits are read from the
package's source and compared here; a package without its source keeps the checks of its own.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from edge_serve.errors import Internal, InvalidArgument

from .archive import check_target, check_whole, instructions_here, target_of
from .call_spec import input_leaves, output_leaves, signature_of
from .gpu import failure
from .signature import TensorPlaces

#: of the model in a package, where there are several
_NAME = "model"
_CHECKS = "AOTI_RUNTIME_CHECK_INPUTS"
#: the operator has not switched the checks off
_CHECKED = os.environ.get(_CHECKS, "1") != "0"
#: the code of a package reads the variable in its first run
_FIRST_RUN = threading.Lock()
#: torch reads $TMPDIR, which each load changes
_UNPACKING = threading.Lock()
#: torch.export takes every variable dimension for so many or more
_LEAST_OF_EXPORT = 2
_TYPE = re.compile(r"\(input_handles\[(\d+)\]\);.{0,400}?_expected_dtype = aoti_torch_dtype_(\w+)\(", re.DOTALL)
_NUMBER = re.compile(
    r"input_handles\[(\d+)\]: (?:unmatched )?(dim value|dim value is too small|dim value is too large|stride value) at "
    r'(\d+), "\s*<< "expected[^0-9-]{0,20}(-?\d+)'
)


@dataclass(slots=True)
class InputLimits:
    """Shapes and the type that the code takes as one of its inputs.

    Attributes:
        data_type: as torch writes it, `torch.float32`.
        least, most: dimension -> size.
        strides: dimension -> distance of neighbours in memory.
    """

    data_type: str
    least: dict[int, int] = field(default_factory=dict)
    most: dict[int, int] = field(default_factory=dict)
    strides: dict[int, int] = field(default_factory=dict)

    def check(self, name: str, value: torch.Tensor) -> None:
        """Raise InvalidArgument unless a tensor fits."""
        shape = tuple(value.shape)
        fits = str(value.dtype) == self.data_type and len(shape) == len(self.least)
        if not fits or not all(low <= shape[dim] <= self.most.get(dim, shape[dim]) for dim, low in self.least.items()):
            raise InvalidArgument(
                f"input '{name}' is {value.dtype} of the shape {list(shape)}, and the model is compiled for "
                f"{self.data_type} of [{', '.join(self._size(dim) for dim in range(len(self.least)))}]"
            )
        if any(shape[dim] > 1 and value.stride(dim) != step for dim, step in self.strides.items()):
            raise InvalidArgument(
                f"input '{name}' has another order in memory than the example that the model was compiled with: "
                "compile it with example.contiguous()"
            )

    def _size(self, dim: int) -> str:
        least, most = self.least[dim], self.most.get(dim)
        return str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"


def limits_in(source: str, count: int) -> list[InputLimits]:
    """Return the limits of each input, in order; empty = the source does not tell all of them.

    Args:
        source: in C++, as AOTInductor writes it.
        count: of the inputs.
    """
    types = {int(index): f"torch.{name}" for index, name in _TYPE.findall(source)}
    if sorted(types) != list(range(count)):
        return []
    limits = [InputLimits(types[index]) for index in range(count)]
    for index, kind, dim, number in _NUMBER.findall(source):
        one, at, size = limits[int(index)], int(dim), int(number)
        match kind:
            case "dim value":
                one.least[at] = one.most[at] = size
            case "dim value is too small":
                one.least[at] = 1 if size == _LEAST_OF_EXPORT else size
            case "dim value is too large":
                one.most[at] = size
            case _:
                one.strides[at] = size
    # a dimension without a least size may be one without any check: then the number of dimensions is not known
    complete = all(set(one.least) == set(range(len(one.least))) >= {*one.most, *one.strides} for one in limits)
    return limits if complete else []


class CompiledModel:
    """A loaded package. Several threads may run it, as many at once as it has runners.

    Args:
        source: its C++ code; "" = the package lacks it.

    Attributes: as `ScriptedModel`.
    """

    def __init__(self, loader: Any, config: Mapping[str, Any], source: str) -> None:
        self.words = f'Inductor model instance "{config.get("name", "")}" execution failure'
        inputs, outputs = loader.get_call_spec()
        self.signature: TensorPlaces = signature_of(config, input_leaves(inputs), output_leaves(outputs))
        self._loader = loader
        self._limits: Sequence[InputLimits] = limits_in(source, self.signature.count) if _CHECKED else ()
        self._names = {place: name for name, place in self.signature.inputs.items()}
        self._has_run = False

    def run(self, arguments: list[Any]) -> Sequence[Any]:
        """Return the tensors of the result, in order.

        Raises:
            InvalidArgument: the model does not take inputs of these shapes.
        """
        for place, limits in enumerate(self._limits):
            if not limits.least and arguments[place].numel() == 1:  # a scalar, which requests give as [1]
                arguments[place] = arguments[place].reshape(())
            limits.check(self._names[place], arguments[place])
        found: Sequence[Any] = self._loader.run(arguments) if self._has_run else self._first_run(arguments)
        return found

    def _first_run(self, arguments: list[Any]) -> Sequence[Any]:
        with _FIRST_RUN:
            os.environ[_CHECKS] = "0" if self._limits or not _CHECKED else "1"
            found: Sequence[Any] = self._loader.run(arguments)
            self._has_run = True
        return found


def load(path: Path, model: str, device: torch.device | None, runners: int) -> Any:
    """Load a package.

    Args:
        runners: how many runs may be under way at once.

    Raises:
        Internal: it does not load.
    """
    check_whole(path, model)
    target = target_of(path, model)
    check_target(target, model, platform.machine(), instructions_here())
    built_for = target.get("AOTI_DEVICE_KEY", "")
    if device is not None and built_for and built_for != device.type:
        raise Internal(
            f"failed to load model '{model}': '{path}' was compiled for {built_for}, and its instance is on "
            f"{device.type}: write instance_group {{ kind: KIND_{'CPU' if built_for == 'cpu' else 'GPU'} }}, or "
            "compile it anew"
        )
    index = device.index if device is not None and device.type == "cuda" else -1
    try:
        with _unpacked_for_the_load() if built_for == "cpu" else contextlib.nullcontext():
            return torch._C._aoti.AOTIModelPackageLoader(str(path), _NAME, False, runners, index)
    except Exception as error:
        raise failure(f"failed to load model '{model}'", error) from error


@contextlib.contextmanager
def _unpacked_for_the_load() -> Iterator[None]:
    """Let torch unpack a package to a directory that is removed after the load, so that no killed worker leaves it.

    Code for the CPU is mapped by then. Kernels for a GPU are read from there later.
    """
    with _UNPACKING, tempfile.TemporaryDirectory(prefix="aotinductor_", ignore_cleanup_errors=True) as place:
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = place
        try:
            yield
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
