"""Small TensorFlow graphs, written as protocol buffers field by field: TensorFlow itself is a gigabyte.

Field numbers: tensorflow/core/framework/{graph,node_def,attr_value,tensor,tensor_shape,types}.proto and
tensorflow/core/protobuf/{saved_model,meta_graph}.proto.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import numpy as np

from edge_serve.messages.tensors import Array

#: a TensorFlow Lite model, which TensorFlow 2.21 made of y = x @ (arange(8).reshape(4, 2) / 8) + 1, for one row
_LITE = (
    "eNpdUzFv00AY/WqbJm2t0KoWAilCHpijtMBAh6ZRGtRITVOlESOuJRuw5LgocaJ0y5ChP6Bj1ak/gZGBETIixoipU4UQAzPuu7vPVoiT5/v8"
    "7t539727KxJR5/Xhc4tsKtJjsmidTHB5MhATOKIJMAN+LBHdAhOdCH9CiNHiWZUqoVnFl8m6F8BDoO/3hkH03vH8d+4gjKXOAG6SJNE5Ftw5"
    "t+L7+78kSfkRoHE+wc2gW+Z4E6i1jt7U2yeN1pHTrHeq+9VOFWtR68mj/8Hc2G4QOb1BFAdd3xn6vX5wFlEO/F/gF/AZuAIugZh1bxO1ltOs"
    "XuFPIcsvuGeSXZZcujaSXqSeGtKXp7+//Xz1pNzQuSZDqoi2S9tbpTLRlOcSObdKLwWVPTY8ueP+vGTGFYX/57UzxXgXL/TvAYT4C2AjPq2E"
    "yPUREPvTPGy07dpZBD9i3ytJzy2pL2SrF/kLzBfZCw/4wHN23SAi3q9Ua8k6TFpjLXuXNzn+g/nFeJ2R6jVu0zNGPMdXPgsHc/sihqxzvrT2"
    "A/AbaI/dXhzE2GHfq7lhuFOeyy3a6wW9zu0Fn0vX87Kx04WxGtf5ic9i042bg1DxWrb/j6R/xA6qJwdWlWpxjiU+P4b8qXO6cGecEVavzd2P"
    "9O6Z0l/lkPB1ReVeuQfssYTD"
)
LITE_INPUT = "serving_default_x:0"
#: DataType of types.proto
_FLOAT = 1


def _varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _part(field: int, data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def _shape(dims: tuple[int, ...]) -> bytes:
    return b"".join(_part(2, _number(1, dim)) for dim in dims)


def _attribute(name: str, value: bytes) -> bytes:
    return _part(5, _part(1, name) + _part(2, value))


def _node(name: str, kind: str, inputs: tuple[str, ...], *attributes: bytes) -> bytes:
    return _part(1, _part(1, name) + _part(2, kind) + b"".join(_part(3, one) for one in inputs) + b"".join(attributes))


def _type(name: str = "T") -> bytes:
    return _attribute(name, _number(6, _FLOAT))


def graph(weights: Array) -> bytes:
    """Return a GraphDef: scores = softmax(x @ weights)."""
    tensor = _number(1, _FLOAT) + _part(2, _shape(weights.shape)) + _part(4, weights.astype("<f4").tobytes())
    return b"".join([
        _node("x", "Placeholder", (), _type("dtype"), _attribute("shape", _part(7, _shape((-1, weights.shape[0]))))),
        _node("weights", "Const", (), _type("dtype"), _attribute("value", _part(8, tensor))),
        _node("product", "MatMul", ("x", "weights"), _type()),
        _node("scores", "Softmax", ("product",), _type()),
    ])  # fmt: skip


def lite() -> bytes:
    """Return the file of the TensorFlow Lite model."""
    return zlib.decompress(base64.b64decode(_LITE))


def write_saved_model(directory: Path, weights: Array) -> None:
    """Write a SavedModel with this graph, and the signature `serving_default`: input `x`, output `scores`."""

    def info(name: str, width: int) -> bytes:
        return _part(1, name) + _number(2, _FLOAT) + _part(3, _shape((-1, width)))

    signature = _part(1, _part(1, "x") + _part(2, info("x:0", weights.shape[0])))
    signature += _part(2, _part(1, "scores") + _part(2, info("scores:0", weights.shape[1])))
    signature += _part(3, "tensorflow/serving/predict")
    meta = _part(1, _part(4, "serve")) + _part(2, graph(weights))
    meta += _part(5, _part(1, "serving_default") + _part(2, signature))
    directory.mkdir(parents=True)
    (directory / "saved_model.pb").write_bytes(_number(1, 1) + _part(2, meta))


def expected(x: Array, weights: Array) -> Array:
    """Return what the graph computes."""
    powers: Array = np.exp(x @ weights - (x @ weights).max(axis=1, keepdims=True))
    result: Array = powers / powers.sum(axis=1, keepdims=True)
    return result
