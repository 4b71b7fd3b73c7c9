"""The backend `python`: models written in Python against `triton_python_backend_utils`.

Start in `instance` for what happens to a batch, in `model` for how the file is imported, and in
`python_path/triton_python_backend_utils.py` for what models see. docs/python_backend.md is the user's page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.backends.python.api.config import ModelConfig
from edge_serve.backends.python.api.errors import describe
from edge_serve.backends.python.instance import PythonInstance
from edge_serve.backends.python.model import ModelFile
from edge_serve.errors import Internal

#: fields that a model may complete
COMPLETED = ("max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy")


class PythonBackend:
    """One version of a Python model in this process."""

    def __init__(self) -> None:
        self._model: ModelFile | None = None

    def complete_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Let the model's `auto_complete_config` complete the fields of COMPLETED; the others stay, as in Triton.

        Raises:
            Internal: the file does not import, or the function raised or returned something else.
        """
        model_class = self._imported(spec).model_class
        config: object = ModelConfig(json.dumps(spec.config))
        if hasattr(model_class, "auto_complete_config"):
            try:
                config = model_class.auto_complete_config(config)
            except BaseException as error:
                raise Internal(describe(error, sys._getframe())) from error
        if not isinstance(config, ModelConfig):
            raise Internal(
                f"auto_complete_config function in model '{spec.name}' must return a valid pb.ModelConfig object."
            )
        completed = config.as_dict()
        return {**spec.config, **{name: completed[name] for name in COMPLETED if name in completed}}

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[PythonInstance]:
        """Import the model and initialize its instances, in order.

        Raises:
            Internal: the file does not import, or an instance did not initialize.
        """
        model_class = self._imported(spec).model_class
        opened: list[PythonInstance] = []
        try:
            for instance in instances:
                opened.append(PythonInstance(model_class, spec, instance))
        except BaseException:
            for one in opened:
                one.close()
            raise
        return opened

    def close(self) -> None:
        """Remove the model's modules from this process."""
        if self._model is not None:
            self._model.unload()
            self._model = None

    def _imported(self, spec: ModelSpec) -> ModelFile:
        if self._model is None:
            self._model = ModelFile(spec)
        return self._model


#: the name that `backends.loader` looks for
Backend = PythonBackend
