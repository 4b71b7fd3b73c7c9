"""`pb_utils.InferenceResponse` and `pb_utils.Tensor`: a model's answer, and a name with values.

A tensor of a request lies over the request's own bytes. Contract and texts: triton-inference-server/python_backend
src/infer_response.cc and src/pb_tensor.cc.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from edge_serve.backends.base import Reply
from edge_serve.backends.python.api import dlpack as python_dlpack
from edge_serve.backends.python.api.errors import MODULE, TritonError, TritonModelException
from edge_serve.errors import InvalidArgument
from edge_serve.messages import tensors
from edge_serve.messages.infer import Parameter
from edge_serve.messages.tensors import Array, DataType, Shape

# Members of an enum cost 0.1 us to look up through the class.
_BYTES, _BF16 = DataType.BYTES, DataType.BF16

# Looked up by identity of the dtype in nearly every case; BYTES by kind below.
_DATATYPES: dict[np.dtype[Any], DataType] = {
    datatype.numpy: datatype for datatype in DataType if datatype not in (DataType.BYTES, DataType.BF16)
}


class Tensor:
    """A named tensor in CPU memory."""

    __slots__ = ("_array", "_datatype", "_name", "_wire")

    _name: str
    _datatype: DataType
    #: None: not made yet. For BF16, the same bytes as uint16
    _array: Array | None
    #: as it came in the request; None for a tensor that the model made
    _wire: tensors.InferTensor | None

    def __init__(self, name: str, array: Array) -> None:
        """A tensor over `array`; one that is not contiguous is copied.

        Raises:
            TypeError: not a name and a NumPy array.
            TritonModelException: the name is empty, or no Triton type has this dtype.
        """
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
        self._name = name
        self._datatype = datatype
        self._array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        self._wire = None

    @classmethod
    def received(cls, wire: tensors.InferTensor) -> Tensor:
        """A tensor of a request; its array is made when the model asks for it."""
        self = cls.__new__(cls)
        self._name = wire.name
        self._datatype = wire.datatype
        self._array = None
        self._wire = wire
        return self

    def name(self) -> str:
        """The name."""
        return self._name

    def shape(self) -> list[int]:
        """The shape, with the batch dimension."""
        return list(self._wire.shape if self._wire is not None else self._values().shape)

    def triton_dtype(self) -> int:
        """Triton's number of the data type, as in model_config.proto."""
        return int(self._datatype.value)

    def is_cpu(self) -> bool:
        """Always: tensors of this server's Python models lie in CPU memory."""
        return True

    def as_numpy(self) -> Array:
        """The values, a view of the tensor's memory that the model may write to; BYTES are an object array of bytes.

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
        """The same for the channel: a view of the array, except for BYTES."""
        array = self._array
        if array is None:
            assert self._wire is not None
            return self._wire
        shape: Shape = array.shape
        if self._datatype is _BYTES:
            return tensors.InferTensor(self._name, _BYTES, shape, _join_bytes(array))
        data = array.data.cast("B") if array.size else b""
        return tensors.InferTensor(self._name, self._datatype, shape, data)

    def to_dlpack(self) -> object:
        """A DLPack capsule over the tensor's memory.

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
        """A tensor over the memory of a DLPack capsule, or of an object with `__dlpack__`.

        Raises:
            TritonModelException: an empty name, memory of another device, or values not contiguous in C order.
        """
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if isinstance(tensor, np.ndarray):
            # NumPy does not export a read-only array; it can be used as it is.
            if not tensor.flags.c_contiguous:
                raise TritonModelException(python_dlpack.NOT_CONTIGUOUS)
            return Tensor(name, tensor)
        array, datatype = python_dlpack.take(tensor)
        made = Tensor(name, array)
        if datatype is _BF16:
            made._datatype = datatype
        return made


def _unsupported(name: str, array: Array) -> str:
    """Triton's words, and what to write instead."""
    dtype = array.dtype
    if dtype.kind == "U":
        advice = "strings as array.astype(object)"
    elif dtype.name == "bfloat16":
        advice = "pb_utils.Tensor.from_dlpack(name, tensor) for BF16"
    else:
        advice = "a number, Boolean or object type in this machine's byte order, as of array.astype(np.float32)"
    return f"NumPy dtype is not supported. Tensor '{name}' is {dtype}, expected {advice}"


def _join_bytes(array: Array) -> bytes:
    elements = array.ravel(order="C").tolist()
    try:
        return tensors.join_bytes(elements)
    except InvalidArgument:
        # Triton writes anything else as its str().
        return tensors.join_bytes(e if isinstance(e, bytes) else str(e) for e in elements)


class InferenceResponse:
    """Output tensors, or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        """Raises TypeError for values of other types, TritonModelException for an empty tensor or odd parameters."""
        try:
            self._tensors = list(output_tensors)
        except TypeError:
            raise _no_list(output_tensors) from None
        for tensor in self._tensors:
            if type(tensor) is not Tensor:
                _refuse_tensor(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse(error=...) must be a TritonError, found {type(error).__name__}")
        self._error = error
        self._parameters = None if parameters is None else check_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        """The outputs."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, or None."""
        return self._error

    def parameters(self) -> str:
        """The parameters as a JSON object."""
        return json.dumps(self._parameters or {})

    def as_reply(self, wanted: Collection[str]) -> Reply:
        """The same for the channel, without the outputs that are not `wanted`."""
        if self._error is not None:
            return Reply([], self._error.as_reply_error(), answered=True)
        outputs = [tensor.as_wire() for tensor in self._tensors if tensor._name in wanted]
        reply = Reply(outputs, None, self._parameters or {})
        if len(outputs) != len(self._tensors):
            reply.dropped = [tensor._name for tensor in self._tensors if tensor._name not in wanted]
        return reply

    @classmethod
    def of(cls, reply: Reply) -> InferenceResponse:
        """Make the response that a called model sent."""
        if reply.error is not None:
            return cls(error=TritonError.of(reply.error))
        return cls([Tensor.received(output) for output in reply.outputs], parameters=reply.parameters or None)


def _refuse_tensor(tensor: object) -> None:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    if not isinstance(tensor, Tensor):
        raise _no_list(tensor)


def _no_list(found: object) -> TypeError:
    kind = type(found)
    text = f"InferenceResponse(output_tensors=...) must be a list of Tensor, found {kind.__name__}"
    if kind is Tensor:
        return TypeError(f"{text} without a list: write [tensor]")
    return TypeError(f"{text} of the module {kind.__module__}: write pb_utils.Tensor(NAME, array)")


def check_parameters(parameters: dict[str, Parameter]) -> dict[str, Parameter]:
    """The parameters as they are.

    Raises:
        TritonModelException: not a dict of strings to bool, int of 64 bits, str or float.
    """
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str, float)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str/float, found type {type(value)}"
            )
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise TritonModelException(f"Expect integers of at most 64 bits as parameters values, found {value}")
    return parameters


Tensor.__module__ = InferenceResponse.__module__ = MODULE
