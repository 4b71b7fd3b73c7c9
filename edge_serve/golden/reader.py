"""Reader of a golden test: `golden/golden.json` and the tensor files beside it, checked before a model is loaded.

The document is strict, because a misspelt member would switch off a part of the test. Each function may block on a dead
file system, and belongs in a thread.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, NoReturn

from edge_serve.aio.bulk_copy import return_pages
from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import (
    BY_NAME,
    Buffer,
    DataType,
    InferTensor,
    Shape,
    count_bytes_elements,
    element_count,
)
from edge_serve.protocol.inference.validate import MAX_RANK
from edge_serve.protocol.v2.infer_header import read_own
from edge_serve.records import frozen

DIRECTORY, DOCUMENT = "golden", "golden.json"
SCHEMA = 1
#: limits of one golden test: bytes of golden.json, samples, bytes of all tensor files together
MOST_DOCUMENT_BYTES = 1 << 20
MOST_SAMPLES = 1000
MOST_BYTES = 256 << 20
#: and strings of one tensor
MOST_STRINGS = 1_000_000
#: of floats, where golden.json names no tolerance
DEFAULT_RTOL, DEFAULT_ATOL = 1e-3, 1e-5
DEFAULT_REQUESTS = 20
#: `budget.requests` at most
_MOST_REQUESTS = 100_000
_MOST_DIGITS = 20
#: bytes that are read at once; larger tensors have pages of their own
_PIECE = 1 << 20
_DOCS = "docs/golden_tests.md has the format"


@frozen
class GoldenTensor:
    """An input, or an output that is expected, and the file with its bytes.

    Attributes:
        rtol, atol: of outputs: a float may differ by `atol + rtol * |expected|`.
    """

    name: str
    datatype: DataType
    shape: Shape
    path: Path
    rtol: float = DEFAULT_RTOL
    atol: float = DEFAULT_ATOL

    def read(self) -> InferTensor:
        """Return the tensor.

        Raises:
            InvalidArgument: the file is not there any more, or changed since `read_golden`.
        """
        data = _read_regular(self.path, MOST_BYTES)
        if self.datatype is DataType.BYTES:
            found, expected, unit = _count_strings(self.path, data), element_count(self.shape), "strings"
        else:
            found, expected, unit = len(data), element_count(self.shape) * self.datatype.size, "bytes"
        if found != expected:
            raise _wrong_size(self, found, unit, expected)
        return InferTensor(self.name, self.datatype, self.shape, data)


@frozen
class GoldenSample:
    """One request and its responses.

    Attributes:
        responses: the expected outputs of each response; a model that is not decoupled sends one.
        streams: the document lists `responses`, as for a decoupled model.
    """

    name: str
    parameters: Mapping[str, Any]
    inputs: tuple[GoldenTensor, ...]
    responses: tuple[tuple[GoldenTensor, ...], ...]
    streams: bool = False

    def request(self, model: str) -> InferRequest:
        """Return the request, with the content of its files.

        Raises:
            EdgeServeError: a file cannot be read, or a parameter is not acceptable.
        """
        request = InferRequest(model, inputs=[tensor.read() for tensor in self.inputs])
        read_own({"parameters": dict(self.parameters)}, request)
        return request


@frozen
class GoldenBudget:
    """Limits that `edge-serve check` judges.

    Attributes:
        p95_ms, memory_bytes: None = no limit.
        requests: how many requests the p95 is measured with.
    """

    p95_ms: float | None = None
    memory_bytes: int | None = None
    requests: int = DEFAULT_REQUESTS


@frozen
class GoldenTest:
    """A golden test, without the content of the tensor files."""

    samples: tuple[GoldenSample, ...]
    budget: GoldenBudget = field(default_factory=GoldenBudget)

    def check_compares(self) -> None:
        """Check that the test compares something. One that lists inputs only may be recorded, and cannot be passed.

        Raises:
            InvalidArgument: no sample lists outputs, or the responses of a decoupled model.
        """
        if not any(sample.streams or any(sample.responses) for sample in self.samples):
            raise _bad(
                "no sample lists an output, so the test would compare nothing; list outputs, or record them with "
                "'edge-serve check --record-golden'"
            )


def read_golden(model_directory: Path) -> GoldenTest | None:
    """Return the golden test of a model; None without an entry `golden`.

    Raises:
        InvalidArgument: the document is not as docs/golden_tests.md says, or a file is missing or has a wrong size.
    """
    directory = model_directory / DIRECTORY
    if directory.is_dir():
        return _Reader(directory).test(_parsed(_read_regular(directory / DOCUMENT, MOST_DOCUMENT_BYTES)))
    target = Path(os.path.realpath(directory)) if directory.is_symlink() else directory
    if (old := replaced(target)).exists():
        raise InvalidArgument(
            f"{DIRECTORY}/ is missing, because a recording was interrupted: rename {old.name} to {target.name}"
        )
    if os.path.lexists(directory):
        raise InvalidArgument(
            f"{DIRECTORY} is no directory, or a link to none: expected the golden test there, or no {DIRECTORY}"
        )
    return None


def replaced(target: Path) -> Path:
    """Return the place of an older golden test while a new one takes its place."""
    return target.with_name(f".{target.name}.old")


class _Reader:
    """Turns the parsed document into values. `where` in its methods is the place of a member, for messages."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bytes = 0

    def test(self, document: Any) -> GoldenTest:
        schema = document.get("schema", SCHEMA) if isinstance(document, dict) else SCHEMA
        if type(schema) is not int or schema != SCHEMA:  # first: another schema may have other members
            _refuse("schema", schema, f"{SCHEMA}; a newer edge-serve may know it")
        members = _members(document, "", ("schema", "samples"), ("rtol", "atol", "budget"))
        samples = _list(members["samples"], "samples", MOST_SAMPLES)
        if not samples:
            _refuse("samples", samples, "at least one sample")
        tolerances = _tolerances(members, "", (DEFAULT_RTOL, DEFAULT_ATOL))
        found = tuple(self._sample(one, f"samples[{i}]", tolerances) for i, one in enumerate(samples))
        _check_unique([sample.name for sample in found], "samples")
        return GoldenTest(found, _budget(members.get("budget", {})))

    def _sample(self, value: Any, where: str, tolerances: tuple[float, float]) -> GoldenSample:
        members = _members(value, where, ("name", "inputs"), ("parameters", "outputs", "responses"))
        if ("outputs" in members) == ("responses" in members):
            _refuse(where, sorted(members), "either outputs, or responses for a decoupled model")
        inputs = self._tensors(members["inputs"], f"{where}.inputs", None)
        places = {where: members}
        if streams := "responses" in members:
            listed = _list(members["responses"], f"{where}.responses", MOST_SAMPLES)
            places = {f"{where}.responses[{i}]": one for i, one in enumerate(listed)}
            places = {place: _members(one, place, ("outputs",)) for place, one in places.items()}
        responses = tuple(self._tensors(one["outputs"], f"{at}.outputs", tolerances) for at, one in places.items())
        name = _text(members["name"], f"{where}.name")
        return GoldenSample(name, _parameters(members, where), inputs, responses, streams)

    def _tensors(self, value: Any, where: str, tolerances: tuple[float, float] | None) -> tuple[GoldenTensor, ...]:
        """Read a list of tensors; those of outputs have tolerances."""
        found = tuple(
            self._tensor(one, f"{where}[{i}]", tolerances) for i, one in enumerate(_list(value, where, MOST_SAMPLES))
        )
        _check_unique([tensor.name for tensor in found], where)
        return found

    def _tensor(self, value: Any, where: str, tolerances: tuple[float, float] | None) -> GoldenTensor:
        further = () if tolerances is None else ("rtol", "atol")
        members = _members(value, where, ("name", "datatype", "shape", "file"), further)
        name = _text(members["name"], f"{where}.name")
        datatype = members["datatype"]
        if not isinstance(datatype, str) or datatype not in BY_NAME:
            _refuse(f"{where}.datatype", datatype, f"one of {', '.join(BY_NAME)}")
        shape = _list(members["shape"], f"{where}.shape", MAX_RANK)
        if not all(type(dim) is int and dim >= 0 for dim in shape):
            _refuse(f"{where}.shape", shape, "numbers that are 0 or more: the shape of this one request")
        path = self._directory / _file_name(members["file"], f"{where}.file")
        rtol, atol = _tolerances(members, f"{where}.", tolerances or (0.0, 0.0))
        tensor = GoldenTensor(name, BY_NAME[datatype], tuple(shape), path, rtol, atol)
        self._check_size(tensor)
        return tensor

    def _check_size(self, tensor: GoldenTensor) -> None:
        """Refuse a file of a wrong size before it is read. How many strings a file holds is seen when it is."""
        if tensor.datatype is DataType.BYTES and element_count(tensor.shape) > MOST_STRINGS:
            raise InvalidArgument(
                f"{_shown(tensor.path)} has {element_count(tensor.shape)} strings, expected at most {MOST_STRINGS}"
            )
        with _refused(tensor.path):
            size = _size(tensor.path, tensor.path.stat())
        self._bytes += size
        if self._bytes > MOST_BYTES:
            raise InvalidArgument(
                f"{_shown(tensor.path)}: the tensor files of a golden test are larger than {MOST_BYTES} bytes together "
                "with this one, which is the limit: use smaller or fewer samples"
            )
        expected = element_count(tensor.shape) * (tensor.datatype.size or 4)
        if size < expected if tensor.datatype is DataType.BYTES else size != expected:
            raise _wrong_size(tensor, size, "bytes", expected)


# ---- members of the document --------------------------------------------------------------------------------------


def _members(value: Any, where: str, needed: Sequence[str], further: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, value, "an object")
    dot = f"{where}." if where else ""
    for name in needed:
        if name not in value:
            raise _bad(f"{dot}{name} is missing")
    for name in value:
        if name not in needed and name not in further:
            raise _bad(f"{dot}{name!a} is unknown; expected {', '.join((*needed, *further))}")
    return value


def _list(value: Any, where: str, most: int) -> list[Any]:
    if not isinstance(value, list):
        _refuse(where, value, "a list")
    if len(value) > most:
        raise _bad(f"{where} has {len(value)} entries, expected at most {most}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        _refuse(where, value, "a name in printable characters")
    return value


def _file_name(value: Any, where: str) -> str:
    name = _text(value, where)
    if "/" in name or name in (".", "..", DOCUMENT) or len(name.encode()) > 255:
        _refuse(where, value, f"the name of a file in {DIRECTORY}/, without a directory")
    return name


def _tolerances(members: Mapping[str, Any], prefix: str, defaults: tuple[float, float]) -> tuple[float, float]:
    rtol, atol = (members.get(name, default) for name, default in zip(("rtol", "atol"), defaults, strict=True))
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not _is_number(value) or value < 0:
            _refuse(f"{prefix}{name}", value, "a finite number that is 0 or more")
    return float(rtol), float(atol)


def _budget(value: Any) -> GoldenBudget:
    members = _members(value, "budget", (), ("p95_ms", "memory_bytes", "requests"))
    p95_ms, memory = members.get("p95_ms"), members.get("memory_bytes")
    requests = members.get("requests", DEFAULT_REQUESTS)
    if p95_ms is not None and not (_is_number(p95_ms) and p95_ms > 0):
        _refuse("budget.p95_ms", p95_ms, "milliseconds, a number above 0")
    if memory is not None and not (type(memory) is int and memory > 0):
        _refuse("budget.memory_bytes", memory, "bytes, a whole number above 0")
    if type(requests) is not int or not 0 < requests <= _MOST_REQUESTS:
        _refuse("budget.requests", requests, f"a whole number from 1 to {_MOST_REQUESTS}")
    return GoldenBudget(None if p95_ms is None else float(p95_ms), memory, requests)


def _parameters(members: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = members.get("parameters", {})
    if not isinstance(parameters, dict):
        _refuse(f"{where}.parameters", parameters, "an object")
    try:
        read_own({"parameters": parameters}, InferRequest(""))
    except EdgeServeError as error:
        raise _bad(f"{where}.parameters: {error.message}") from error
    return parameters


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _check_unique(names: Sequence[str], where: str) -> None:
    if len(set(names)) != len(names):
        again = Counter(names).most_common(1)[0][0]
        raise _bad(f"{where} has the name '{again}' twice; expected different names")


def _refuse(where: str, value: Any, expected: str) -> NoReturn:
    text = ascii(value) if not isinstance(value, str) or not value.isprintable() else f"'{value}'"
    text = text if len(text) <= 80 else f"{text[:80]}..."
    raise _bad(f"{where or 'the document'} is {text}, expected {expected}")


def _bad(text: str) -> InvalidArgument:
    return InvalidArgument(f"{DIRECTORY}/{DOCUMENT}: {text} ({_DOCS})")


# ---- files --------------------------------------------------------------------------------------------------------


def _parsed(data: Buffer) -> Any:
    try:
        return json.loads(
            bytes(data).decode(), object_pairs_hook=_object, parse_int=_whole, parse_constant=_no_constant,
        )  # fmt: skip
    except RecursionError:
        raise _bad("it is nested too deeply") from None
    except ValueError as error:  # no UTF-8, no JSON, or one of the hooks
        raise _bad(f"it is no strict JSON in UTF-8: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        again = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the member {again!a} appears twice")
    return members


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _read_regular(path: Path, most: int) -> Buffer:
    """Read a regular file of at most `most` bytes. Opening a FIFO for reading alone would wait for its writer."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with _refused(path), open(os.open(path, flags), "rb", buffering=0) as file:
        size = _size(path, os.fstat(file.fileno()))
        if size > most:
            raise InvalidArgument(f"{_shown(path)} is longer than {most} bytes, which is the limit")
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        room = memoryview(mmap.mmap(-1, size, anonymous) if size > _PIECE else bytearray(size))
        filled = 0
        while count := file.readinto(room[filled : filled + _PIECE]):
            filled += count
        return room[:filled]


def discard(tensors: Iterable[InferTensor]) -> None:
    """Release the memory of unused tensors."""
    for tensor in tensors:
        return_pages(tensor.data)


def _size(path: Path, status: os.stat_result) -> int:
    """Return the size of a regular file; refuse another file."""
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgument(f"{_shown(path)} is a directory, a pipe, a socket or a device, expected a file")
    return status.st_size


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Turn the error of a system call into `InvalidArgument`."""
    try:
        yield
    except OSError as error:
        text = f"{_shown(path)} cannot be read: {error.strerror or error}"
        hint = f"; expected the golden test there, or no directory {DIRECTORY}" if path.name == DOCUMENT else ""
        raise InvalidArgument(f"{text}{hint}") from error


def _count_strings(path: Path, data: Buffer) -> int:
    try:
        return count_bytes_elements(data)
    except InvalidArgument as error:
        raise InvalidArgument(f"{_shown(path)}: {error.message}") from error


def _wrong_size(tensor: GoldenTensor, found: int, unit: str, expected: int) -> InvalidArgument:
    least = "at least " if unit == "bytes" and tensor.datatype is DataType.BYTES else ""
    return InvalidArgument(
        f"{_shown(tensor.path)} has {found} {unit}, expected {least}{expected} for {tensor.datatype.name} "
        f"{list(tensor.shape)}: correct the shape in {DOCUMENT}, or record the file anew"
    )


def _shown(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def tensors_of(test: GoldenTest) -> Iterator[tuple[GoldenSample, GoldenTensor]]:
    """Yield each output that is expected, and its sample."""
    return ((sample, tensor) for sample in test.samples for outputs in sample.responses for tensor in outputs)
