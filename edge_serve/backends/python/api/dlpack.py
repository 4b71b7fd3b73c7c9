"""DLPack capsules in and out, without a framework: BF16 and booleans included, which NumPy itself does not exchange.

Layout: dlpack.h, `DLManagedTensor` of version 0.x (what `__dlpack__()` gives without `max_version`).
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from ctypes import pythonapi
from typing import Any

import numpy as np

from edge_serve.backends.cuda.device_data import DeviceData, process_cuda
from edge_serve.backends.python.api.errors import TritonModelException
from edge_serve.errors import Unavailable, with_advice
from edge_serve.messages.tensors import Array, DataType, Shape
from edge_serve.records import frozen

CPU = 1
CUDA = 2
_CUDA_HOST = 3

NOT_CONTIGUOUS = (
    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
)

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_CODES = {"i": _INT, "u": _UINT, "f": _FLOAT, "b": _BOOL}
#: (code, bits) -> the data type
_DATATYPES = {
    (_BFLOAT if datatype is DataType.BF16 else _CODES[datatype.numpy.kind], datatype.size * 8): datatype
    for datatype in DataType
    if datatype is not DataType.BYTES
}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_is_valid = pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_pointer = pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_set_name = pythonapi.PyCapsule_SetName
_set_name.restype, _set_name.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
# The destructor gets the capsule as a bare address: it is being freed, and may not be counted up again.
_dying_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", pythonapi))
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", pythonapi)
)

# address -> the tensor of an exported capsule, until the consumer calls the deleter
_exported: dict[int, tuple[_Managed, Any, object]] = {}


# A capsule may be freed after this module, when the interpreter ends: nothing of the module may be touched then
# (`is_finalizing` is a default because globals are gone), and the C functions must still exist (`_keep_for_ever`).
def _release(managed: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    if not is_finalizing():
        _exported.pop(ctypes.addressof(managed.contents), None)


def _free_unused(capsule: int, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    # A consumer renames the capsule that it has taken; only an untouched one is ours to free.
    if not is_finalizing() and _dying_is_valid(capsule, b"dltensor"):
        _exported.pop(_dying_pointer(capsule, b"dltensor"), None)


_DELETER, _DESTRUCTOR = _Deleter(_release), _Destructor(_free_unused)
_keep_for_ever = pythonapi.Py_IncRef
_keep_for_ever.restype, _keep_for_ever.argtypes = None, (ctypes.py_object,)
_keep_for_ever(_DELETER)
_keep_for_ever(_DESTRUCTOR)


def export(array: Array, datatype: DataType) -> object:
    """Return a capsule over the memory of `array`, which lives until the consumer releases it."""
    return _capsule(array.ctypes.data, _Device(CPU, 0), datatype, array.shape, array)


def export_gpu(data: DeviceData, datatype: DataType, shape: Shape) -> object:
    """Return a capsule over memory of a GPU; see `export`."""
    return _capsule(data.pointer, _Device(CUDA, data.device), datatype, shape, data)


def _capsule(pointer: int, device: _Device, datatype: DataType, dims: Shape, owner: object) -> object:
    code = _BFLOAT if datatype is DataType.BF16 else _CODES[datatype.numpy.kind]
    shape = (ctypes.c_int64 * len(dims))(*dims)
    tensor = _DLTensor(
        data=pointer,
        device=device,
        ndim=len(dims),
        dtype=_DataType(code, datatype.size * 8, 1),
        shape=ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
    )
    managed = _Managed(tensor=tensor, deleter=_DELETER)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, owner)
    return _new(address, b"dltensor", _DESTRUCTOR)


class _Capsule:
    """Hands a capsule to `numpy.from_dlpack`, which asks an object."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


@frozen
class OnGpu:
    """The content of a capsule in the memory of a GPU. The producer's memory lives as long as `data`."""

    data: DeviceData
    datatype: DataType
    shape: Shape


def take(tensor: object) -> tuple[Array | OnGpu, DataType | None]:
    """Return the values of a capsule, or of an object that exports one, and BF16 for those that come as uint16.

    Raises:
        TritonModelException: neither of the two, memory of a device that cannot be used, or not contiguous.
    """
    if type(tensor).__name__ != "PyCapsule":
        tensor = _ask(tensor)
    if not _is_valid(tensor, b"dltensor"):
        raise TritonModelException("The DLPack capsule has been used already, or is none.")
    content = _Managed.from_address(_pointer(tensor, b"dltensor")).tensor
    _check_device(content.device.type)
    _check_contiguous(content, 0 if content.device.type == CUDA else 1)
    code, bits = content.dtype.code, content.dtype.bits
    if content.dtype.lanes != 1 or code not in (_INT, _UINT, _FLOAT, _BFLOAT, _BOOL):
        raise TritonModelException("DLPack dtype is not supported.")
    if content.device.type == CUDA:
        return _take_gpu(tensor, content), None
    if code in (_BFLOAT, _BOOL):
        # NumPy knows neither (booleans only in late versions): taken as unsigned, in the same bytes.
        content.dtype.code = _UINT
    array: Array = np.from_dlpack(_Capsule(tensor))  # type: ignore[arg-type]  # typed for arrays of the standard
    if code == _BOOL:
        return array.view(np.bool_), DataType.BOOL
    return array, DataType.BF16 if code == _BFLOAT and bits == 16 else None


#: the name of a capsule that was consumed; a capsule refers to it until it is freed
_USED = ctypes.create_string_buffer(b"used_dltensor")
_keep_for_ever(_USED)


class _Owner:
    """Calls the deleter of a producer with the last reference to it."""

    def __init__(self, address: int) -> None:
        self._managed = _Managed.from_address(address)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self._managed.deleter:
            self._managed.deleter(self._managed)


def _take_gpu(capsule: object, content: Any) -> OnGpu:
    datatype = _DATATYPES.get((content.dtype.code, content.dtype.bits))
    if datatype is None:
        raise TritonModelException("DLPack dtype is not supported.")
    shape = tuple(content.shape[: content.ndim])
    owner = _Owner(_pointer(capsule, b"dltensor"))
    _set_name(capsule, _USED)
    pointer = (content.data or 0) + content.byte_offset
    return OnGpu(DeviceData(pointer, math.prod(shape) * datatype.size, content.device.id, owner), datatype, shape)


def _ask(tensor: object) -> object:
    export_, device = getattr(tensor, "__dlpack__", None), getattr(tensor, "__dlpack_device__", None)
    if export_ is None or device is None:
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule "
            "or have `__dlpack__` and `__dlpack_device__` attributes"
        )
    kind = int(device()[0])
    _check_device(kind)
    # 1 is the default stream, on which outputs are copied: the producer lets it wait for its own stream
    return export_(stream=1 if kind == CUDA else None)


def _check_device(device: int) -> None:
    if device == CUDA:
        try:
            process_cuda()
        except Unavailable as error:
            text = (
                "DLPack capsule passed pointer to memory allocated on GPU device, when GPU is not available. "
                "Copy the tensor to CPU memory first, for example with `tensor.cpu()`."
            )
            raise TritonModelException(with_advice(text, error.message)) from error
        return
    if device not in (CPU, _CUDA_HOST):
        raise TritonModelException(f"DLDevice type {device} is not support by Python backend.")


def _check_contiguous(content: Any, first: int) -> None:
    """Check the axes from `first` on: Triton checks from axis 1, and NumPy follows strides in memory of the host."""
    if not content.strides or 0 in content.shape[: content.ndim]:  # one without elements has any strides
        return
    expected = 1
    for axis in range(content.ndim - 1, first - 1, -1):
        size = content.shape[axis]
        if size != 1:
            if content.strides[axis] != expected:
                raise TritonModelException(NOT_CONTIGUOUS)
            expected *= size
