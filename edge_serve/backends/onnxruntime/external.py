"""Check of an ONNX file's external data: tensors whose bytes lie in files that the model names (onnx.proto).

ONNX Runtime before 1.24 reads any file that a model names, so that a model could hand out files of the device. The
check walks through the protobuf messages that may hold tensors, and passes over their content. Worker's side: the
standard library only.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edge_serve.errors import Internal

#: a message: number of a field -> the message in it (onnx.proto); `_ENTRY` is a StringStringEntryProto
_ENTRY: Mapping[int, Any] = {}
_TENSOR: Mapping[int, Any] = {13: _ENTRY}
_SPARSE_TENSOR: Mapping[int, Any] = {1: _TENSOR, 2: _TENSOR}
_GRAPH: dict[int, Any] = {5: _TENSOR, 15: _SPARSE_TENSOR}
_ATTRIBUTE = {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE_TENSOR, 23: _SPARSE_TENSOR}
_NODE = {5: _ATTRIBUTE}
_GRAPH[1] = _NODE
_FUNCTION = {7: _NODE, 11: _ATTRIBUTE}
_TRAINING = {1: _GRAPH, 2: _GRAPH}
_MODEL = {7: _GRAPH, 20: _TRAINING, 25: _FUNCTION}

_KEY, _VALUE = 1, 2
#: wire types of protobuf
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES = 10


def check_external_data(path: Path, model_directory: Path) -> None:
    """Check that a model reads no file outside of its own directory. A file that is no ONNX model passes.

    Raises:
        Internal: it names one.
    """
    for location in locations(path):
        name = os.fsdecode(location)
        if not os.path.isabs(name) and os.pardir not in Path(name).parts:
            continue  # below the file's directory; where a link leads there, the owner of the directory made it
        target = os.path.realpath(path.parent / name.replace("\0", ""))
        if not Path(target).is_relative_to(os.path.realpath(model_directory)):
            raise Internal(
                f"the model keeps weights in {name[:200]!a}, which is outside of its directory: export it again with "
                f"all its files in one directory, and put them beside {path.name}"
            )


def locations(path: Path) -> set[bytes]:
    """Return the files that tensors of an ONNX file lie in, as the file names them."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return set(_locations(data))
    except (OSError, ValueError):  # empty, or gone: the library says so
        return set()


def _locations(data: mmap.mmap) -> Iterator[bytes]:
    left: list[tuple[int, int, Mapping[int, Any]]] = [(0, len(data), _MODEL)]
    while left:
        start, end, message = left.pop()
        if message is _ENTRY:
            members = {number: data[first:last] for number, first, last in _fields(data, start, end)}
            if members.get(_KEY) == b"location":
                yield members.get(_VALUE, b"")
            continue
        for number, first, last in _fields(data, start, end):
            if number in message:
                left.append((first, last, message[number]))


def _fields(data: mmap.mmap, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field with bytes. What is no protobuf message ends it."""
    while position < end:
        tag, position = _varint(data, position, end)
        kind = tag & 7
        if kind == _BYTES:
            length, position = _varint(data, position, end)
            if length > end - position:
                return
            yield tag >> 3, position, position + length
            position += length
        elif kind == _VARINT:
            _, position = _varint(data, position, end)
        else:  # a group has its fields between two tags, which are passed over
            position += {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)


def _varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    """Return a number and the position behind it; (0, end) if it is cut off."""
    value = 0
    for shift in range(0, 7 * _VARINT_BYTES, 7):
        if position >= end:
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    return 0, end
