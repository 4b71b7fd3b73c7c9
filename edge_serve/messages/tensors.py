"""Data types and tensors: names, sizes, NumPy types, BYTES and BF16, joining and splitting along the batch axis.

The layout is KServe v2's binary tensor extension: little-endian, row-major; a BYTES element is a 4-byte little-endian
length and its bytes. Imported on the worker's side too: the standard library and NumPy only. NumPy is imported by the
functions that need it, and not at the start of a server (ADR 39).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import field
from enum import Enum
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, cast

from edge_serve.errors import InvalidArgument
from edge_serve.records import slotted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    Array = Any

Buffer = bytes | bytearray | memoryview
Shape = tuple[int, ...]

#: tensors of one request or reply that are larger together lie in the arena of the model. Smaller ones travel in a
#: frame: a copy costs less than a slot. So a body from this size on is received into the arena
INLINE_BYTES = 32 * 1024


class DataType(Enum):
    """A tensor element type. The value is the number in model_config.proto; members know the v2 name and the size."""

    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14

    #: bytes per element; 0 for BYTES
    size: int

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type with the same bytes; BYTES are object arrays of `bytes`, BF16 travels as uint16."""
        import numpy as np

        return np.dtype(_NUMPY[self])

    @property
    def config_name(self) -> str:
        """The name in config.pbtxt (`TYPE_INT32`, `TYPE_STRING` for BYTES)."""
        return "TYPE_STRING" if self is DataType.BYTES else f"TYPE_{self.name}"


#: order of the bytes, kind, and size
_NUMPY = {
    DataType.BOOL: "|b1", DataType.UINT8: "|u1", DataType.UINT16: "<u2", DataType.UINT32: "<u4", DataType.UINT64: "<u8",
    DataType.INT8: "|i1", DataType.INT16: "<i2", DataType.INT32: "<i4", DataType.INT64: "<i8", DataType.FP16: "<f2",
    DataType.FP32: "<f4", DataType.FP64: "<f8", DataType.BYTES: "|O", DataType.BF16: "<u2",
}  # fmt: skip
for _type, _code in _NUMPY.items():
    _type.size = int(_code[2:] or 0)

#: v2 name -> type, as requests write it
BY_NAME: dict[str, DataType] = {t.name: t for t in DataType}
#: config.pbtxt name -> type
BY_CONFIG_NAME: dict[str, DataType] = {t.config_name: t for t in DataType}
#: number in model_config.proto -> type
BY_NUMBER: dict[int, DataType] = {t.value: t for t in DataType}


def from_numpy_type(dtype: np.dtype[Any]) -> DataType | None:
    """Return the data type for a NumPy dtype; None = there is none. Objects, `S` and `U` arrays are BYTES."""
    if dtype.kind in "OSU":
        return DataType.BYTES
    return _from_numpy().get(dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype)


@cache
def _from_numpy() -> dict[np.dtype[Any], DataType]:
    return {one.numpy: one for one in DataType if one not in (DataType.BYTES, DataType.BF16)}


#: `InferTensor.offset` of a tensor of zeros, which has no memory: the worker makes it
ZEROS = -2


@slotted
class InferTensor:
    """One tensor of a request or a response; `data` is a view wherever that is possible.

    Attributes:
        shape: with the batch dimension first where the model batches.
        data: the bytes in v2 binary layout.
        offset: where `data` starts in the model's tensor arena, or -1 when it lies in ordinary memory, or ZEROS.
    """

    name: str
    datatype: DataType
    shape: Shape
    data: Buffer = field(repr=False)
    offset: int = -1

    def array(self) -> Array:
        """Return the values, as a view of `data` except for BYTES.

        Raises:
            InvalidArgument: the bytes do not make up this shape.
        """
        return to_array(self.data, self.datatype, self.shape)


@slotted
class Handle(InferTensor):
    """A tensor in the arena of another model than the one that it is for; the part that passes it on owns its lease.

    Attributes:
        arena: where it lies; place: where `data` starts there.
    """

    arena: object = None
    place: int = -1

    @classmethod
    def of(cls, tensor: InferTensor, arena: object) -> InferTensor:
        """Return a handle of `tensor`, whose `offset` is in `arena`; `tensor` itself if it lies in no arena."""
        if tensor.offset < 0:
            return tensor
        return cls(tensor.name, tensor.datatype, tensor.shape, tensor.data, -1, arena, tensor.offset)

    @classmethod
    def renamed(cls, tensor: InferTensor, name: str, shape: Shape) -> InferTensor:
        """Return a tensor of another name and shape over the same bytes, which stay where they are in an arena."""
        if type(tensor) is cls:
            return cls(name, tensor.datatype, shape, tensor.data, -1, tensor.arena, tensor.place)
        if type(tensor) is Shared:
            return Shared(name, tensor.datatype, shape, tensor.data, -1, tensor.region, tensor.place)
        return InferTensor(name, tensor.datatype, shape, tensor.data)


class Unseen:
    """Bytes that this process does not see, because they lie in a client's shared memory: it knows their number only.

    Whatever tries to read them fails, which is how tests know that nothing does.
    """

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    @classmethod
    def buffer(cls, size: int) -> Buffer:
        """Return unseen bytes for `InferTensor.data`, where most code asks for the length alone: its type need not name
        this class."""
        return cast(Buffer, cls(size))


def is_unseen(data: object) -> bool:
    """Return whether this process knows only the number of the bytes."""
    return type(data) is Unseen


@slotted
class Shared(InferTensor):
    """An input in a shared memory region of a client; `data` is `Unseen` in the front end.

    Attributes:
        region: a `Region` of workers/memory/, which stays open while this refers to it.
        place: where the tensor starts in the region's file, or in the memory of a GPU.
    """

    region: object = None
    place: int = -1


def shape_text(shape: Iterable[int]) -> str:
    """Return a shape as Triton prints it: `[1,2]`."""
    return f"[{','.join(map(str, shape))}]"


def same_shape(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes have one rank and no dimension that is fixed to different sizes."""
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def element_count(shape: Sequence[int]) -> int:
    """Return the number of elements; 1 for an empty shape."""
    return math.prod(shape)


def zero_data(datatype: DataType, shape: Sequence[int]) -> bytes:
    """Return the binary data of a tensor of zeros; of BYTES, of empty strings."""
    return bytes(element_count(shape) * (datatype.size or _LENGTH.size))


def zero_tensor(name: str, datatype: DataType, shape: Shape) -> InferTensor:
    """Return a tensor of zeros for a worker, or of empty strings. Its `data` are `Unseen`."""
    size = element_count(shape) * (datatype.size or _LENGTH.size)
    return InferTensor(name, datatype, shape, Unseen.buffer(size), ZEROS)


def to_array(data: Buffer, datatype: DataType, shape: Shape) -> Array:
    """Return the values of binary `data`: a view, except for BYTES, which become an object array of `bytes`.

    Raises:
        InvalidArgument: the bytes do not make up this shape.
    """
    import numpy as np

    if datatype is DataType.BYTES:
        flat = np.empty(element_count(shape), dtype=object)
        elements = split_bytes(data)
        if len(elements) != flat.size:
            raise InvalidArgument(
                f"found {len(elements)} string elements, expected {flat.size} for shape {list(shape)}"
            )
        flat[:] = elements
        return flat.reshape(shape)
    try:
        return np.frombuffer(data, dtype=datatype.numpy).reshape(shape)
    except ValueError as error:
        raise InvalidArgument(f"{len(data)} bytes do not make up {datatype.name} {list(shape)}") from error


def from_array(array: Array, datatype: DataType) -> Buffer:
    """Return `array` in v2 binary layout: a view where it already lies that way, else a copy.

    Raises:
        InvalidArgument: a BYTES element is neither bytes nor str.
    """
    if datatype is DataType.BYTES:
        return join_bytes(array.ravel(order="C").tolist())
    import numpy as np

    flat = np.ascontiguousarray(array, dtype=datatype.numpy)
    return flat.reshape(-1).view(np.uint8).data if flat.size else b""


_LENGTH = struct.Struct("<I")


def split_bytes(data: Buffer) -> list[bytes]:
    """Return the elements of a BYTES tensor.

    Raises:
        InvalidArgument: the data ends inside a length or an element.
    """
    view, position, elements = bytes(data), 0, []
    end = len(view)
    while position < end:
        if position + 4 > end:
            raise InvalidArgument(
                f"incomplete string length indicator, expecting 4 bytes but only {end - position} left"
            )
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if position + length > end:
            raise InvalidArgument(f"incomplete string data, expecting {length} bytes but only {end - position} left")
        elements.append(view[position : position + length])
        position += length
    return elements


def join_bytes(elements: Iterable[object], *, any_type: bool = False) -> bytes:
    """Return the binary layout of BYTES elements: bytes as they are, `str` as the UTF-8 of its `str()`, which a
    subclass may define.

    Args:
        any_type: an element of another type is written as its `str()`, as in Python models of Triton.

    Raises:
        InvalidArgument: an element is neither bytes nor str, without `any_type`.
        UnicodeEncodeError: a string has half a surrogate pair.
    """
    parts: list[bytes] = []
    for element in elements:
        match element:
            case bytes():
                raw = element
            case str():
                raw = str(element).encode()
            case bytearray() | memoryview():
                raw = bytes(element)
            case _ if any_type:
                raw = str(element).encode()
            case _:
                raise InvalidArgument(f"a BYTES element must be bytes or str, found {type(element).__name__}")
        parts.append(_LENGTH.pack(len(raw)))
        parts.append(raw)
    return b"".join(parts)


def count_bytes_elements(data: Buffer) -> int:
    """Count the elements of a BYTES tensor without copying them.

    Raises:
        InvalidArgument: the data ends inside a length or an element.
    """
    position, count, end = 0, 0, len(data)
    while position < end:
        if position + 4 > end:
            raise InvalidArgument(
                f"incomplete string length indicator, expecting 4 bytes but only {end - position} left"
            )
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4 + length
        count += 1
    if position > end:
        raise InvalidArgument("incomplete string data")
    return count


def join(parts: Sequence[Array]) -> Array:
    """Join arrays along the first axis; a single one is returned as it is."""
    import numpy as np

    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def split(array: Array, rows: Sequence[int]) -> list[Array]:
    """Return views of consecutive `rows` of the first axis, the reverse of `join`."""
    views, start = [], 0
    for count in rows:
        views.append(array[start : start + count])
        start += count
    return views
