"""Writer of a golden test: the document and its files take the place of an older test in two renames."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_serve.errors import InvalidArgument
from edge_serve.files import sync_directory, write_durably
from edge_serve.golden.reader import (
    DEFAULT_ATOL,
    DEFAULT_RTOL,
    DIRECTORY,
    DOCUMENT,
    MOST_BYTES,
    MOST_DOCUMENT_BYTES,
    MOST_SAMPLES,
    MOST_STRINGS,
    SCHEMA,
    GoldenBudget,
    GoldenSample,
    replaced,
)
from edge_serve.messages.tensors import Buffer, DataType, InferTensor, element_count
from edge_serve.records import frozen

_DEFAULTS = (DEFAULT_RTOL, DEFAULT_ATOL)
#: errors of a disk without space for this user
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: bytes of golden.json that are not samples
_HEAD_BYTES = 1024


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
        InvalidArgument: it cannot be written, or is over a limit of the reader, so that no load would accept it.
    """
    if not any(recording.streams or any(recording.responses) for recording in recordings):
        raise InvalidArgument("no sample got an output, so there is nothing to record: expected a model with outputs")
    count, problem = count_fitting(recordings)
    if count < len(recordings):
        raise InvalidArgument(
            f"sample '{recordings[count].name}' does not fit into a golden test: {problem}; record less"
        )
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
        advice = "free some space" if error.errno in _FULL else "expected a directory that this user may write"
        raise InvalidArgument(f"{DIRECTORY}/ cannot be written: {error.strerror or error}; {advice}") from error


def count_fitting(recordings: Sequence[Recording]) -> tuple[int, str]:
    """Return how many of the first recordings one golden test may have, and why it cannot have the next one."""
    text_bytes, tensor_bytes = _HEAD_BYTES, 0
    for number, recording in enumerate(recordings):
        files: dict[str, Buffer] = {}
        text_bytes += len(json.dumps([[_sample(number, recording, files)]], indent=1))  # indented as in the document
        tensor_bytes += sum(memoryview(data).nbytes for data in files.values())
        tensors = [*recording.inputs, *(one for outputs in recording.responses for one in outputs)]
        strings = max((element_count(one.shape) for one in tensors if one.datatype is DataType.BYTES), default=0)
        for what, found, most in (
            ("samples", number + 1, MOST_SAMPLES),
            ("responses of a sample", len(recording.responses), MOST_SAMPLES),
            ("strings in a tensor", strings, MOST_STRINGS),
            ("bytes of tensors together", tensor_bytes, MOST_BYTES),
            (f"bytes of {DOCUMENT}", text_bytes, MOST_DOCUMENT_BYTES),
        ):
            if found > most:
                return number, f"{found} {what}, and the limit is {most}"
    return len(recordings), ""


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
    """Write the files of a golden test in place of an older one. Where `golden` is a link, it stays one.

    Between the two renames there is no test: `read_golden` then refuses the model.
    """
    target = (model_directory / DIRECTORY).resolve()
    new, old = target.with_name(f".{target.name}.new"), replaced(target)
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():  # the only copy: a recording was interrupted
        old.rename(target)
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir()
        for name, data in files.items():
            write_durably(new / name, [data])
        sync_directory(new)
        if target.exists():
            target.rename(old)
        new.rename(target)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        if not target.exists() and old.exists():
            old.rename(target)
        raise
    sync_directory(target.parent)
    shutil.rmtree(old, ignore_errors=True)
