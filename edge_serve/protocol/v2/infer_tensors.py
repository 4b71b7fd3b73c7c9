"""Tensors as JSON arrays: decodes the `data` array of an input, encodes the bytes of an output.

As strict as Triton: only true and false are BOOL, only integers are integers, integers and floats are floats. Unlike
Triton, an integer that does not fit its type is refused and not wrapped.
"""

from __future__ import annotations

import json
import struct
from itertools import chain
from typing import Any

import orjson

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unparsable
from edge_serve.messages.tensors import Buffer, DataType, Shape, element_count, join_bytes, split_bytes
from edge_serve.protocol.v2 import json_text

#: nested arrays that `data` may hold, itself included
MAX_DEPTH = 100

_CODES = {
    DataType.UINT8: "B", DataType.UINT16: "H", DataType.UINT32: "I", DataType.UINT64: "Q", DataType.INT8: "b",
    DataType.INT16: "h", DataType.INT32: "i", DataType.INT64: "q", DataType.FP32: "f", DataType.FP64: "d",
}  # fmt: skip
#: below this number of values, the type of each is checked
_FEW_READ = 256
#: up to this many values are encoded with struct, which is faster than NumPy there
_FEW_WRITTEN = 64
_UNSIGNED = {DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64}
_FLOATS = {DataType.FP32, DataType.FP64}
#: the types of a value in JSON, and the error text for another one
_KINDS: dict[DataType, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(DataType, ((int,), "non-signed-integer as signed-integer")),
    **dict.fromkeys(_UNSIGNED, ((int,), "non-unsigned-integer as unsigned-integer")),
    **dict.fromkeys(_FLOATS, ((float, int), "non-number as double")),
    DataType.BOOL: ((bool,), "non-boolean as boolean"),
}


def read(data: Any, datatype: DataType, shape: Shape, name: str) -> bytes:
    """Decode the `data` member of input `name` into its bytes.

    Raises:
        InvalidArgument: JSON does not support the type, nesting is too deep, or a number does not fit its type.
        Internal: a value has the wrong JSON type, or their number does not fit the shape (as in Triton: HTTP 500).
    """
    if datatype is DataType.FP16 or datatype is DataType.BF16:
        raise InvalidArgument(
            f"receiving {datatype.name} data via JSON is not supported. Please use the binary data format for "
            f"input {name}"
        )
    if len(data) and datatype in _CODES:
        packed = _pack_plain(data, datatype, element_count(shape))
        if packed is not None:
            return packed
    values, kinds = flatten(data)
    if datatype is DataType.BYTES:
        if kinds.count(str) != len(kinds):
            raise Unparsable("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
        return join_bytes(values)
    expected = element_count(shape)
    if len(values) > expected:
        _check(kinds[:expected], datatype)
        raise Unparsable("Unable to parse 'data': Shape does not match true shape of 'data' field")
    _check(kinds, datatype)
    packed = _pack(values, datatype, name)
    if len(values) < expected:
        raise Unparsable("Unable to parse 'data': Shape does not match true shape of 'data' field")
    return packed


def _pack_plain(data: list[Any], datatype: DataType, count: int) -> bytes | None:
    """Pack `count` numbers, in arrays of one depth, all of which fit; None: the caller has to check each value.

    Packing refuses all values that are not numbers, so that most types need no check: only true and false would pass,
    and they are searched for among the zeros and ones.
    """
    values = data
    try:
        for _ in range(MAX_DEPTH - 1):
            if type(values[0]) is not list:
                break
            if list(map(type, values)).count(list) != len(values):
                return None
            values = list(chain.from_iterable(values))
        if len(values) != count:
            return None
        packed = struct.pack(f"{count}{_CODES[datatype]}", *values)
    except (TypeError, IndexError, OverflowError, struct.error):
        return None
    if count < _FEW_READ:
        return None if bool in map(type, values) else packed
    import numpy as np

    numbers = np.frombuffer(packed, datatype.numpy)
    suspects = np.flatnonzero((numbers == 0) | (numbers == 1))
    among = values if len(suspects) > count // 4 else map(values.__getitem__, suspects.tolist())
    return None if bool in map(type, among) else packed


def flatten(data: list[Any]) -> tuple[list[Any], list[type]]:
    """Return the values of nested arrays in row-major order, and their types. Depths may differ, as in Triton.

    Raises:
        InvalidArgument: the nesting is deeper than MAX_DEPTH.
    """
    values, depth = data, 1
    while True:
        kinds = list(map(type, values))
        arrays = kinds.count(list)
        if not arrays:
            return values, kinds
        if arrays != len(values):
            values = _flatten_mixed(values, depth)
            return values, list(map(type, values))
        depth += 1
        if depth > MAX_DEPTH:
            raise _refuse_depth()
        values = list(chain.from_iterable(values))


def _flatten_mixed(data: list[Any], depth: int) -> list[Any]:
    """Flatten arrays that hold values and arrays. One walk: a walk for each of 100 levels could take minutes."""
    values: list[Any] = []
    append = values.append
    open_arrays = [iter(data)]
    while open_arrays:
        for value in open_arrays[-1]:
            if type(value) is list:
                if depth + len(open_arrays) > MAX_DEPTH:
                    raise _refuse_depth()
                open_arrays.append(iter(value))
                break
            append(value)
        else:
            open_arrays.pop()
    return values


def _refuse_depth() -> InvalidArgument:
    return InvalidArgument(f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")


def _pack(values: list[Any], datatype: DataType, name: str) -> bytes:
    if datatype is DataType.BOOL:
        return bytes(values)
    try:
        return struct.pack(f"{len(values)}{_CODES[datatype]}", *values)
    except OverflowError:  # a double beyond FP32 becomes infinity, as in a cast in C
        import numpy as np

        with np.errstate(over="ignore"):
            return np.array(values, dtype=datatype.numpy).tobytes()
    except struct.error:
        import numpy as np

        info = np.iinfo(datatype.numpy)
        number = next(value for value in values if not info.min <= value <= info.max)
        # RapidJSON does not read these as integers of this sign
        if number < 0 if datatype in _UNSIGNED else number > json_text.INT64_MAX:
            raise _refuse_type(datatype) from None
        raise InvalidArgument(
            f"Unable to parse 'data': {number} is out of range for {datatype.name} input '{name}', expected "
            f"{info.min} to {info.max}"
        ) from None


def _check(kinds: list[type], datatype: DataType) -> None:
    """Check the JSON type of every value; counting types is the fastest way."""
    if sum(map(kinds.count, _KINDS[datatype][0])) != len(kinds):
        raise _refuse_type(datatype)


def _refuse_type(datatype: DataType) -> EdgeServeError:
    return Unparsable(f"Unable to parse 'data': attempt to access JSON {_KINDS[datatype][1]}")


def write(data: Buffer, datatype: DataType, shape: Shape, name: str) -> bytes:
    """Encode output `name` as a flat, compact JSON array, with numbers as Triton prints them.

    Raises:
        InvalidArgument: JSON does not support the type, or a text is not UTF-8.
        Internal: the bytes do not match the shape.
    """
    if datatype is DataType.FP16 or datatype is DataType.BF16:
        raise InvalidArgument(
            f"sending {datatype.name} data via JSON is not supported. Please use the binary data format for output"
        )
    if datatype is DataType.BYTES:
        return _write_strings(data, shape, name)
    count = element_count(shape)
    if len(data) != count * datatype.size:
        raise Internal(f"output tensor shape does not match size of output for '{name}'")
    if count <= _FEW_WRITTEN and datatype in _CODES and datatype not in _FLOATS:
        return orjson.dumps(struct.unpack(f"{count}{_CODES[datatype]}", data))
    import numpy as np

    array = np.frombuffer(data, dtype=datatype.numpy if datatype is not DataType.BOOL else np.uint8)
    if datatype is DataType.BOOL:
        array = array != 0
    elif datatype in _FLOATS:
        array = array.astype(np.float64)  # Triton prints a float as a double
        if not np.isfinite(array).all():
            return json.dumps(array.tolist(), separators=(",", ":")).encode()
    elif not array.flags.aligned:
        array = array.copy()
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


def _write_strings(data: Buffer, shape: Shape, name: str) -> bytes:
    mismatch = f"output tensor shape does not match size of output for '{name}'"
    try:
        elements = split_bytes(data)
    except InvalidArgument as error:
        raise Internal(mismatch) from error
    if len(elements) != element_count(shape):
        raise Internal(mismatch)
    try:
        return orjson.dumps([element.decode() for element in elements])
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"sending output '{name}' via JSON is not possible because it is not valid UTF-8. Please use the binary "
            "data format for output"
        ) from error
