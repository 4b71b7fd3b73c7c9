"""Writes the golden test of a model: inputs from the publisher, outputs from a running server over KServe v2."""

from __future__ import annotations

import http.client
import json
import math
import random
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ota.decide.config_text import Field
from ota.errors import FetchError, UsageError
from ota.publish.bundles.golden_document import (
    FILE,
    MOST_BYTES,
    MOST_DOCUMENT,
    MOST_REQUESTS,
    SCHEMA,
    SIZES,
    SampleEntry,
    TensorEntry,
    check_files,
    parse_document,
    read_file,
    read_samples,
)
from ota.publish.bundles.source import ModelSource
from ota.strict_json import to_canonical_json

MOST_REPLY = 1024 * 1024 * 1024
TIMEOUT_SECONDS = 120.0
#: how `struct` packs random numbers
_RANDOM = {
    "BOOL": "?", "INT8": "b", "UINT8": "B", "INT16": "h", "UINT16": "H", "INT32": "i", "UINT32": "I", "INT64": "q",
    "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
#: errors of Python and NumPy about malformed inputs
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, EOFError, RecursionError)
_BUDGETS = {"p95_ms": float, "memory_bytes": int, "requests": int}


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """An input or output. `data` is as in the binary tensor extension of KServe v2."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a golden test."""

    name: str
    inputs: tuple[RecordedTensor, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GoldenOptions:
    """The options of the command line for golden tests.

    Attributes:
        server: http:// address; "" = outputs stay as they are.
        inputs: model -> files of inputs.
        budgets: model -> budget; tolerances: `rtol` and `atol`.
    """

    server: str = ""
    inputs: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    budgets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)


def add_golden(sources: Mapping[str, ModelSource], wanted: GoldenOptions) -> None:
    """Add golden tests to models, or update the existing ones.

    Of several models, those without inputs get none: an ensemble's test is one of its members, too.

    Raises:
        UsageError: there are no inputs, or they are malformed. FetchError: the server did not answer as expected.
    """
    made = [_add_golden(source, wanted, alone=len(sources) == 1) for source in sources.values()]
    if wanted.server and not any(made):
        raise UsageError(f"there are no inputs for any golden test of {', '.join(sources)}: give --golden-inputs")


def _add_golden(source: ModelSource, wanted: GoldenOptions, *, alone: bool) -> bool:
    """Add the golden test of one model. Return whether it has one."""
    document, before = _existing(source)
    if wanted.server or wanted.inputs.get(source.model):
        samples = _samples(source, wanted, before)
        if not wanted.server:
            raise UsageError(f"inputs for {source.model} are given, and no server: add --golden-from http://HOST:PORT")
        if samples:
            document = _fresh(source, samples, wanted.server, document or {}, before)
        elif alone:
            raise UsageError(
                f"there are no inputs for the golden test of {source.model}: give --golden-inputs {source.model}=FILE "
                "(.npz, or .json as a KServe v2 request), or write model_warmup in its config.pbtxt"
            )
    budget = wanted.budgets.get(source.model, {})
    if document is None and (budget or (alone and wanted.tolerances)):
        raise UsageError(
            f"{source.model} has no golden test for a budget or a tolerance: add --golden-from and --golden-inputs"
        )
    if document is None:
        return False
    document |= dict(wanted.tolerances)
    if budget:
        document["budget"] = dict(document.get("budget", {})) | dict(budget)
    check_files(source, read_samples(document, f"{source.directory}/{FILE}"))
    source.made[FILE] = to_canonical_json(document)
    if len(source.made[FILE]) > MOST_DOCUMENT:
        raise UsageError(
            f"{source.directory}/{FILE} has {len(source.made[FILE])} bytes, expected at most {MOST_DOCUMENT}: "
            "use fewer samples"
        )
    return True


def _existing(source: ModelSource) -> tuple[dict[str, Any] | None, list[SampleEntry]]:
    """Return the existing golden test, and its samples."""
    data = source.read(FILE)
    if data is None:
        return None, []
    document = parse_document(data, f"{source.directory}/{FILE}")
    return document, read_samples(document, f"{source.directory}/{FILE}")


def _samples(source: ModelSource, wanted: GoldenOptions, before: Sequence[SampleEntry]) -> list[RecordedRequest]:
    """Return the inputs: from the command line, else from the existing golden test, else from model_warmup."""
    given = wanted.inputs.get(source.model, ())
    if given:
        return [sample for path in given for sample in read_inputs(path)]
    if before:
        return [_of_entry(source, one) for one in before]
    return list(_of_warmup(source))


def read_inputs(path: Path) -> list[RecordedRequest]:
    """Read inputs from a file: .npz with an array for each input, or .json with one KServe v2 request or a list.

    Raises:
        UsageError: it does not exist, or something else.
    """
    if not path.is_file():
        raise UsageError(f"{path} does not exist: expected inputs, .npz or .json")
    try:
        if path.suffix == ".npz":
            return [RecordedRequest(path.stem, tuple(_of_npz(path)))]
        found = json.loads(path.read_bytes())
        requests = found if isinstance(found, list) else [found]
        names = [path.stem if len(requests) == 1 else f"{path.stem}-{number}" for number in range(1, len(requests) + 1)]
        return [
            RecordedRequest(name, tuple(_of_json(one) for one in request["inputs"]), request.get("parameters", {}))
            for name, request in zip(names, requests, strict=True)
        ]
    except (*_MALFORMED, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(
            f"{path} has no inputs ({type(error).__name__}: {error}); expected an .npz with an array for each input, "
            'or .json such as {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'
        ) from None


def _of_npz(path: Path) -> list[RecordedTensor]:
    import numpy as np

    tensors = []
    with np.load(path, allow_pickle=False) as found:
        for name in sorted(found.files):
            array = found[name]
            kind = "BYTES" if array.dtype.kind in "SU" else _datatype(array.dtype.name)
            tensors.append(RecordedTensor(name, kind, array.shape, _encoded(kind, array.ravel().tolist(), array)))
    return tensors


def _of_json(one: Mapping[str, Any]) -> RecordedTensor:
    kind, shape = one["datatype"], tuple(one["shape"])
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{one['name']} has the shape {list(shape)}: expected numbers from 0")
    if kind not in SIZES or kind in ("FP16", "BF16"):
        raise ValueError(f"datatype {kind!r} of {one['name']} has no form in JSON: use an .npz, or an existing golden/")
    flat = _flat(one["data"])
    if wrong := [leaf for leaf in flat if type(leaf) not in _leaves(kind)]:
        raise ValueError(f"{one['name']} has the element {str(wrong[0])[:40]!r}, which is no {kind}")
    if len(flat) != math.prod(shape):
        raise ValueError(f"{one['name']} has {len(flat)} elements and the shape {list(shape)}")
    return RecordedTensor(str(one["name"]), kind, shape, _encoded(kind, flat, None))


def _leaves(kind: str) -> tuple[type, ...]:
    """Return the types of the JSON elements of a datatype."""
    if kind == "BYTES":
        return (str,)
    if kind == "BOOL":
        return (bool,)
    return (int, float) if kind.startswith("FP") else (int,)


def _flat(found: Any) -> list[Any]:
    return [leaf for one in found for leaf in _flat(one)] if isinstance(found, list) else [found]


def _encoded(kind: str, elements: list[Any], array: Any) -> bytes:
    import numpy as np

    if kind == "BYTES":
        raw = [one if isinstance(one, bytes) else one.encode() for one in elements]
        return b"".join(len(one).to_bytes(4, "little") + one for one in raw)
    if array is None:
        dtype = np.dtype(kind.lower().replace("fp", "float"))
        if dtype.kind in "iu" and elements:
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
            if not least <= min(elements) <= max(elements) <= most:
                raise ValueError(f"an element of {kind} is not from {least} to {most}")
        with np.errstate(over="raise"):
            array = np.array(elements, dtype=dtype)
    return bytes(array.astype(array.dtype.newbyteorder("<")).tobytes())


def _datatype(name: str) -> str:
    kind = {"bool": "BOOL"}.get(name) or name.upper().replace("FLOAT", "FP")
    if kind not in SIZES:
        raise ValueError(f"arrays of {name} are no tensors of KServe v2")
    return kind


def _of_entry(source: ModelSource, sample: SampleEntry) -> RecordedRequest:
    """Return the inputs of a sample in the existing golden test."""
    tensors = (RecordedTensor(one.name, one.datatype, one.shape, read_file(source, one)) for one in sample.inputs)
    return RecordedRequest(sample.name, tuple(tensors), sample.parameters)


@dataclass(slots=True)
class _WarmupSample:
    name: str
    rows: int = 0
    inputs: list[list[Field]] = field(default_factory=list)


def _of_warmup(source: ModelSource) -> Iterator[RecordedRequest]:
    """Yield the requests of `model_warmup`. Each name begins a new one; each key begins an input."""
    samples: list[_WarmupSample] = []
    for one in source.config:
        if one.path == "model_warmup.name":
            samples.append(_WarmupSample(one.value))
        elif one.path == "model_warmup.batch_size" and samples:
            samples[-1].rows = _number(one.value)
        elif one.path == "model_warmup.inputs.key" and samples:
            samples[-1].inputs.append([one])
        elif one.path.startswith("model_warmup.inputs.") and samples and samples[-1].inputs:
            samples[-1].inputs[-1].append(one)
    for sample in samples:
        tensors = tuple(_warmup_tensor(source, one, sample.rows) for one in sample.inputs)
        yield RecordedRequest("".join(c if c.isalnum() else "-" for c in sample.name), tensors)


def _warmup_tensor(source: ModelSource, fields: list[Field], rows: int) -> RecordedTensor:
    """Return an input of a warm-up. Random data is the same each time."""
    found = {one.path.rpartition(".")[2]: one.value for one in fields}
    kind = found.get("data_type", "?").removeprefix("TYPE_").replace("STRING", "BYTES")
    shape = (rows,) * bool(rows) + tuple(_number(one.value) for one in fields if one.path.endswith(".dims"))
    count, data = math.prod(shape), None
    if min(shape, default=0) < 0 or count * SIZES.get(kind, 0) > MOST_BYTES:
        raise UsageError(
            f"model_warmup of {source.model} gives {found['key']} the shape {list(shape)}, expected numbers from 0 and "
            f"at most {MOST_BYTES} bytes: correct its dims, or give --golden-inputs"
        )
    if found.get("zero_data") == "true" and SIZES.get(kind):
        data = bytes(SIZES[kind] * count)
    elif found.get("random_data") == "true" and kind in _RANDOM:
        numbers = random.Random(f"{source.model} {found['key']}")
        data = struct.pack(f"<{count}{_RANDOM[kind]}", *_random(kind, numbers, count))
    elif "input_data_file" in found:
        data = source.read(f"warmup/{found['input_data_file']}")
    if data is None or kind not in SIZES:
        raise UsageError(
            f"model_warmup of {source.model} gives no data of {kind} for {found['key']} that can be used: "
            "give --golden-inputs"
        )
    return RecordedTensor(found["key"], kind, shape, data)


def _number(text: str) -> int:
    """Return an integer of a config.pbtxt; -1 = it is none."""
    try:
        return int(text)
    except ValueError:
        return -1


def _random(kind: str, numbers: random.Random, count: int) -> Iterator[float]:
    for _ in range(count):
        yield numbers.random() if kind.startswith("FP") else numbers.randrange(2 if kind == "BOOL" else 100)


def _fresh(
    source: ModelSource,
    samples: Sequence[RecordedRequest],
    server: str,
    document: Mapping[str, Any],
    before: Sequence[SampleEntry],
) -> dict[str, Any]:
    """Query the server for the outputs. Return the document, and add the files of the tensors to the model.

    Args:
        document, before: the existing golden test. Its samples say which outputs matter, and their tolerances.
    """
    for path in [one for one in source.files if one.startswith("golden/")]:
        del source.files[path]
    if len({one.name for one in samples}) != len(samples):
        raise UsageError(f"two samples of {source.model} have the same name: rename a file of inputs")
    listed = {sample.name: {one.name: one for one in sample.outputs} for sample in before}
    found = [
        {
            "name": sample.name,
            "parameters": dict(sample.parameters),
            "inputs": [_entry(source, sample.name, "in", one) for one in sample.inputs],
            "outputs": _outputs_of(source, sample.name, infer(server, source.model, sample), listed),
        }
        for sample in samples
    ]
    kept = {name: document[name] for name in ("rtol", "atol", "budget") if name in document}
    return {"schema": SCHEMA, "samples": found, "rtol": 1e-3, "atol": 1e-5} | kept


def _outputs_of(
    source: ModelSource, sample: str, outputs: Sequence[RecordedTensor], listed: Mapping[str, Mapping[str, TensorEntry]]
) -> list[dict[str, Any]]:
    """Return the entries of outputs: those that the existing sample lists, with its tolerances; else all."""
    known = listed.get(sample, {})
    return [
        _entry(source, sample, "out", one) | (known[one.name].tolerances if known else {})
        for one in outputs
        if not known or one.name in known
    ]


def _entry(source: ModelSource, sample: str, way: str, tensor: RecordedTensor) -> dict[str, Any]:
    file = "".join(c if c.isalnum() or c in "._-" else "_" for c in f"{sample}.{way}.{tensor.name}")
    file = file if file[0].isalnum() else f"s{file}"
    if f"golden/{file}" in source.made:
        raise UsageError(f"two tensors of {source.model} would have the file golden/{file}: rename a sample")
    source.made[f"golden/{file}"] = tensor.data
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "file": file}


def infer(server: str, model: str, sample: RecordedRequest) -> list[RecordedTensor]:
    """Send a request to a server, and return the outputs.

    Raises:
        UsageError: the address is wrong. FetchError: the server does not answer, or refuses.
    """
    try:
        url = urlsplit(server if "://" in server else f"http://{server}")
        port = url.port
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError
    except ValueError:
        raise UsageError(f"--golden-from {server!r} is not a URL: expected one such as http://127.0.0.1:8000") from None
    head = {
        "inputs": [
            {
                "name": one.name,
                "datatype": one.datatype,
                "shape": list(one.shape),
                "parameters": {"binary_data_size": len(one.data)},
            }
            for one in sample.inputs
        ],
        "parameters": {**sample.parameters, "binary_data_output": True},
    }
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text)), "Content-Type": "application/octet-stream"}
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname, port, timeout=TIMEOUT_SECONDS)
    path = f"{url.path.rstrip('/')}/v2/models/{quote(model, safe='')}/infer"
    try:
        connection.request("POST", path, text + b"".join(one.data for one in sample.inputs), headers)
        reply = connection.getresponse()
        body = reply.read(MOST_REPLY)
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(f"{server} did not answer for {model}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if reply.status != 200:
        raise FetchError(f"{server} refused sample {sample.name} of {model} (HTTP {reply.status}): {_short(body)}")
    return _outputs(body, reply.headers.get("Inference-Header-Content-Length"), f"{server}'s answer for {model}")


def _outputs(body: bytes, length: str | None, what: str) -> list[RecordedTensor]:
    try:
        split = int(length) if length is not None else len(body)
        head = json.loads(body[:split])
        tensors = []
        for one in head["outputs"]:
            size = one.get("parameters", {}).get("binary_data_size")
            if size is None:
                tensors.append(_of_json(one))
            else:
                data = body[split : split + size]
                tensors.append(RecordedTensor(one["name"], one["datatype"], tuple(one["shape"]), data))
                split += size
    except _MALFORMED as error:
        raise FetchError(f"{what} is not a KServe v2 response ({error}): is this a model server's HTTP port?") from None
    return tensors


def _short(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])[:300]
    except (ValueError, KeyError, TypeError):
        return repr(body[:100])


def parse_budget(text: str) -> tuple[str, str, float]:
    """Return model ("" = the only one), name, and number of `det:p95_ms=25`.

    Raises:
        UsageError: it is something else.
    """
    name, equals, value = text.partition("=")
    model, _, word = name.rpartition(":")
    try:
        number = _BUDGETS[word](value)
        if not equals or not 0 < number < math.inf or (word == "requests" and number > MOST_REQUESTS):
            raise ValueError
    except (KeyError, ValueError):
        known = ", ".join(_BUDGETS)
        raise UsageError(
            f"--budget {text!r} is none: expected [MODEL:]NAME=NUMBER with one of {known}; "
            f"a number above 0, and at most {MOST_REQUESTS} requests"
        ) from None
    return model, word, number
