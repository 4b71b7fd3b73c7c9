"""An example request for a model, as a curl command that works."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any
from urllib.parse import quote

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.messages.tensors import BY_NUMBER, DataType

#: elements of a tensor that are written out
_MOST_WRITTEN = 64
_URL = "localhost:8000/v2/models/{}/infer"
_NO_JSON = (DataType.FP16, DataType.BF16)


def curl(config: pb.ModelConfig) -> str:
    """Return the command; "" where curl cannot say it."""
    url = _URL.format(quote(config.name, safe=""))
    shapes = {spec.name: _shape(spec, config) for spec in config.input}
    kinds = {spec.name: BY_NUMBER[spec.data_type] for spec in config.input}
    if any(kind in _NO_JSON for kind in kinds.values()):
        if len(config.input) > 1:
            return ""
        (name,) = kinds
        nbytes = math.prod(shapes[name]) * kinds[name].size
        header = "-H 'Inference-Header-Content-Length: 0'"
        return f"head -c {nbytes} /dev/zero | curl -s {url} {header} --data-binary @- -o answer.bin"
    body = {"inputs": [_tensor(name, kinds[name], shape) for name, shape in shapes.items()]}
    if all(math.prod(shape) <= _MOST_WRITTEN for shape in shapes.values()):
        return f"curl -s {url} -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
    tensors = [
        f"{json.dumps(name, ensure_ascii=False)}: ({json.dumps(kinds[name].name)}, {shape}, {_python(kinds[name])})"
        for name, shape in shapes.items()
    ]
    code = (
        f"import json, math; t = {{{', '.join(tensors)}}}; "
        'print(json.dumps({"inputs": [dict(name=n, datatype=d, shape=s, data=[z] * math.prod(s)) '
        "for n, (d, s, z) in t.items()]}))"
    )
    return f"python3 -c {shlex.quote(code)} | curl -s {url} -d @-"


def _python(kind: DataType) -> str:
    return '"text"' if kind is DataType.BYTES else str(_element(kind))


def _shape(spec: pb.ModelInput, config: pb.ModelConfig) -> list[int]:
    return [1] * (config.max_batch_size > 0) + [max(1, dim) for dim in spec.dims]


def _tensor(name: str, kind: DataType, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": kind.name, "shape": shape, "data": [_element(kind)] * math.prod(shape)}


def _element(kind: DataType) -> Any:
    return {DataType.BYTES: "text", DataType.BOOL: False, DataType.FP32: 1.0, DataType.FP64: 1.0}.get(kind, 1)
