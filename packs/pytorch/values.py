"""Tensors of requests as those of torch, and back, without a copy where that is possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from edge_serve.messages.tensors import Array
from edge_serve.tensors import DataType, Tensor, from_array, join, to_array

_BYTES, _BF16 = DataType.BYTES, DataType.BF16
_TORCH_TYPES = {
    torch.bool: DataType.BOOL, torch.uint8: DataType.UINT8, torch.int8: DataType.INT8, torch.int16: DataType.INT16,
    torch.int32: DataType.INT32, torch.int64: DataType.INT64, torch.float16: DataType.FP16,
    torch.bfloat16: DataType.BF16, torch.float32: DataType.FP32, torch.float64: DataType.FP64,
    torch.uint16: DataType.UINT16, torch.uint32: DataType.UINT32, torch.uint64: DataType.UINT64,
}  # fmt: skip


def datatype_of(value: torch.Tensor) -> DataType | None:
    """Return the type of a tensor of torch; None for one that has no place in a reply."""
    return _TORCH_TYPES.get(value.dtype)


def array_of(tensor: Tensor) -> Array:
    """Return the numbers of an input: a view."""
    array: Array = np.ndarray(tensor.shape, tensor.datatype.numpy, tensor.data)
    return array


def torch_of(parts: Sequence[Array], datatype: DataType) -> torch.Tensor:
    """Return arrays, joined along the first axis, as a tensor; a single one without a copy.

    The model may write into its inputs, so what must not be written is copied: an input in the memory of another model
    or of a client.
    """
    array = join(parts)
    if not (array.flags.aligned and array.flags.writeable):
        array = array.copy()
    if datatype is _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def texts_of(tensors: Sequence[Tensor]) -> list[bytes]:
    """Return the elements of string inputs, one request after the other: torch has lists of strings, no tensors."""
    return [text for tensor in tensors for text in to_array(tensor.data, _BYTES, tensor.shape).ravel().tolist()]


def numpy_of(value: torch.Tensor) -> Array:
    """Return an output in the host's memory; BF16 as its bits."""
    value = value.detach().cpu().contiguous()
    array: Array = (value.view(torch.int16) if value.dtype is torch.bfloat16 else value).numpy()
    return array


def output_of(name: str, array: Array, datatype: DataType) -> Tensor:
    """Return an output of a reply: a view."""
    if datatype is _BF16:
        array = array.view(np.uint16)
    if not array.size or not array.flags.c_contiguous:
        return Tensor(name, datatype, array.shape, from_array(array, datatype))
    return Tensor(name, datatype, array.shape, array.data.cast("B"))


def text_output(name: str, texts: Sequence[str]) -> Tensor:
    """Return an output of strings."""
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return Tensor(name, _BYTES, array.shape, from_array(array, _BYTES))
