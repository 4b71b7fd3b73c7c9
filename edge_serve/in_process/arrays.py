"""Converts NumPy arrays to tensors, and responses to arrays that the caller owns."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.signature import TensorSpec
from edge_serve.messages.tensors import Array, DataType, InferTensor, from_array, from_numpy_type

#: arrays, or values that NumPy converts to arrays
Inputs = Mapping[str, Any]
Outputs = dict[str, Array]


def tensor_of(name: str, value: Any, spec: TensorSpec | None) -> InferTensor:
    """Convert an input to a tensor. An array keeps its type; other values get the type of the model.

    Raises:
        InvalidArgument: the value does not fit the type.
    """
    datatype: DataType | None = spec.datatype if spec is not None else None
    try:
        if isinstance(value, np.ndarray) or datatype is None:
            array = np.asarray(value)
            raw = datatype is DataType.BF16 and array.dtype == DataType.BF16.numpy  # NumPy has no type for it
            found = datatype if raw else from_numpy_type(array.dtype)
        else:
            array, found = _convert(value, datatype), datatype
        data = b"" if found is None else from_array(array, found)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(
            f"input '{name}' does not become an array of {datatype and datatype.name}: {error}"
        ) from error
    if found is None:
        raise InvalidArgument(f"input '{name}' has NumPy type {array.dtype}, which models have no type for")
    return InferTensor(name, found, array.shape, data)


def _convert(value: Any, datatype: DataType) -> Array:
    """Convert a value that is no array, unless NumPy would take its numbers or strings for others.

    Raises:
        ValueError, TypeError, OverflowError: it does not fit the type.
    """
    wanted = datatype.numpy
    if datatype is DataType.BYTES:
        return np.asarray(value, dtype=wanted)
    array: Array = np.asarray(value)
    found, whole = array.dtype, wanted.kind in "iu"
    fits = not array.size or np.can_cast(found, wanted, "same_kind") or (whole and found.kind in "iu")
    if not fits and wanted.kind in "iuf" and found.kind in "fO":  # NumPy's types for [2**63, 1] and [2**70]
        array = np.asarray(value, dtype=object)
        kind = numbers.Integral if whole else numbers.Real
        fits = all(isinstance(one, kind) for one in array.flat)
    if not fits:
        raise TypeError(f"found values of NumPy type {found}, which could change in it; convert them first")
    if whole and array.size:
        least, most, info = int(array.min()), int(array.max()), np.iinfo(wanted)
        if least < info.min or most > info.max:
            raise ValueError(f"found {least} to {most}, expected {info.min} to {info.max}")
    with np.errstate(over="ignore"):  # a double beyond FP32 becomes infinity, as over HTTP
        return array.astype(wanted, copy=False)


def outputs_of(response: InferResponse) -> Outputs:
    """Copy the outputs, and release the memory of the response.

    Raises:
        EdgeServeError: the error of the response.
    """
    try:
        if response.error is not None:
            raise response.error
        return {tensor.name: _copy(tensor) for tensor in response.outputs}
    finally:
        release(response)


def _copy(tensor: InferTensor) -> Array:
    array = tensor.array()
    if tensor.datatype is DataType.BYTES:
        flat = np.empty(array.size, dtype=object)
        flat[:] = [bytes(element) for element in array.ravel()]
        return flat.reshape(array.shape)
    return np.array(array)


def release(response: InferResponse) -> None:
    if response.lease is not None:
        response.lease.release()
