"""Strict reader of golden.json, with the rules and limits of docs/golden_tests.md. Devices refuse other documents."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ota import files
from ota.errors import Untrusted, UsageError
from ota.publish.bundles.source import ModelSource
from ota.strict_json import Members, parse

FILE = "golden/golden.json"
SCHEMA = 1
MOST_DOCUMENT = 1024 * 1024
MOST_SAMPLES = 1000
MOST_RANK = 255
MOST_REQUESTS = 100_000
#: bytes of all tensor files together, and strings of one tensor
MOST_BYTES = 256 * 1024 * 1024
MOST_STRINGS = 1_000_000
#: bytes of an element; BYTES has elements of any length
SIZES = {
    "BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FP16": 2, "BF16": 2, "INT32": 4, "UINT32": 4, "FP32": 4,
    "INT64": 8, "UINT64": 8, "FP64": 8, "BYTES": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """An input, or an output with the tolerances that it has of its own."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    file: str
    tolerances: dict[str, float]


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """One request and the outputs of its responses.

    Attributes:
        streams: it lists `responses`, as for a decoupled model.
    """

    name: str
    parameters: dict[str, Any]
    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    streams: bool

    @property
    def tensors(self) -> tuple[TensorEntry, ...]:
        """The inputs and outputs."""
        return (*self.inputs, *self.outputs)


def parse_document(data: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object of a golden test.

    Raises:
        UsageError: it is none.
    """
    try:
        return parse(data, what, MOST_DOCUMENT)
    except Untrusted as error:
        raise UsageError(error.message) from None


def read_samples(document: dict[str, Any], what: str) -> list[SampleEntry]:
    """Return the samples of a golden test. Its files are not read.

    Raises:
        UsageError: a device would refuse the document.
    """
    members = Members(document, what, UsageError)
    if members.integer("schema") != SCHEMA:
        members.refuse("schema", document["schema"], f"expected {SCHEMA}")
    samples = [_sample(one) for one in members.objects("samples", most=MOST_SAMPLES)]
    if not samples:
        members.refuse("samples", [], "expected at least one")
    _check_unique(members, "samples", [one.name for one in samples])
    _tolerances(members)
    if members.has("budget"):
        _check_budget(Members(members.table("budget", most=3), f"{what}: budget", UsageError))
    _end(members)
    return samples


def check_files(source: ModelSource, samples: Sequence[SampleEntry]) -> None:
    """Refuse a golden test that compares nothing, or whose files are missing or do not match their shapes.

    Raises:
        UsageError: see above.
    """
    where = f"{source.directory}/{FILE}"
    if not any(one.outputs or one.streams for one in samples):
        raise UsageError(f"{where} lists no output, so it would compare nothing: list outputs, or add --golden-from")
    total = 0
    for sample in samples:
        for tensor in sample.tensors:
            total += _check_file(source, tensor)
            if total > MOST_BYTES:
                raise UsageError(
                    f"the files of {where} have more than {MOST_BYTES} bytes together: use smaller or fewer samples"
                )


def _check_file(source: ModelSource, tensor: TensorEntry) -> int:
    """Return the size of a tensor's file."""
    count, size = prod(tensor.shape), SIZES[tensor.datatype]
    if not size and count > MOST_STRINGS:
        raise UsageError(f"{tensor.name} of {source.model} has {count} strings, expected at most {MOST_STRINGS}")
    data = read_file(source, tensor)
    found, unit = (len(data), "bytes") if size else (_count_strings(data), "strings")
    expected = count * size if size else count
    if found != expected:
        raise UsageError(
            f"golden/{tensor.file} of {source.model} has {found} {unit}, and its shape and datatype make {expected}"
        )
    return len(data)


def read_file(source: ModelSource, tensor: TensorEntry) -> bytes:
    """Return the bytes of a tensor.

    Raises:
        UsageError: the file is missing. StoreError: it is too long, or cannot be read.
    """
    path = f"golden/{tensor.file}"
    data = source.made.get(path)
    if data is None and path in source.files:
        data = files.read(source.files[path], MOST_BYTES)
    if data is None:
        raise UsageError(f"{source.directory}/{FILE} names {tensor.file!r}, which is not in golden/")
    return data


def _count_strings(data: bytes) -> int:
    """Return the number of strings, each after its length; -1 = the last one is cut off."""
    at = count = 0
    while at + 4 <= len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        count += 1
    return count if at == len(data) else -1


def _sample(members: Members) -> SampleEntry:
    name = _name(members)
    parameters = members.table("parameters", {}, most=MOST_SAMPLES)
    _check_parameters(members, parameters)
    inputs = tuple(_tensors(members, "inputs", outputs=False))
    streams = members.has("responses")
    outputs = []
    for reply in members.objects("responses", most=MOST_SAMPLES) if streams else [members]:
        outputs += list(_tensors(reply, "outputs", outputs=True))
        _end(reply)
    _end(members)  # of a decoupled model: outputs beside responses
    return SampleEntry(name, parameters, inputs, tuple(outputs), streams)


def _check_parameters(members: Members, parameters: dict[str, Any]) -> None:
    """Refuse parameters that no request can have. KServe v2, and Triton's names."""
    for name, value in parameters.items():
        kinds: tuple[type, ...] = (bool, int, float, str)
        if name in ("sequence_start", "sequence_end", "binary_data_output"):
            kinds = (bool,)
        elif name in ("priority", "timeout", "sequence_id"):
            kinds = (int, str) if name == "sequence_id" else (int,)
        if type(value) not in kinds or (kinds[0] is int and not isinstance(value, str) and not 0 <= value < 2**64):
            members.refuse(f"parameters.{name}", value, f"expected {' or '.join(one.__name__ for one in kinds)}")
        if name.startswith("triton_"):
            members.refuse(f"parameters.{name}", value, "and names that begin with triton_ are reserved")


def _tensors(members: Members, member: str, *, outputs: bool) -> Iterator[TensorEntry]:
    names = []
    for one in members.objects(member, most=MOST_SAMPLES):
        names.append(_name(one))
        datatype = one.text("datatype")
        if datatype not in SIZES:
            one.refuse("datatype", datatype, f"expected one of {', '.join(SIZES)}")
        shape = one.array("shape", most=MOST_RANK)
        if not all(type(size) is int and size >= 0 for size in shape):
            one.refuse("shape", shape, "expected numbers that are 0 or more: the shape of this one request")
        file = one.text("file")
        if not file or "/" in file or file in (".", "..", "golden.json") or len(file.encode()) > 255:
            one.refuse("file", file, "expected the name of a file in golden/, without a directory")
        tolerances = _tolerances(one) if outputs else {}
        _end(one)
        yield TensorEntry(names[-1], datatype, tuple(shape), file, tolerances)
    _check_unique(members, member, names)


def _tolerances(members: Members) -> dict[str, float]:
    return {name: members.number(name, most=sys.float_info.max) for name in ("rtol", "atol") if members.has(name)}


def _check_budget(members: Members) -> None:
    if members.has("p95_ms") and not members.number("p95_ms", most=sys.float_info.max):
        members.refuse("p95_ms", 0, "expected a number above 0")
    if members.has("memory_bytes"):
        members.integer("memory_bytes", least=1)
    members.integer("requests", 1, least=1, most=MOST_REQUESTS)
    _end(members)


def _name(members: Members) -> str:
    found = members.text("name", most=MOST_DOCUMENT)
    if not found:
        members.refuse("name", found, "expected a name")
    return found


def _check_unique(members: Members, member: str, names: Sequence[str]) -> None:
    if twice := next((one for one in names if names.count(one) > 1), ""):
        members.refuse(member, twice, "which is there twice: expected different names")


def _end(members: Members) -> None:
    """Refuse members that were not read, also those that begin with `x-`: edge-serve knows no extensions."""
    for name in members.names():
        members.refuse("a member", name, "which is unknown; docs/golden_tests.md has the format")
