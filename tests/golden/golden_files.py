"""Writes golden tests."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_serve.messages.tensors import from_array, from_numpy_type

Arrays = Mapping[str, npt.NDArray[Any]]
_STRINGS = {"name": "S", "datatype": "BYTES", "file": "huge"}
#: place in the golden test of `add_sub`, a wrong value (None = it is missing), and the error
WRONG_MEMBERS: list[tuple[str, Any, str]] = [
    ("schema", 2, "schema is 2, expected 1; a newer edge-serve may know it"),
    ("schema", True, "schema is True, expected 1"),
    ("schema", None, "schema is missing"),
    ("colour", 1, "'colour' is unknown; expected schema, samples, rtol, atol, budget"),
    ("samples", [], "samples is [], expected at least one sample"),
    ("samples", {}, "samples is {}, expected a list"),
    ("samples.0", 7, "samples[0] is 7, expected an object"),
    ("samples", [1] * 2000, "samples has 2000 entries, expected at most 1000"),
    ("samples.0.name", "a\nb", "samples[0].name is 'a\\nb', expected a name in printable characters"),
    ("samples.0.Inputs", [], "samples[0].'Inputs' is unknown; expected name, inputs, parameters, outputs"),
    ("samples.0.outputs", None, "expected either outputs, or responses for a decoupled model"),
    ("samples.0.responses", [], "expected either outputs, or responses for a decoupled model"),
    ("samples.0.parameters", [], "samples[0].parameters is [], expected an object"),
    ("samples.0.parameters", {"sequence_start": 1}, "samples[0].parameters: Unable to parse 'sequence_start'"),
    ("samples.0.inputs.0.datatype", "FLOAT", "samples[0].inputs[0].datatype is 'FLOAT', expected one of BOOL"),
    ("samples.0.inputs.0.datatype", [], "samples[0].inputs[0].datatype is [], expected one of BOOL"),
    ("samples.0.inputs.0.shape", [1, -1], "inputs[0].shape is [1, -1], expected numbers that are 0 or more"),
    ("samples.0.inputs.0.shape", [1] * 300, "shape has 300 entries, expected at most 255"),
    ("samples.0.inputs.0.shape", [1, 15], "golden/first.in.INPUT0 has 64 bytes, expected 60 for INT32 [1, 15]"),
    ("samples.0.inputs.0.shape", [2**60, 2**60], "has 64 bytes, expected 531691198313966"),
    ("samples.0.inputs.0.datatype", "BYTES", ""),
    ("samples.0.inputs.1", {**_STRINGS, "shape": [2000000]}, "golden/huge has 2000000 strings, expected at most 1"),
    ("samples.0.inputs.0.rtol", 1, "samples[0].inputs[0].'rtol' is unknown"),
    ("samples.0.inputs.1.name", "INPUT0", "samples[0].inputs has the name 'INPUT0' twice"),
    ("samples.0.inputs.0.file", "none", "golden/none cannot be read: No such file or directory"),
    ("samples.0.inputs.0.file", "../x", "inputs[0].file is '../x', expected the name of a file in golden/"),
    ("samples.0.inputs.0.file", "..", "expected the name of a file in golden/"),
    ("samples.0.inputs.0.file", "a\0b", "expected a name in printable characters"),
    ("samples.0.inputs.0.file", "x" * 300, "expected the name of a file in golden/"),
    ("samples.0.inputs.0.file", "pipe", "golden/pipe is a directory, a pipe, a socket or a device"),
    ("samples.0.inputs.0.file", "folder", "golden/folder is a directory, a pipe"),
    ("samples.0.inputs.0.file", "huge", "larger than 268435456 bytes together with this one, which is the limit"),
    ("samples.0.inputs.0.file", "to_nothing", "golden/to_nothing cannot be read: No such file"),
    ("samples.0.outputs.0.rtol", -1, "outputs[0].rtol is -1, expected a finite number that is 0 or more"),
    ("samples.0.outputs.0.atol", "1", "samples[0].outputs[0].atol is '1', expected a finite number"),
    ("rtol", True, "rtol is True, expected a finite number"),
    ("budget", {"p95": 1}, "budget.'p95' is unknown; expected p95_ms, memory_bytes, requests"),
    ("budget", {"p95_ms": 0}, "budget.p95_ms is 0, expected milliseconds, a number above 0"),
    ("budget", {"memory_bytes": 1.5}, "budget.memory_bytes is 1.5, expected bytes, a whole number above 0"),
    ("budget", {"requests": 0}, "budget.requests is 0, expected a whole number from 1 to 100000"),
]  # fmt: skip


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


def wrong_add_sub(model: Path, path: str, value: Any) -> None:
    """Write the golden test of `add_sub` with one wrong member, beside files that are no tensors."""
    golden = json.loads(add_sub(model).read_text())
    os.mkfifo(model / "golden/pipe")
    (model / "golden/folder").mkdir()
    (model / "golden/to_nothing").symlink_to("nothing")
    with (model / "golden/huge").open("wb") as huge:
        huge.truncate(1 << 30)
    (model / "golden/golden.json").write_text(json.dumps(at(golden, path, value)))


def at(document: Any, path: str, value: Any) -> Any:
    """Put `value` where `path` says (`samples.0.name`); None removes."""
    *way, last = [int(one) if one.isdigit() else one for one in path.split(".")]
    here = document
    for one in way:
        here = here[one]
    if value is None:
        del here[last]
    else:
        here[last] = value
    return document
