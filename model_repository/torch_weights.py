"""Reads the tensors of a file that `torch.save` wrote before PyTorch 1.6, with NumPy alone.

Such a file is a row of pickles (a magic number, the protocol, the machine, names and shapes, a list of storages),
followed by the numbers of each storage behind their count. A pickle may name any function to be called; this reader
permits the few functions that weights need, and refuses all others.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: kind of storage -> its NumPy type
_TYPES = {"FloatStorage": "<f4", "LongStorage": "<i8"}
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


@dataclass(frozen=True)
class _Tensor:
    """A part of a storage; the storage's numbers come later in the file."""

    storage: str
    offset: int
    size: Sequence[int]
    stride: Sequence[int]

    def array(self, storages: dict[str, Array]) -> Array:
        """Return the tensor; its axes may have any order in the storage."""
        numbers = storages[self.storage][self.offset :]
        last = sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))
        if min(self.stride, default=0) < 0 or not 0 <= last < len(numbers):
            raise ValueError(f"found a tensor {self.size} with strides {self.stride} in {len(numbers)} numbers")
        steps = [stride * numbers.itemsize for stride in self.stride]
        return np.lib.stride_tricks.as_strided(numbers, self.size, steps, writeable=False)


class _Reader(pickle.Unpickler):
    """One pickle of the file.

    Args:
        types: filled with the kind of each storage, by its key.
    """

    def __init__(self, file: BinaryIO, types: dict[str, str]) -> None:
        super().__init__(file)
        self._types = types

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "collections", "OrderedDict":
                return OrderedDict
            case "torch._utils", "_rebuild_tensor_v2":
                return lambda storage, offset, size, stride, *_: _Tensor(storage, offset, size, stride)
            case "torch", _ if name in _TYPES:
                return _TYPES[name]
        raise pickle.UnpicklingError(f"found {module}.{name}, which is no weight")

    def persistent_load(self, pid: Any) -> str:
        """Return the key of a storage: ("storage", type, key, device, count, view)."""
        _, kind, key, *_ = pid
        self._types[key] = kind
        return str(key)


def read_weights(file: BinaryIO) -> dict[str, Array]:
    """Return the tensors by name.

    Raises:
        ValueError: the file has another format, or names a function that weights do not need.
    """
    types: dict[str, str] = {}
    try:
        if (_Reader(file, types).load(), _Reader(file, types).load()) != (_MAGIC, _PROTOCOL):
            raise ValueError("expected a file that torch.save wrote before PyTorch 1.6")
        _Reader(file, types).load()  # facts about the machine that wrote the file: always little-endian
        tensors: dict[str, _Tensor] = _Reader(file, types).load()
        storages = {}
        for key in _Reader(file, types).load():
            count = int.from_bytes(file.read(8), "little")
            storages[key] = np.frombuffer(file.read(count * np.dtype(types[key]).itemsize), types[key], count)
    except (pickle.UnpicklingError, KeyError, EOFError, AttributeError, TypeError) as error:
        raise ValueError(f"expected weights that torch.save wrote: {error}") from error
    return {name: tensor.array(storages) for name, tensor in tensors.items()}
