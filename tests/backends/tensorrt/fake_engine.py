"""An engine object with the names of `tensorrt.ICudaEngine`, as its releases have them, and short forms for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from edge_serve.backends.tensorrt.engine import DATA_TYPES, EngineInfo, Profile, Range, TensorInfo

#: a shape, or (smallest, best, largest)
Shape = tuple[int, ...]
Shapes = Shape | tuple[Shape, Shape, Shape]

Mode = Enum("Mode", "NONE INPUT OUTPUT")
Location = Enum("Location", "DEVICE HOST")
Format = Enum("Format", "LINEAR HWC8 CHW32 DLA_LINEAR DLA_HWC4")
DataType = Enum("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64 INT4 FP4")


#: stands for a shape that TensorRT does not know
NO_DIMS: Shape = (-99,)


class Dims(tuple[int, ...]):
    """`tensorrt.Dims`: without dimensions its length is -1, which Python's len() refuses."""

    def __iter__(self) -> Iterator[int]:
        if self == NO_DIMS:
            raise ValueError("__len__() should return >= 0")
        return super().__iter__()


@dataclass
class FakeTensor:
    """One tensor of a `FakeEngine`; `profiles` and `values` have (smallest, best, largest) per profile."""

    name: str
    shape: Shape
    kind: str = "FLOAT"
    is_input: bool = True
    location: str = "DEVICE"
    is_shape: bool = False
    format: str = "LINEAR"
    vectorized_dim: int = -1
    components: int = -1
    profiles: Sequence[Sequence[Shape]] = ()
    values: Sequence[Sequence[Shape]] = ()


@dataclass
class FakeEngine:
    """An engine of TensorRT 10 and 11, without device memory's older name."""

    tensors: Sequence[FakeTensor]
    num_optimization_profiles: int = 1
    device_memory_size_v2: int = 4096
    by_name: dict[str, FakeTensor] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {tensor.name: tensor for tensor in self.tensors}

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        return self.tensors[index].name

    def get_tensor_mode(self, name: str) -> Enum:
        return Mode.INPUT if self.by_name[name].is_input else Mode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Enum:
        return DataType[self.by_name[name].kind]

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(self.by_name[name].shape)

    def get_tensor_location(self, name: str) -> Enum:
        return Location[self.by_name[name].location]

    def get_tensor_format(self, name: str) -> Enum:
        return Format[self.by_name[name].format]

    def get_tensor_vectorized_dim(self, name: str) -> int:
        return self.by_name[name].vectorized_dim

    def get_tensor_components_per_element(self, name: str) -> int:
        return self.by_name[name].components

    def is_shape_inference_io(self, name: str) -> bool:
        return self.by_name[name].is_shape

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        tensor = self.by_name[name]
        if not tensor.profiles:
            return [Dims(NO_DIMS)] * 3
        return [Dims(shape) for shape in tensor.profiles[profile_index]]

    def get_tensor_profile_values(self, profile_index: int, name: str) -> list[list[int]]:
        """Take the arguments in the order that the bindings have, not in that of their documentation."""
        return [list(values) for values in self._values(profile_index, name)]

    def _values(self, profile_index: int, name: str) -> Sequence[Shape]:
        tensor = self.by_name[name]
        if not tensor.is_shape or not tensor.is_input or -1 in tensor.shape:
            raise RuntimeError("Binding index does not correspond to an input shape tensor.")
        return tensor.values[profile_index] if tensor.values else []


class FakeEngine8(FakeEngine):
    """An engine of TensorRT 8.6: older names for values and memory, and a question about implicit batch."""

    has_implicit_batch_dimension = False
    device_memory_size = 2048
    get_tensor_profile_values = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> object:
        if name in ("get_tensor_profile_values", "device_memory_size_v2"):
            raise AttributeError(name)
        return super().__getattribute__(name)

    def get_profile_shape_input(self, profile_index: int, name: str) -> list[list[int]]:
        """Return as many values as the tensor has dimensions, as the bindings of 8.6 do."""
        rank = len(self.by_name[name].shape)
        return [list(values[:rank]) for values in self._values(profile_index, name)]


def tensor(name: str, shape: Shape, data_type: str = "TYPE_FP32", **more: object) -> TensorInfo:
    """Return an input."""
    kind = {value: key for key, value in DATA_TYPES.items()}.get(data_type, data_type)
    return TensorInfo(name, True, data_type if data_type.startswith("TYPE_") else "", shape, kind, **more)  # type: ignore[arg-type]


def output(name: str, shape: Shape, data_type: str = "TYPE_FP32", **more: object) -> TensorInfo:
    """Return an output."""
    kind = {value: key for key, value in DATA_TYPES.items()}.get(data_type, data_type)
    return TensorInfo(name, False, data_type if data_type.startswith("TYPE_") else "", shape, kind, **more)  # type: ignore[arg-type]


def span(low: Shape, best: Shape | None = None, high: Shape | None = None) -> Range:
    """Return a range; one shape alone is all three."""
    return Range(low, low if best is None else best, low if high is None else high)


def profile(values: Mapping[str, Range] | None = None, /, **shapes: Range) -> Profile:
    """Return a profile with ranges by name."""
    return Profile(shapes, values or {})


def engine(*tensors: TensorInfo, profiles: Sequence[Profile] = ()) -> EngineInfo:
    """Return an engine; without profiles one with the tensors' own shapes."""
    own = Profile({each.name: span(each.shape) for each in tensors if each.is_input})
    return EngineInfo(tensors, tuple(profiles) or (own,))


def batching(low: int = 1, best: int = 4, high: int = 8) -> EngineInfo:
    """Return an engine with an input x [-1,3], an output y [-1,2], and one profile."""
    return engine(
        tensor("x", (-1, 3)), output("y", (-1, 2)), profiles=[profile(x=span((low, 3), (best, 3), (high, 3)))]
    )
