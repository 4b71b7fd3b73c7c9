"""Writes golden tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_serve.messages.tensors import from_array, from_numpy_type

Arrays = Mapping[str, npt.NDArray[Any]]


def tensors(directory: Path, prefix: str, arrays: Arrays) -> list[dict[str, Any]]:
    """Write a file for each array; the entries of golden.json."""
    entries = []
    for name, array in arrays.items():
        datatype = from_numpy_type(array.dtype)
        assert datatype is not None
        (directory / f"{prefix}.{name}").write_bytes(from_array(array, datatype))
        shape = list(array.shape)
        entries.append({"name": name, "datatype": datatype.name, "shape": shape, "file": f"{prefix}.{name}"})
    return entries


def sample(
    model: Path, name: str, inputs: Arrays, outputs: Arrays | Sequence[Arrays], **further: Any
) -> dict[str, Any]:
    """Write the files of a sample; its entry. A list of outputs is that of a decoupled model's responses."""
    directory = model / "golden"
    directory.mkdir(exist_ok=True)
    entry: dict[str, Any] = {"name": name, "inputs": tensors(directory, f"{name}.in", inputs), **further}
    if isinstance(outputs, Mapping):
        return {**entry, "outputs": tensors(directory, f"{name}.out", outputs)}
    responses = [tensors(directory, f"{name}.out{i}", one) for i, one in enumerate(outputs)]
    return {**entry, "responses": [{"outputs": one} for one in responses]}


def document(model: Path, *samples: dict[str, Any], **further: Any) -> Path:
    """Write golden.json; its path."""
    (model / "golden").mkdir(exist_ok=True)
    path = model / "golden" / "golden.json"
    path.write_text(json.dumps({"schema": 1, "samples": samples, **further}))
    return path


def add_sub(model: Path, wrong: int = 0, **further: Any) -> Path:
    """Write the golden test of `running.ADD_SUB`, whose first sum is `wrong` too high."""
    a, b = np.arange(16, dtype=np.int32).reshape(1, 16), np.full((1, 16), 7, np.int32)
    total = a + b
    total[0, 3] += wrong
    outputs = {"OUTPUT0": total, "OUTPUT1": a - b}
    return document(model, sample(model, "first", {"INPUT0": a, "INPUT1": b}, outputs), **further)
