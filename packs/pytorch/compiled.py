"""A package that AOTInductor compiled (`platform: "torch_aoti"`): native code, which torch loads and calls."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from edge_serve.errors import Internal

from .archive import check_target, instructions_here, target_of
from .call_spec import input_leaves, output_leaves, signature_of
from .gpu import failure
from .signature import TensorPlaces

#: of the model in a package, where there are several
_NAME = "model"


class CompiledModel:
    """A loaded package. Several threads may run it, as many at once as it has runners.

    Attributes: as `ScriptedModel`.
    """

    def __init__(self, loader: Any, config: Mapping[str, Any]) -> None:
        self.words = f'Inductor model instance "{config.get("name", "")}" execution failure'
        inputs, outputs = loader.get_call_spec()
        self.signature: TensorPlaces = signature_of(config, input_leaves(inputs), output_leaves(outputs))
        self._loader = loader

    def run(self, arguments: list[Any]) -> Sequence[Any]:
        """Return the tensors of the result, in order."""
        found: Sequence[Any] = self._loader.run(arguments)
        return found


def load(path: Path, model: str, device: torch.device | None, runners: int) -> Any:
    """Load a package.

    Args:
        runners: how many runs may be under way at once.

    Raises:
        Internal: it does not load.
    """
    target = target_of(path)
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
        return torch._C._aoti.AOTIModelPackageLoader(str(path), _NAME, False, runners, index)
    except Exception as error:
        raise failure(f"failed to load model '{model}'", error) from error
