"""Opens a forest as a worker would, in the process of the tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_serve.backends.base import BackendRequest, InstanceSpec, ModelSpec, Reply, Timing
from edge_serve.messages.tensors import Array
from packs.fil.backend import FilBackend
from packs.fil.instance import FilInstance
from tests.backends.hosting import model_spec, request, tensor

OUTPUTS = ("output__0",)


def parameters(**values: str) -> dict[str, Any]:
    """Return the parameters of a configuration."""
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


def tensors(features: int, width: int) -> dict[str, Any]:
    """Return a configuration with tensors."""
    return {
        "max_batch_size": 100_000,
        "input": [{"name": "input__0", "data_type": "TYPE_FP32", "dims": [features]}],
        "output": [{"name": "output__0", "data_type": "TYPE_FP32", "dims": [width]}],
    }


def make_model(root: Path, file: Path, config: Mapping[str, Any] | None = None) -> ModelSpec:
    """Return the description of a model with a copy of a file."""
    (root / "m/1").mkdir(parents=True, exist_ok=True)
    shutil.copy(file, root / "m/1" / file.name)
    return model_spec(root / "m", config)


def opened(spec: ModelSpec, instances: int = 1) -> tuple[FilBackend, list[FilInstance]]:
    """Complete the configuration, and load the model."""
    backend = FilBackend()
    spec.config = backend.complete_config(spec)
    return backend, backend.open(spec, [InstanceSpec(f"m_{number}") for number in range(instances)])


def case(directory: Path) -> tuple[Path, dict[str, str], Array, Array]:
    """Return the file of a trained model, its parameters, its inputs, and what its library predicts."""
    told = json.loads((directory / "case.json").read_text())
    arrays = (np.load(directory / f"{name}.npy") for name in ("inputs", "expected"))
    return (directory / told["file"], told["parameters"], *arrays)


def ask(instance: FilInstance, *inputs: Array, outputs: Sequence[str] = OUTPUTS) -> list[Reply]:
    """Execute a batch with a request for each array."""
    batch: list[BackendRequest] = [request(tensor("input__0", one), outputs=outputs) for one in inputs]
    return instance.execute(batch, Timing())


def answer(instance: FilInstance, rows: Array) -> Array:
    """Return output__0 for rows."""
    (reply,) = ask(instance, rows)
    assert reply.error is None, reply.error
    return reply.outputs[0].array()
