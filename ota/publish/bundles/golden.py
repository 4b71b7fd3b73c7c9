"""Writes the golden test of a model: inputs from the publisher, outputs from a running server over KServe v2."""

from __future__ import annotations

import http.client
import json
import math
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ota.decide.config_text import Field
from ota.errors import FetchError, Untrusted, UsageError
from ota.publish.bundles.source import ModelSource
from ota.strict_json import parse, to_canonical_json

FILE = "golden/golden.json"
MOST_BYTES = 1024 * 1024
MOST_REPLY = 1024 * 1024 * 1024
TIMEOUT_SECONDS = 120.0
#: bytes of an element; BYTES has elements of any length
SIZES = {
    "BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FP16": 2, "BF16": 2, "INT32": 4, "UINT32": 4, "FP32": 4,
    "INT64": 8, "UINT64": 8, "FP64": 8, "BYTES": 0,
}  # fmt: skip
#: how `struct` packs random numbers
_RANDOM = {
    "BOOL": "?", "INT8": "b", "UINT8": "B", "INT16": "h", "UINT16": "H", "INT32": "i", "UINT32": "I", "INT64": "q",
    "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
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
    document = _existing(source)
    if wanted.server or wanted.inputs.get(source.model):
        samples = _samples(source, wanted, document)
        if not wanted.server:
            raise UsageError(f"inputs for {source.model} are given, and no server: add --golden-from http://HOST:PORT")
        if samples:
            document = _fresh(source, samples, wanted.server, document)
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
    source.made[FILE] = to_canonical_json(document)
    _check(source, document)
    return True


def _existing(source: ModelSource) -> dict[str, Any] | None:
    data = source.read(FILE)
    if data is None:
        return None
    try:
        return parse(data, f"{source.directory}/{FILE}", MOST_BYTES)
    except Untrusted as error:
        raise UsageError(error.message) from None


def _samples(source: ModelSource, wanted: GoldenOptions, document: dict[str, Any] | None) -> list[RecordedRequest]:
    """Return the inputs: from the command line, else from the existing golden test, else from model_warmup."""
    given = wanted.inputs.get(source.model, ())
    if given:
        return [sample for path in given for sample in read_inputs(path)]
    if document is not None:
        return [_of_document(source, one) for one in document.get("samples", [])]
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
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
    kind, shape = one["datatype"], tuple(int(size) for size in one["shape"])
    if kind not in SIZES or kind in ("FP16", "BF16"):
        raise ValueError(f"datatype {kind!r} of {one['name']} has no form in JSON: use an .npz, or an existing golden/")
    flat = _flat(one["data"])
    if len(flat) != math.prod(shape):
        raise ValueError(f"{one['name']} has {len(flat)} elements and the shape {list(shape)}")
    return RecordedTensor(str(one["name"]), kind, shape, _encoded(kind, flat, None))


def _flat(found: Any) -> list[Any]:
    return [leaf for one in found for leaf in _flat(one)] if isinstance(found, list) else [found]


def _encoded(kind: str, elements: list[Any], array: Any) -> bytes:
    import numpy as np

    if kind == "BYTES":
        raw = [one if isinstance(one, bytes) else str(one).encode() for one in elements]
        return b"".join(len(one).to_bytes(4, "little") + one for one in raw)
    if array is None:
        array = np.array(elements, dtype=kind.lower().replace("fp", "float"))
    return bytes(array.astype(array.dtype.newbyteorder("<")).tobytes())


def _datatype(name: str) -> str:
    kind = {"bool": "BOOL"}.get(name) or name.upper().replace("FLOAT", "FP")
    if kind not in SIZES:
        raise ValueError(f"arrays of {name} are no tensors of KServe v2")
    return kind


def _of_document(source: ModelSource, one: Mapping[str, Any]) -> RecordedRequest:
    """Return the inputs of a sample in the existing golden test."""
    try:
        tensors = []
        for tensor in one["inputs"]:
            data = source.read(f"golden/{tensor['file']}")
            if data is None:
                raise UsageError(f"{source.directory}/{FILE} names {tensor['file']}, which is not in golden/")
            tensors.append(RecordedTensor(tensor["name"], tensor["datatype"], tuple(tensor["shape"]), data))
        return RecordedRequest(str(one["name"]), tuple(tensors), one.get("parameters", {}))
    except (KeyError, TypeError) as error:
        raise UsageError(f"{source.directory}/{FILE} has a sample without {error}") from None


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
            samples[-1].rows = int(one.value)
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
    shape = (rows,) * bool(rows) + tuple(int(one.value) for one in fields if one.path.endswith(".dims"))
    data = None
    if found.get("zero_data") == "true" and SIZES.get(kind):
        data = bytes(SIZES[kind] * math.prod(shape))
    elif found.get("random_data") == "true" and kind in _RANDOM:
        numbers = random.Random(f"{source.model} {found['key']}")
        data = struct.pack(f"<{math.prod(shape)}{_RANDOM[kind]}", *_random(kind, numbers, math.prod(shape)))
    elif "input_data_file" in found:
        data = source.read(f"warmup/{found['input_data_file']}")
    if data is None or kind not in SIZES:
        raise UsageError(
            f"model_warmup of {source.model} gives no data of {kind} for {found['key']} that can be used: "
            "give --golden-inputs"
        )
    return RecordedTensor(found["key"], kind, shape, data)


def _random(kind: str, numbers: random.Random, count: int) -> Iterator[float]:
    for _ in range(count):
        yield numbers.random() if kind.startswith("FP") else numbers.randrange(2 if kind == "BOOL" else 100)


def _fresh(
    source: ModelSource, samples: Sequence[RecordedRequest], server: str, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Query the server for the outputs. Return the document, and add the files of the tensors to the model."""
    for path in [one for one in source.files if one.startswith("golden/")]:
        del source.files[path]
    if len({one.name for one in samples}) != len(samples):
        raise UsageError(f"two samples of {source.model} have the same name: rename a file of inputs")
    found = [
        {
            "name": sample.name,
            "parameters": dict(sample.parameters),
            "inputs": [_entry(source, sample.name, "in", one) for one in sample.inputs],
            "outputs": [_entry(source, sample.name, "out", one) for one in infer(server, source.model, sample)],
        }
        for sample in samples
    ]
    kept = {name: before[name] for name in ("rtol", "atol", "budget") if before and name in before}
    return {"schema": 1, "samples": found, "rtol": 1e-3, "atol": 1e-5} | kept


def _entry(source: ModelSource, sample: str, way: str, tensor: RecordedTensor) -> dict[str, Any]:
    file = "".join(c if c.isalnum() or c in "._-" else "_" for c in f"{sample}.{way}.{tensor.name}")
    file = file if file[0].isalnum() else f"s{file}"
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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FetchError(f"{what} is not a KServe v2 response ({error}): is this a model server's HTTP port?") from None
    return tensors


def _short(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])[:300]
    except (ValueError, KeyError, TypeError):
        return repr(body[:100])


def _check(source: ModelSource, document: Mapping[str, Any]) -> None:
    """Refuse a golden test whose files are missing, or whose lengths do not match their shapes.

    Raises:
        UsageError: see above.
    """
    samples = document.get("samples")
    if document.get("schema") != 1 or not isinstance(samples, list) or not samples:
        raise UsageError(f"{source.directory}/{FILE} has no samples, or its schema is not 1")
    for sample in samples:
        replies = sample.get("responses") or [sample]
        for tensor in [*sample.get("inputs", []), *(one for reply in replies for one in reply.get("outputs", []))]:
            data = source.read(f"golden/{tensor.get('file')}")
            if data is None:
                raise UsageError(f"{source.directory}/{FILE} names {tensor.get('file')!r}, which is not in golden/")
            size = SIZES.get(tensor.get("datatype"), 0) * math.prod(tensor.get("shape", []))
            if size and len(data) != size:
                text = f"golden/{tensor['file']} of {source.model} has {len(data)} bytes"
                raise UsageError(f"{text}, and its shape and datatype make {size}")


def parse_budget(text: str) -> tuple[str, str, float]:
    """Return model ("" = the only one), name, and number of `det:p95_ms=25`.

    Raises:
        UsageError: it is something else.
    """
    name, equals, value = text.partition("=")
    model, _, word = name.rpartition(":")
    try:
        number = _BUDGETS[word](value)
        if not equals or number <= 0:
            raise ValueError
    except (KeyError, ValueError):
        known = ", ".join(_BUDGETS)
        raise UsageError(f"--budget {text!r} is none: expected [MODEL:]NAME=NUMBER with one of {known}") from None
    return model, word, number
