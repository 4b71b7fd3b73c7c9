"""Writes an ONNX file with NumPy alone: the few messages of onnx.proto that a network of convolutions needs.

The package `onnx` does the same and more, but it is a download of 23 MB with its dependencies. The format is Protocol
Buffers' (a tag, then a number or a length and bytes); field numbers are those of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

#: AttributeProto.AttributeType
_FLOAT, _INT, _INTS = 1, 2, 7
#: TensorProto.DataType
_FLOAT32 = 1

Weights = npt.NDArray[np.float32]
Attribute = float | int | Sequence[int]


@dataclass
class Graph:
    """A graph under construction; `node` adds one node, and `weights` one constant."""

    name: str
    nodes: list[bytes] = field(default_factory=list)
    constants: list[bytes] = field(default_factory=list)

    def node(self, kind: str, inputs: Iterable[str], output: str, **attributes: Attribute) -> str:
        """Add a node with one output (NodeProto); return the output's name."""
        parts = [_text(1, name) for name in inputs] + [_text(2, output), _text(4, kind)]
        self.nodes.append(b"".join(parts + [_bytes(5, _attribute(*one)) for one in sorted(attributes.items())]))
        return output

    def weights(self, name: str, values: Weights) -> str:
        """Add a constant (TensorProto); return its name."""
        data = np.ascontiguousarray(values, "<f4").tobytes()
        dims = b"".join(_number(1, size) for size in values.shape)
        self.constants.append(dims + _number(2, _FLOAT32) + _text(8, name) + _bytes(9, data))
        return name

    def model(self, inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]], opset: int) -> bytes:
        """Return the file (ModelProto, IR version 8); all tensors are FP32."""
        parts = [_bytes(1, node) for node in self.nodes] + [_text(2, self.name)]
        parts += [_bytes(5, constant) for constant in self.constants]
        parts += [_bytes(11, _value(*one)) for one in inputs.items()]
        parts += [_bytes(12, _value(*one)) for one in outputs.items()]
        return _number(1, 8) + _bytes(7, b"".join(parts)) + _bytes(8, _number(2, opset))


def _attribute(name: str, value: Attribute) -> bytes:
    match value:
        case int():
            return _text(1, name) + _number(3, value) + _number(20, _INT)
        case float():
            return _text(1, name) + b"\x15" + np.float32(value).tobytes() + _number(20, _FLOAT)
    return _text(1, name) + b"".join(_number(8, one) for one in value) + _number(20, _INTS)


def _value(name: str, shape: Sequence[int]) -> bytes:
    dimensions = b"".join(_bytes(1, _number(1, size)) for size in shape)
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, _FLOAT32) + _bytes(2, dimensions)))


def _number(tag: int, value: int) -> bytes:
    return _varint(tag << 3) + _varint(value)


def _text(tag: int, value: str) -> bytes:
    return _bytes(tag, value.encode())


def _bytes(tag: int, value: bytes) -> bytes:
    return _varint(tag << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)
