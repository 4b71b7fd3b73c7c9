"""Writer of a golden test: the document and its files take the place of an older test in two renames."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_serve.errors import InvalidArgument
from edge_serve.files import write_durably
from edge_serve.golden.reader import (
    DEFAULT_ATOL,
    DEFAULT_RTOL,
    DIRECTORY,
    DOCUMENT,
    SCHEMA,
    GoldenBudget,
    GoldenSample,
)
from edge_serve.messages.tensors import Buffer, InferTensor
from edge_serve.records import frozen

_DEFAULTS = (DEFAULT_RTOL, DEFAULT_ATOL)
_NEW, _OLD = f".{DIRECTORY}.new", f".{DIRECTORY}.old"


@frozen
class Recording:
    """One request and what a model has answered.

    Attributes:
        before: the sample of the older test that was sent; None = there was none. It says which outputs matter.
        tolerance: rtol and atol of floats, where no older test has others; None = the defaults.
    """

    name: str
    parameters: dict[str, Any]
    inputs: Sequence[InferTensor]
    responses: Sequence[Sequence[InferTensor]]
    streams: bool = False
    before: GoldenSample | None = None
    tolerance: tuple[float, float] | None = None


def write_golden(model_directory: Path, recordings: Sequence[Recording], budget: GoldenBudget) -> None:
    """Write a golden test. An older one stays until all files of the new one are there.

    Raises:
        InvalidArgument: it cannot be written.
    """
    files: dict[str, Buffer] = {}
    samples = [_sample(number, recording, files) for number, recording in enumerate(recordings)]
    document: dict[str, Any] = {"schema": SCHEMA, "samples": samples}
    no_budget = asdict(GoldenBudget())
    if limits := {name: value for name, value in asdict(budget).items() if value != no_budget[name]}:
        document["budget"] = limits
    files[DOCUMENT] = json.dumps(document, indent=1).encode()
    try:
        _replace(model_directory, files)
    except OSError as error:
        text = (
            f"{DIRECTORY}/ cannot be written: {error.strerror or error}; expected a directory that this user may write"
        )
        raise InvalidArgument(text) from error


def _entry(tensor: InferTensor, file: str, files: dict[str, Buffer]) -> dict[str, Any]:
    """Add a tensor's file to `files`, and return its entry in the document."""
    files[file] = tensor.data
    return {"name": tensor.name, "datatype": tensor.datatype.name, "shape": list(tensor.shape), "file": file}


def _sample(number: int, recording: Recording, files: dict[str, Buffer]) -> dict[str, Any]:
    sample: dict[str, Any] = {"name": recording.name}
    if recording.parameters:
        sample["parameters"] = recording.parameters
    sample["inputs"] = [_entry(tensor, f"{number}.input{i}", files) for i, tensor in enumerate(recording.inputs)]
    before = recording.before
    wanted = {one.name: one for outputs in before.responses for one in outputs} if before is not None else {}
    responses = []
    for turn, outputs in enumerate(recording.responses):
        entries = []
        for i, tensor in enumerate(one for one in outputs if not wanted or one.name in wanted):
            entry = _entry(tensor, f"{number}.output{i}" + (f".{turn}" if turn else ""), files)
            old = wanted.get(tensor.name)
            rtol, atol = (old.rtol, old.atol) if old is not None else recording.tolerance or _DEFAULTS
            if (rtol, atol) != _DEFAULTS:
                entry |= {"rtol": rtol, "atol": atol}
            entries.append(entry)
        responses.append(entries)
    if recording.streams:
        return {**sample, "responses": [{"outputs": entries} for entries in responses]}
    return {**sample, "outputs": responses[0]}


def _replace(model_directory: Path, files: dict[str, Buffer]) -> None:
    target, new, old = (model_directory / name for name in (DIRECTORY, _NEW, _OLD))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    new.mkdir()
    for name, data in files.items():
        write_durably(new / name, [data])
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)
