"""A TensorRT engine as plain values, and the reader that makes them from an engine object.

Worker's side, without TensorRT: the reader takes any object with the names of `tensorrt.ICudaEngine`, of TensorRT 8.6
to 11, of its lean runtime, or of TensorRT-RTX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from edge_serve.errors import Unsupported
from edge_serve.messages.tensors import shape_text
from edge_serve.records import frozen

#: `tensorrt.DataType` -> the type in config.pbtxt; other types of TensorRT (FP8, INT4, FP4) cannot be served
DATA_TYPES = {
    "FLOAT": "TYPE_FP32",
    "HALF": "TYPE_FP16",
    "BF16": "TYPE_BF16",
    "INT8": "TYPE_INT8",
    "UINT8": "TYPE_UINT8",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "BOOL": "TYPE_BOOL",
}
LINEAR = "LINEAR"


@frozen
class Range:
    """The smallest, the best, and the largest that a profile takes: a shape, or the values of a shape tensor."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def __str__(self) -> str:
        """Return the range for a message."""
        if self.min == self.max:
            return shape_text(self.min)
        return f"{shape_text(self.min)} to {shape_text(self.max)}"


@frozen
class Profile:
    """An optimization profile.

    Attributes:
        shapes: range of the shape, by the name of the input, batch included.
        values: range of the values, by the name of the shape tensor. TensorRT 8.6 reports the first value only.
    """

    shapes: Mapping[str, Range]
    values: Mapping[str, Range] = field(default_factory=dict)


@frozen
class TensorInfo:
    """An input or output of an engine.

    Attributes:
        data_type: in the words of config.pbtxt, `TYPE_FP32`; "" for a type that cannot be served.
        kind: the type in TensorRT's words, `FLOAT`.
        shape: with the batch dimension, -1 for a variable one.
        on_host: the engine reads or writes it in host memory.
        is_shape: its values decide shapes inside of the engine (a shape tensor).
        format: the layout in memory, `LINEAR` or `HWC8`.
        vectorized_dim: the dimension that `format` rounds up; -1 = none.
        components: the number that this dimension is rounded up to a multiple of.
    """

    name: str
    is_input: bool
    data_type: str
    shape: tuple[int, ...]
    kind: str = ""
    on_host: bool = False
    is_shape: bool = False
    format: str = LINEAR
    vectorized_dim: int = -1
    components: int = 1

    @property
    def is_linear(self) -> bool:
        """Return whether the layout is row-major, without padding."""
        return self.format == LINEAR

    @property
    def is_dynamic(self) -> bool:
        """Return whether a dimension is variable."""
        return -1 in self.shape

    @property
    def padding(self) -> str:
        """Return what the layout rounds up, or may round up with a variable dimension; "" = nothing."""
        if self.format.startswith("DLA_"):  # to 32 bytes on Xavier, 64 on Orin (NvInferRuntimeBase.h)
            return f"the rows of {shape_text(self.shape)} up to a stride of the DLA"
        if self.components == 1 or not 0 <= self.vectorized_dim < len(self.shape):
            return ""
        size = self.shape[self.vectorized_dim]
        if size >= 0 and size % self.components == 0:
            return ""
        return f"dimension {self.vectorized_dim} of {shape_text(self.shape)} up to a multiple of {self.components}"


@frozen
class EngineInfo:
    """An engine: its tensors in the engine's order, its profiles, and its use of memory.

    Attributes:
        device_memory_bytes: activation memory of one execution context; 0 = unknown.
    """

    tensors: tuple[TensorInfo, ...]
    profiles: tuple[Profile, ...]
    device_memory_bytes: int = 0

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Return the inputs in the engine's order."""
        return tuple(tensor for tensor in self.tensors if tensor.is_input)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Return the outputs in the engine's order."""
        return tuple(tensor for tensor in self.tensors if not tensor.is_input)

    @property
    def has_shape_tensors(self) -> bool:
        """Return whether an input or output is a shape tensor."""
        return any(tensor.is_shape for tensor in self.tensors)

    @property
    def is_dynamic(self) -> bool:
        """Return whether a tensor has a variable dimension."""
        return any(tensor.is_dynamic for tensor in self.tensors)

    def tensor(self, name: str) -> TensorInfo | None:
        """Return the input or output of this name."""
        return next((tensor for tensor in self.tensors if tensor.name == name), None)


def read_engine(engine: Any) -> EngineInfo:
    """Return the description of an engine.

    Args:
        engine: a `tensorrt.ICudaEngine`.

    Raises:
        Unsupported: the engine has an implicit batch dimension (TensorRT 8 and older).
    """
    if getattr(engine, "has_implicit_batch_dimension", False):
        raise Unsupported(
            "the engine has an implicit batch dimension, which is not supported: build it again from ONNX, whose batch "
            "dimension is explicit"
        )
    tensors = tuple(_tensor(engine, engine.get_tensor_name(index)) for index in range(engine.num_io_tensors))
    inputs = [tensor for tensor in tensors if tensor.is_input]
    profiles = tuple(_profile(engine, inputs, index) for index in range(engine.num_optimization_profiles))
    return EngineInfo(tensors, profiles, _device_memory(engine))


def _tensor(engine: Any, name: str) -> TensorInfo:
    kind = engine.get_tensor_dtype(name).name
    return TensorInfo(
        name,
        engine.get_tensor_mode(name).name == "INPUT",
        DATA_TYPES.get(kind, ""),
        _dims(engine.get_tensor_shape(name)),
        kind,
        engine.get_tensor_location(name).name == "HOST",
        bool(engine.is_shape_inference_io(name)),
        engine.get_tensor_format(name).name,
        int(engine.get_tensor_vectorized_dim(name)),
        max(1, int(engine.get_tensor_components_per_element(name))),
    )


def _profile(engine: Any, inputs: Sequence[TensorInfo], index: int) -> Profile:
    shapes = {tensor.name: _shape_range(engine, tensor, index) for tensor in inputs}
    values = {tensor.name: _value_range(engine, tensor.name, index) for tensor in inputs if tensor.is_shape}
    return Profile(shapes, {name: found for name, found in values.items() if found is not None})


def _shape_range(engine: Any, tensor: TensorInfo, index: int) -> Range:
    shapes = [_dims(dims) for dims in engine.get_tensor_profile_shape(tensor.name, index)]
    if len(shapes) != 3 or any(len(shape) != len(tensor.shape) for shape in shapes):
        return Range(tensor.shape, tensor.shape, tensor.shape)  # an input without variable dimensions needs no profile
    return Range(*shapes)


def _value_range(engine: Any, name: str, index: int) -> Range | None:
    """Return the range of a shape tensor's values; None = the engine does not report it.

    The method takes the profile first, whatever its documentation says. That of 8.6 returns as many values as the
    tensor has dimensions, which is the first value alone. It also exchanges the numbers of the profile and of the
    tensor, so it is asked only where they are equal.
    """
    read = getattr(engine, "get_tensor_profile_values", None)
    if read is None:
        read = getattr(engine, "get_profile_shape_input", None)
        if read is None or index >= engine.num_io_tensors or engine.get_tensor_name(index) != name:
            return None
    try:
        values = [tuple(int(value) for value in each) for each in read(index, name)]
    except RuntimeError:  # the tensor's size is unknown before it runs
        return None
    return Range(*values) if len(values) == 3 else None


def _device_memory(engine: Any) -> int:
    for name in ("device_memory_size_v2", "device_memory_size"):  # the older one is gone from 11 on
        size = getattr(engine, name, None)
        if size is not None:
            return int(size)
    return 0


def _dims(dims: Any) -> tuple[int, ...]:
    """Return a `tensorrt.Dims` as a tuple; its length is negative where there is none."""
    try:
        return tuple(int(dim) for dim in dims)
    except ValueError:  # len() of it
        return ()
