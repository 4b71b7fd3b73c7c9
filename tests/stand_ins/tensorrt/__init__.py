"""A stand-in for the Python module `tensorrt`, over the host CudaApi. Workers of tests find it in `tests/stand_ins`.

It has the interfaces of 8.6, 10 and 11 that the backend uses; STAND_IN_TENSORRT is its version (default 10.3.0). A plan
of it is `plans.MAGIC` and a JSON document (../plans.py), and `execute_async_v3` computes with NumPy in the order of the
stream. What real TensorRT does to callers that err, it does too: a logger gets the text, and the call returns None or
False.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import EnumMeta, IntEnum
from typing import Any

import numpy as np
from cuda.bindings.runtime import host

from edge_serve.backends.cuda.api import CudaError
from tests.stand_ins.plans import DTYPES, MAGIC, OPERATIONS, operation

__version__ = os.environ.get("STAND_IN_TENSORRT", "10.3.0")
MAJOR: int = int(__version__.partition(".")[0])


class _Meta(EnumMeta):
    def __getitem__(cls, name: str) -> Any:
        raise TypeError(f"type 'tensorrt_bindings.tensorrt.{cls.__name__}' is not subscriptable")


class Enum(IntEnum, metaclass=_Meta):
    """An enum as the genuine ones, whose members are attributes, and are not found by `Enum[name]`."""


class TensorIOMode(Enum):
    NONE, INPUT, OUTPUT = range(3)


class TensorLocation(Enum):
    DEVICE, HOST = range(2)


class TensorFormat(Enum):
    LINEAR, CHW2, HWC8, CHW4, CHW16, CHW32 = range(6)


class DataType(Enum):
    FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8 = range(7)
    if MAJOR >= 10:
        BF16, INT64, INT4 = range(7, 10)


class LayerInformationFormat(Enum):
    ONELINE, JSON = range(2)


if MAJOR >= 10:

    class ExecutionContextAllocationStrategy(Enum):
        STATIC, ON_PROFILE_CHANGE, USER_MANAGED = range(3)


class ILogger:
    class Severity(Enum):
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = Severity

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class Logger(ILogger):
    def __init__(self, min_severity: ILogger.Severity = ILogger.Severity.WARNING) -> None:
        self.min_severity = min_severity

    def log(self, severity: ILogger.Severity, msg: str) -> None:
        if severity <= self.min_severity:
            print(f"[TRT] [{severity.name[0]}] {msg}")


class IOutputAllocator:
    """A base without methods, as the genuine one. It calls `reallocate_output_async` or `reallocate_output`."""


class Dims(tuple[int, ...]):
    """As the genuine one: a sequence of numbers; a dimension that is unknown is -1."""


class _NoDims(Dims):
    """The shape where there is none, up to TensorRT 10: its length is -1."""

    def __len__(self) -> int:
        raise ValueError("__len__() should return >= 0")

    def __iter__(self) -> Any:
        return iter([self[n] for n in range(len(self))])


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        if not host.device_count():
            logger.log(ILogger.Severity.INTERNAL_ERROR, "CUDA initialization failure with error: 100")
        self.engine_host_code_allowed = False
        self.DLA_core = -1
        self.num_DLA_cores = 2
        self.logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        text = self._refusal(bytes(serialized_engine))
        if text:
            self.logger.log(ILogger.Severity.ERROR, text)
            return None
        return ICudaEngine(json.loads(bytes(serialized_engine)[len(MAGIC) :]), self.logger)

    def _refusal(self, plan: bytes) -> str:
        if not plan.startswith(MAGIC):
            return (
                "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion "
                "stdArchiveReader.cpp:: magicTagRead == kMAGIC_TAG failed.Magic tag does not match)"
            )
        try:
            document = json.loads(plan[len(MAGIC) :])
        except ValueError:
            return "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (unexpected end of archive)"
        if document["version"].split(".")[:2] != __version__.split(".")[:2] and not document.get("version_compatible"):
            return (
                "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is not "
                f"compatible with this version of TensorRT, expecting library version {__version__} got "
                f"{document['version']}, please rebuild.)"
            )
        if document.get("version_compatible") and not self.engine_host_code_allowed:
            return (
                "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (Plan has host code, but "
                "engine_host_code_allowed is false)"
            )
        wanted = os.environ.get("STAND_IN_CAPABILITY", "8.7")
        if document["capability"] != wanted:
            return (
                "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is generated on "
                f"an incompatible device, expecting compute {wanted} got compute {document['capability']}, please "
                "rebuild.)"
            )
        return ""


class ICudaEngine:
    def __init__(self, plan: dict[str, Any], logger: ILogger) -> None:
        self.plan = plan
        self.logger = logger
        self.name = plan.get("name", "")
        self.num_layers = 1
        self._tensors: dict[str, dict[str, Any]] = {tensor["name"]: tensor for tensor in plan["tensors"]}
        #: profile -> the context that has chosen it; before 9.0 there is one, if the shapes are dynamic
        self._chosen: weakref.WeakValueDictionary[int, IExecutionContext] = weakref.WeakValueDictionary()
        self._shares_profiles = MAJOR >= 9 or all(-1 not in tensor["shape"] for tensor in plan["tensors"])
        if MAJOR < 11:
            self.device_memory_size = plan.get("device_memory", 0)
        if MAJOR >= 10:
            self.device_memory_size_v2 = plan.get("device_memory", 0)

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.plan["profiles"])

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.__members__[self._tensors[name]["mode"]] if name in self._tensors else TensorIOMode.NONE

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(self._tensors[name]["shape"])

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType.__members__[self._tensors[name]["dtype"]]

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if self.is_shape_inference_io(name) else TensorLocation.DEVICE

    def get_tensor_format(self, name: str, profile_index: int = 0) -> TensorFormat:
        return TensorFormat.__members__[self._tensors[name].get("format", "LINEAR")]

    def get_tensor_vectorized_dim(self, name: str, profile_index: int = 0) -> int:
        return int(self._tensors[name].get("vectorized_dim", -1))

    def get_tensor_components_per_element(self, name: str, profile_index: int = 0) -> int:
        return int(self._tensors[name].get("components", -1))

    def is_shape_inference_io(self, name: str) -> bool:
        return bool(self._tensors[name].get("shape_tensor"))

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        return [Dims(shape) for shape in self.plan["profiles"][profile_index][name]]

    if MAJOR >= 10:

        def get_tensor_profile_values(self, name: int, profile_index: str) -> list[list[int]]:
            """As the genuine one, whose names of the two arguments are exchanged."""
            return [list(values) for values in self.plan["profiles"][name][profile_index]]

    def create_engine_inspector(self) -> EngineInspector:
        return EngineInspector(self)

    if MAJOR >= 10:

        def create_execution_context(self, strategy: Any = None) -> IExecutionContext | None:
            return self._create_context()
    else:

        def create_execution_context(self) -> IExecutionContext | None:  # type: ignore[misc]  # of another version
            return self._create_context()

        def get_profile_shape_input(self, profile_index: int, binding: str) -> list[list[int]]:
            """As the genuine one, which exchanges the numbers of profile and tensor, and returns the first values."""
            name, profiles = self.get_tensor_name(profile_index), self.plan["profiles"]
            number, count = list(self._tensors).index(binding), len(self.get_tensor_shape(binding))
            known = number < len(profiles) and self.is_shape_inference_io(name)
            return [list(values)[:count] for values in profiles[number][name]] if known else []

    def _create_context(self) -> IExecutionContext | None:
        try:
            return IExecutionContext(self)
        except Exception as error:
            self.logger.log(ILogger.Severity.ERROR, f"Error Code 2: OutOfMemory ({error})")
            return None


class EngineInspector:
    def __init__(self, engine: ICudaEngine) -> None:
        self._layer = {"Name": engine.plan["op"], "LayerType": "StandIn"}
        self._bindings = list(engine._tensors)

    def get_layer_information(self, layer_index: int, format: LayerInformationFormat) -> str:
        return json.dumps(self._layer)

    def get_engine_information(self, format: LayerInformationFormat) -> str:
        return json.dumps({"Layers": [self._layer], "Bindings": self._bindings})


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self.engine = engine
        self.active_optimization_profile = -1
        if self._may_choose(0):
            self._choose(0)
        self._memory = host.malloc(max(1, engine.plan.get("device_memory", 0)))
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._consumed: int | None = None

    def __del__(self) -> None:
        if hasattr(self, "_memory") and not sys.is_finalizing():
            with suppress(CudaError):  # as the genuine one: a device that is lost takes its memory along
                host.free(self._memory)

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if not 0 <= profile_index < self.engine.num_optimization_profiles:
            self._refuse("IExecutionContext::setOptimizationProfileAsync: Error Code 3: API Usage Error")
            raise RuntimeError("Error in set optimization profile async.")  # 8.6 to 10.12 end the process here
        if not self._may_choose(profile_index):
            self._refuse(
                "IExecutionContext::setOptimizationProfileAsync: Error Code 3: Internal Error (Profile "
                f"{profile_index} has been chosen by another IExecutionContext. Use another profileIndex or destroy "
                "the IExecutionContext that use this profile.)"
            )
            raise RuntimeError("Error in set optimization profile async.")
        self._choose(profile_index)
        self._shapes.clear()
        return True

    def _may_choose(self, profile: int) -> bool:
        return self.engine._shares_profiles or self.engine._chosen.get(profile, self) is self

    def _choose(self, profile: int) -> None:
        if self.engine._chosen.get(self.active_optimization_profile) is self:
            del self.engine._chosen[self.active_optimization_profile]
        self.active_optimization_profile = profile
        self.engine._chosen[profile] = self

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        static = self.engine.get_tensor_shape(name)
        index = self.active_optimization_profile
        profile = self.engine.plan["profiles"][index] if index >= 0 else {}
        low, _, high = profile.get(name, (static, static, static))
        fits = len(shape) == len(low) and all(a <= n <= b for a, n, b in zip(low, shape, high, strict=True))
        if not fits:
            return self._refuse(
                "IExecutionContext::setInputShape: Error Code 3: API Usage Error (Parameter check failed, condition: "
                "engineDims.d[i] == dims.d[i] Static dimension mismatch while setting input shape)"
            )
        self._shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name: str) -> Dims:
        if name in self._shapes:
            return Dims(self._shapes[name])
        try:
            known = {} if self.infer_shapes() else self._outputs_of(self._samples())
        except ValueError:
            self._refuse(
                "IExecutionContext::getTensorShape: Error Code 7: Internal Error (condition '==' violated: broadcast "
                "dimensions must be conformable)"
            )
            if MAJOR >= 11:
                raise RuntimeError(f"Could not get shape for tensor '{name}'. Is the tensor name correct?") from None
            return _NoDims()
        return known.get(name, self.engine.get_tensor_shape(name))

    def infer_shapes(self) -> list[str]:
        inputs = [name for name in self._names(TensorIOMode.INPUT) if -1 in self.engine.get_tensor_shape(name)]
        return [name for name in inputs if name not in self._shapes]

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def set_output_allocator(self, name: str, output_allocator: IOutputAllocator) -> bool:
        self._allocators[name] = output_allocator
        return True

    def set_input_consumed_event(self, event: int) -> bool:
        self._consumed = event
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        unset = [name for name in self.engine._tensors if name not in self._addresses and name not in self._allocators]
        if unset or self.infer_shapes():
            return self._refuse(
                "IExecutionContext::enqueueV3: Error Code 3: API Usage Error (Parameter check failed, condition: "
                "mContext.profileObliviousBindings.at(profileObliviousIndex) || getPtrOrNull(mOutputAllocators, "
                f"profileObliviousIndex): {unset})"
            )
        try:
            return self._enqueue(stream_handle)
        except CudaError as error:
            reason = error.message.rpartition(": ")[2]
            return self._refuse(f"IExecutionContext::enqueueV3: Error Code 1: Cuda Runtime ({reason})")

    def _enqueue(self, stream: int) -> bool:
        names, op = self._names(TensorIOMode.OUTPUT), operation(self.engine.plan)
        if self._is_data_dependent:  # the size is known when the kernel has run: the genuine call waits, too
            host.stream_synchronize(stream)
            shapes = {name: Dims(array.shape) for name, array in op(self._inputs()()).items()}
        else:
            try:
                shapes = {name: Dims(self.get_tensor_shape(name)) for name in names}
            except (ValueError, RuntimeError):
                return False
        targets = {name: self._target(name, shapes[name], stream) for name in names}
        if not all(targets.values()):
            return False
        inputs = self._inputs()
        on_host = [name for name in self.engine._tensors if self.engine.is_shape_inference_io(name)]
        wrong = [name for name in on_host if _is_of_device(targets.get(name) or self._addresses[name])]
        if wrong:
            return self._refuse(f"the host has no access to {wrong}: the genuine one ends the process here")
        later = {name: target for name, target in targets.items() if name not in on_host}
        if len(later) < len(targets):  # the host computes them before the call returns
            self._write(op(self._samples()), {name: targets[name] for name in names if name in on_host})

        def work() -> None:
            time.sleep(self.engine.plan.get("milliseconds", 0) / 1e3)
            self._write(op(inputs()), later)

        host.run(work, stream)
        if self._consumed is not None:
            host.event_record(self._consumed, stream)
        return True

    def _write(self, outputs: dict[str, Any], targets: dict[str, int]) -> None:
        for name, target in targets.items():
            array = np.ascontiguousarray(outputs[name], self._dtype(name))
            host.check_range(target, array.nbytes)
            ctypes.memmove(target, array.ctypes.data, array.nbytes)

    def _target(self, name: str, shape: Dims, stream: int) -> int:
        """Return where an output is written; 0 = its allocator has no memory."""
        address, allocator = self._addresses.get(name, 0), self._allocators.get(name)
        if allocator is None:
            return address
        arguments: list[Any] = [name, address, int(np.prod(shape)) * self._dtype(name).itemsize, 256]
        try:
            if MAJOR >= 10 and hasattr(allocator, "reallocate_output_async"):
                address = allocator.reallocate_output_async(*arguments, stream)
            else:
                address = allocator.reallocate_output(*arguments)
        except Exception as error:  # the genuine one, too, has no other way to tell it
            print(f"[ERROR] Exception caught in reallocateOutputAsync(): {error}", file=sys.stderr)
            address = 0
        if address:
            allocator.notify_shape(name, shape)
        else:
            reason = f"Output allocator returned nullptr for tensor {name}"
            self._refuse(f"IExecutionContext::enqueueV3: Error Code 1: Myelin ({reason})")
        return address

    def _inputs(self) -> Callable[[], dict[str, Any]]:
        """Return what reads the inputs as they are set now."""
        places = {
            name: (self._addresses[name], self._dtype(name), self._shapes.get(name, self.engine.get_tensor_shape(name)))
            for name in self._names(TensorIOMode.INPUT)
        }
        return lambda: {name: _view(*place) for name, place in places.items()}

    def _names(self, mode: TensorIOMode) -> list[str]:
        return [name for name in self.engine._tensors if self.engine.get_tensor_mode(name) == mode]

    def _dtype(self, name: str) -> np.dtype[Any]:
        kind: np.dtype[Any] = np.dtype(DTYPES[self.engine._tensors[name]["dtype"]])
        return kind

    def _samples(self) -> dict[str, Any]:
        """Return inputs of the shapes that are set: zeros, and the values of shape tensors."""
        found = {}
        for name in self._names(TensorIOMode.INPUT):
            shape = self._shapes.get(name, self.engine.get_tensor_shape(name))
            if self.engine.is_shape_inference_io(name) and name in self._addresses:
                found[name] = _view(self._addresses[name], self._dtype(name), shape)
            elif not self.engine.is_shape_inference_io(name):
                found[name] = np.zeros(shape, self._dtype(name))
        return found

    @property
    def _is_data_dependent(self) -> bool:
        """Return whether the data decide the size of an output."""
        return bool(self.engine.plan["op"] == "nonzero" or self.engine.plan.get("data_dependent"))

    def _outputs_of(self, inputs: dict[str, Any]) -> dict[str, Dims]:
        op = self.engine.plan["op"]
        if self._is_data_dependent or len(inputs) < len(self._names(TensorIOMode.INPUT)):
            return {}
        outputs = (OPERATIONS["identity"] if op in ("fail", "breaks") else operation(self.engine.plan))(inputs)
        return {name: Dims(array.shape) for name, array in outputs.items()}

    def _refuse(self, text: str) -> bool:
        self.engine.logger.log(ILogger.Severity.ERROR, text)
        return False


def _is_of_device(address: int) -> bool:
    with suppress(CudaError):
        return bool(host.allocation_size(address))
    return False


def _view(address: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(address, nbytes), dtype).reshape(shape)


def init_libnvinfer_plugins(logger: ILogger, namespace: str) -> bool:
    return True


from .builder import *  # noqa: E402, F403  # which imports this module, under either of its names
