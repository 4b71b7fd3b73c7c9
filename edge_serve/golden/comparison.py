"""Comparison of an output with the recorded one: how many values differ, and where the largest difference is.

Integers, booleans, and strings must be equal. Floats may differ by `atol + rtol * |expected|`; NaN equals NaN, and an
infinity equals itself. Values are compared in pieces, so that a large tensor needs little memory beside its own.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import Array, DataType, InferTensor, Shape, element_count, split_bytes
from edge_serve.records import frozen

#: values that are compared at once
_PIECE = 1 << 18
#: characters of a string that a message shows
_SHOWN = 40
_FLOATS = (DataType.FP16, DataType.FP32, DataType.FP64, DataType.BF16)


@frozen
class OutputFigures:
    """How an output compares.

    Attributes:
        values: how many there are; differ: how many of them differ by more than they may.
        largest: the largest difference; None = nothing differs, or it is no number: of strings, beside NaN, infinite.
        at: index of the largest difference, of strings that of the first one; () = nothing differs.
        found, expected: the values there.
        problem: why it is not as recorded; "" = it is.
    """

    output: str
    values: int = 0
    differ: int = 0
    largest: float | None = None
    at: tuple[int, ...] = ()
    found: str = ""
    expected: str = ""
    rtol: float = 0.0
    atol: float = 0.0
    problem: str = ""


def compare(found: InferTensor | None, expected: InferTensor, rtol: float, atol: float) -> OutputFigures:
    """Compare an output that a model has returned; None = it has returned none of this name."""
    name = expected.name
    face = f"{expected.datatype.name} {list(expected.shape)}"
    if found is None:
        return OutputFigures(name, problem=f"it is missing, expected {face}")
    if found.datatype is not expected.datatype or tuple(found.shape) != tuple(expected.shape):
        return OutputFigures(name, problem=f"it is {found.datatype.name} {list(found.shape)}, expected {face}")
    try:
        if expected.datatype is DataType.BYTES:
            if found.data == expected.data:
                return OutputFigures(name, element_count(expected.shape))
            return _compare_strings(name, split_bytes(found.data), split_bytes(expected.data), expected.shape)
        return _compare_numbers(found, expected, rtol, atol)
    except InvalidArgument as error:
        return OutputFigures(name, problem=f"its bytes do not make up {face}: {error.message}")


def _compare_strings(name: str, found: list[bytes], expected: list[bytes], shape: Shape) -> OutputFigures:
    if len(found) != len(expected):
        problem = f"it has {len(found)} strings, expected {len(expected)}"
        return OutputFigures(name, len(expected), problem=problem)
    differ = [i for i, (ours, theirs) in enumerate(zip(found, expected, strict=True)) if ours != theirs]
    if not differ:
        return OutputFigures(name, len(expected))
    first = differ[0]
    at = _index(first, shape)
    ours, theirs = _text(found[first]), _text(expected[first])
    problem = f"{len(differ)} of {len(expected)} strings differ, the first at {list(at)}: {ours}, expected {theirs}"
    return OutputFigures(name, len(expected), len(differ), None, at, ours, theirs, problem=problem)


def _text(value: bytes) -> str:
    text = ascii(value.decode("utf-8", "backslashreplace"))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _compare_numbers(found: InferTensor, expected: InferTensor, rtol: float, atol: float) -> OutputFigures:
    """Compare piece by piece, and remember the largest difference among the values that differ too much."""
    datatype = expected.datatype
    is_float = datatype in _FLOATS
    ours, theirs = (tensor.array().reshape(-1) for tensor in (found, expected))
    differ, largest, place = 0, -1.0, -1
    for start in range(0, theirs.size, _PIECE):
        got, want = (_values(array[start : start + _PIECE], datatype) for array in (ours, theirs))
        far, distance = float_distance(got, want, rtol, atol) if is_float else _whole_distance(got, want)
        count = int(np.count_nonzero(far))
        if count:
            differ += count
            distance = np.where(far, distance, -1.0)
            if (most := float(distance.max())) > largest:
                largest, place = most, start + int(distance.argmax())
    tolerances = (rtol, atol) if is_float else (0.0, 0.0)
    values = element_count(expected.shape)
    if not differ:
        return OutputFigures(expected.name, values, rtol=tolerances[0], atol=tolerances[1])
    at = _index(place, expected.shape)
    got, want = (_values(array[place : place + 1], datatype)[0] for array in (ours, theirs))
    allowed = f"rtol {rtol:g}, atol {atol:g}" if is_float else "they must be equal"
    problem = (
        f"{differ} of {values} values differ, the largest difference is {largest:.6g} at {list(at)}: {got}, "
        f"expected {want} ({allowed})"
    )
    finite = largest if math.isfinite(largest) else None
    return OutputFigures(expected.name, values, differ, finite, at, str(got), str(want), *tolerances, problem=problem)


def _values(piece: Array, datatype: DataType) -> Array:
    """Return numbers that can be compared: BF16 has the upper half of the bits of FP32."""
    if datatype is DataType.BF16:
        piece = (piece.astype(np.uint32) << 16).view(np.float32)
    if datatype is DataType.BOOL:
        piece = np.not_equal(piece.view(np.uint8), 0)
    return piece


def float_distance(got: Array, want: Array, rtol: float, atol: float) -> tuple[npt.NDArray[np.bool_], Array]:
    """Return which values are too far from each other, and how far all of them are: 0 for two NaN or equal infinities,
    infinite for NaN beside a number."""
    ours, theirs = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(ours - theirs)
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        is_near = np.isfinite(ours) & np.isfinite(theirs) & (distance <= atol + rtol * np.abs(theirs))
    return ~(same | is_near), np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _whole_distance(got: Array, want: Array) -> tuple[npt.NDArray[np.bool_], Array]:
    """Return which values differ, and by how much. The difference of two whole numbers of 64 bits fits no such type."""
    if got.dtype == np.bool_:
        return got != want, (got != want).astype(np.float64)
    high, low = np.maximum(got, want).astype(np.uint64), np.minimum(got, want).astype(np.uint64)
    return got != want, (high - low).astype(np.float64)  # modulo 2^64, which is right for signed types too


def _index(place: int, shape: Shape) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(place, shape)) if shape else ()
