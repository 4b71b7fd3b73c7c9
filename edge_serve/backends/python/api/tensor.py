"""`pb_utils.Tensor`: a name with values, in the memory of the host or of a GPU.

A tensor of a request lies over the request's own bytes. Contract and texts: triton-inference-server/python_backend
src/pb_tensor.cc.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from edge_serve.backends.cuda.api import CudaError
from edge_serve.backends.cuda.device_data import DeviceData, on_device, upload
from edge_serve.backends.python.api import dlpack as python_dlpack
from edge_serve.backends.python.api.errors import MODULE, TritonModelException, as_text
from edge_serve.errors import Unavailable
from edge_serve.messages import tensors
from edge_serve.messages.tensors import INLINE_BYTES, Array, Buffer, DataType, Shape

# Members of an enum cost 0.1 us to look up through the class.
_BYTES, _BF16 = DataType.BYTES, DataType.BF16

# Looked up by identity of the dtype in nearly every case; BYTES by kind below.
_DATATYPES: dict[np.dtype[Any], DataType] = {
    datatype.numpy: datatype for datatype in DataType if datatype not in (DataType.BYTES, DataType.BF16)
}


class Tensor:
    """A named tensor; this class has those in CPU memory."""

    __slots__ = ("__weakref__", "_array", "_datatype", "_name", "_wire")

    _name: str
    _datatype: DataType
    #: None: not made yet. For BF16, the same bytes as uint16
    _array: Array | None
    #: as it came in the request, or was made of strings; later changes of the array do not reach it. None for others
    _wire: tensors.InferTensor | None

    def __init__(self, name: str, array: Array) -> None:
        """Make a tensor over `array`; strings, and an array that is not contiguous, are copied.

        Raises:
            TypeError: not a name and a NumPy array.
            AttributeError: a masked array, whose `data` is no buffer.
            UnicodeEncodeError: a string has half a surrogate pair.
            TritonModelException: the name is empty, or no Triton type has this dtype.
        """
        if isinstance(name, bytes):
            name = as_text("name", name)
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            raise TypeError(
                "__init__(): incompatible constructor arguments. The following argument types are supported:\n"
                f"    1. {MODULE}.Tensor(arg0: str, arg1: numpy.ndarray)\n\nInvoked with: {name!r}, {array!r}"
            )
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        datatype = _DATATYPES.get(array.dtype)
        if datatype is None:
            if array.dtype.kind not in "OS":
                raise TritonModelException(_unsupported(name, array))
            datatype = _BYTES
        if type(array) is not np.ndarray and not isinstance(array.data, memoryview):
            kind = type(array).__name__
            raise AttributeError(f"Tensor '{name}' is a {kind}, expected a plain array: use array.filled(value)")
        self._name = name
        self._datatype = datatype
        self._array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        self._wire = None
        if datatype is _BYTES:  # serialized now, as in Triton: the model may use the array again for its next tensor
            self._wire = tensors.InferTensor(name, _BYTES, array.shape, _join_bytes(name, array))

    @classmethod
    def received(cls, wire: tensors.InferTensor) -> Tensor:
        """Return a tensor of a request; its array is made when the model asks for it."""
        if type(wire.data) is DeviceData:  # type: ignore[comparison-overlap]  # cast to Buffer
            return _GpuTensor(wire.name, wire.datatype, wire.shape, wire.data)
        self = cls.__new__(cls)
        self._name = wire.name
        self._datatype = wire.datatype
        self._array = None
        self._wire = wire
        return self

    def name(self) -> str:
        """Return the name."""
        return self._name

    def shape(self) -> list[int]:
        """Return the shape, with the batch dimension."""
        return list(self._wire.shape if self._wire is not None else self._values().shape)

    def triton_dtype(self) -> int:
        """Return Triton's number of the data type, as in model_config.proto."""
        return int(self._datatype.value)

    def is_cpu(self) -> bool:
        """Return whether the tensor lies in CPU memory."""
        return True

    def as_numpy(self) -> Array:
        """Return the values as a writable view of the tensor's memory; BYTES are an object array of bytes.

        Raises:
            TritonModelException: the type is BF16, which NumPy does not know.
        """
        if self._datatype is _BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        return self._values()

    def _values(self) -> Array:
        array = self._array
        if array is None:
            wire = self._wire
            assert wire is not None
            if wire.datatype is _BYTES:
                array = wire.array()
            else:
                array = np.ndarray(wire.shape, wire.datatype.numpy, wire.data)
                if not array.flags.behaved:
                    # Triton's arrays are aligned and writable, so models write into them; small ones come
                    # in read-only or unaligned bytes.
                    array = array.copy()
            self._array = array
        return array

    def as_wire(self) -> tensors.InferTensor:
        """Return the tensor for the channel: a view of the array, except for BYTES."""
        array = self._array
        if array is None or self._datatype is _BYTES:
            assert self._wire is not None
            return self._wire
        data = array.data.cast("B") if array.size else b""
        return tensors.InferTensor(self._name, self._datatype, array.shape, data)

    def as_host_wire(self) -> tensors.InferTensor:
        """Return the tensor in the memory of the host, for a call of another model."""
        return self.as_wire()

    def on_gpu(self, gpu: int) -> Tensor:
        """Return a copy in the memory of a GPU; the tensor itself where that is not possible."""
        wire = self.as_wire()
        if self._datatype is _BYTES:
            return self
        try:
            return _GpuTensor(self._name, self._datatype, wire.shape, upload(wire.data, gpu))
        except (CudaError, Unavailable):
            return self

    def to_dlpack(self) -> object:
        """Return a DLPack capsule over the tensor's memory.

        Raises:
            TritonModelException: a string tensor.
        """
        if self._datatype is _BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        return python_dlpack.export(self._values(), self._datatype)

    def __dlpack__(self, stream: object = None, **_: object) -> object:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return python_dlpack.CPU, 0

    @staticmethod
    def from_dlpack(name: str, tensor: object) -> Tensor:
        """Return a tensor over the memory of a DLPack capsule, or of an object with `__dlpack__`.

        Raises:
            TritonModelException: an empty name, memory of another device, or values not contiguous in C order.
        """
        name = as_text("name", name)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if isinstance(tensor, np.ndarray):
            # NumPy does not export a read-only array; it can be used as it is.
            if not tensor.flags.c_contiguous:
                raise TritonModelException(python_dlpack.NOT_CONTIGUOUS)
            return Tensor(name, tensor)
        array, datatype = python_dlpack.take(tensor)
        if isinstance(array, python_dlpack.OnGpu):
            return _GpuTensor(name, array.datatype, array.shape, array.data)
        made = Tensor(name, array)
        if datatype is _BF16:
            made._datatype = datatype
        return made


#: of DLPack: producers and consumers that work in the order of the default stream, or ask for no order
_DEFAULT_STREAMS = (None, 0, 1, -1)


class _GpuTensor(Tensor):
    """A tensor in the memory of a GPU."""

    __slots__ = ("_data", "_shape")

    def __init__(self, name: str, datatype: DataType, shape: Shape, data: DeviceData) -> None:
        self._name = name
        self._datatype = datatype
        self._shape = shape
        self._data = data
        self._array = self._wire = None

    def shape(self) -> list[int]:
        return list(self._shape)

    def is_cpu(self) -> bool:
        return False

    def as_numpy(self) -> Array:
        """Raise TritonModelException: NumPy has no memory of a GPU."""
        raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")

    def as_wire(self) -> tensors.InferTensor:
        """Return the tensor for the channel: a large one stays on the device until it is copied into the reply."""
        data = self._data
        return self._on_wire(cast(Buffer, data) if len(data) > INLINE_BYTES else data.on_host())

    def as_host_wire(self) -> tensors.InferTensor:
        return self._on_wire(self._data.on_host())

    def _on_wire(self, data: Buffer) -> tensors.InferTensor:
        return tensors.InferTensor(self._name, self._datatype, self._shape, data)

    def on_gpu(self, gpu: int) -> Tensor:
        return self

    def to_dlpack(self) -> object:
        return python_dlpack.export_gpu(self._data, self._datatype, self._shape)

    def __dlpack__(self, stream: object = None, **_: object) -> object:
        if stream not in _DEFAULT_STREAMS:  # then the producer's work on the default stream is done
            with on_device(self._data.device) as cuda:
                cuda.stream_synchronize(0)
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return python_dlpack.CUDA, self._data.device


def _unsupported(name: str, array: Array) -> str:
    """Return Triton's words, and what to write instead."""
    dtype = array.dtype
    if dtype.kind == "U":
        advice = "strings as array.astype(object)"
    elif dtype.name == "bfloat16":
        advice = "pb_utils.Tensor.from_dlpack(name, tensor) for BF16"
    else:
        advice = "a number, Boolean or object type in this machine's byte order, as of array.astype(np.float32)"
    return f"NumPy dtype is not supported. Tensor '{name}' is {dtype}, expected {advice}"


def _join_bytes(name: str, array: Array) -> bytes:
    try:
        return tensors.join_bytes(array.ravel(order="C").tolist(), any_type=True)
    except UnicodeEncodeError as error:
        error.reason += f" in tensor '{name}', expected bytes or text that UTF-8 can encode"
        raise


Tensor.__module__ = _GpuTensor.__module__ = MODULE
_GpuTensor.__name__ = _GpuTensor.__qualname__ = "Tensor"
