"""The builder of the stand-in for TensorRT: network, ONNX parser, configuration, timing cache, progress.

It has the interfaces of 8.6, 10, and 11 that `edge_serve/engines/builder.py` uses. A plan that it builds has the inputs
and outputs of the ONNX file, and computes what ONNX Runtime computes. STAND_IN_BUILD scripts builds:
`milliseconds=N` (per layer that the timing cache does not have), `ends=crash|kill|implementation|memory`.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda.bindings.runtime import host

from tests.stand_ins.plans import plan, tensor

from . import MAJOR, DataType, Dims, Enum, ILogger, __version__

if TYPE_CHECKING:
    import onnx

__all__ = [
    "Builder", "BuilderFlag", "DeviceType", "HardwareCompatibilityLevel", "IBuilderConfig", "IHostMemory", "ILayer",
    "INetworkDefinition", "IOptimizationProfile", "ITensor", "ITimingCache", "LayerType", "MemoryPoolType",
    "NetworkDefinitionCreationFlag", "OnnxParser", "ParserError",
]  # fmt: skip
#: onnx.TensorProto.DataType -> TensorRT's name
_TYPES = {1: "FLOAT", 2: "UINT8", 3: "INT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "HALF", 16: "BF16"}
if MAJOR < 10:  # its parser makes INT32 of INT64
    _TYPES[7] = "INT32"
_TIMES = b"STAND-IN TIMES\n"
_STEPS = 4


def _script() -> dict[str, str]:
    return dict(field.split("=") for field in os.environ.get("STAND_IN_BUILD", "").split())


class NetworkDefinitionCreationFlag(Enum):
    if MAJOR < 11:
        EXPLICIT_BATCH = 0
    if MAJOR >= 10:
        STRONGLY_TYPED = 1 if MAJOR < 11 else 0


class BuilderFlag(Enum):
    if MAJOR < 11:
        FP16 = 0
        INT8 = 1
    if MAJOR == 10:
        BF16 = 17
    GPU_FALLBACK = 3
    TF32 = 7 if MAJOR < 10 else 6
    VERSION_COMPATIBLE = {8: 15, 10: 13}.get(MAJOR, 12)
    EXCLUDE_LEAN_RUNTIME = VERSION_COMPATIBLE + 1


class LayerType(Enum):
    ELEMENTWISE = 9
    QUANTIZE = 33 if MAJOR < 10 else 32
    DEQUANTIZE = QUANTIZE + 1


class MemoryPoolType(Enum):
    WORKSPACE = 0


class DeviceType(Enum):
    GPU, DLA = range(2)


class HardwareCompatibilityLevel(Enum):
    NONE, AMPERE_PLUS = range(2)


if MAJOR >= 10:  # the genuine one came with 9.1
    __all__ += ["IProgressMonitor"]

    class IProgressMonitor:
        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            raise NotImplementedError

        def step_complete(self, phase_name: str, step: int) -> bool:
            raise NotImplementedError

        def phase_finish(self, phase_name: str) -> None:
            raise NotImplementedError


class IHostMemory(bytes):
    """Memory of TensorRT, with the buffer protocol."""

    @property
    def nbytes(self) -> int:
        return len(self)


class ITensor:
    def __init__(self, name: str, shape: Sequence[int], dtype: str) -> None:
        self.name = name
        self.shape = Dims(shape)
        self.dtype = DataType.__members__[dtype]
        self.is_shape_tensor = False


class ILayer:
    def __init__(self, operator: str, outputs: Sequence[ITensor | None]) -> None:
        kinds = {"QuantizeLinear": LayerType.QUANTIZE, "DequantizeLinear": LayerType.DEQUANTIZE}
        self.type = kinds.get(operator, LayerType.ELEMENTWISE)
        self.num_outputs = len(outputs)
        self._outputs = outputs

    def get_output(self, index: int) -> ITensor | None:
        return self._outputs[index]


class INetworkDefinition:
    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.model: onnx.ModelProto | None = None
        self.inputs: list[ITensor] = []
        self.outputs: list[ITensor] = []
        self.tensors: dict[str, ITensor] = {}

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    @property
    def num_layers(self) -> int:
        return len(self.model.graph.node) if self.model else 0

    def get_input(self, index: int) -> ITensor:
        return self.inputs[index]

    def get_layer(self, index: int) -> ILayer:
        assert self.model is not None
        node = self.model.graph.node[index]
        return ILayer(node.op_type, [self.tensors.get(name) for name in node.output])  # not all shapes can be inferred


class ParserError:
    def __init__(self, text: str, node: int = -1, name: str = "", operator: str = "") -> None:
        self._text, self._node, self._name, self._operator = text, node, name, operator

    def desc(self) -> str:
        return self._text

    def node(self) -> int:
        return self._node

    if MAJOR >= 10:

        def node_name(self) -> str:
            return self._name

        def node_operator(self) -> str:
            return self._operator


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network = network
        self._logger = logger
        self._errors: list[ParserError] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def parse_from_file(self, model: str) -> bool:
        if MAJOR < 10 and not self._network.flags & 1:
            self._errors.append(ParserError("the network must be created with EXPLICIT_BATCH"))
            return False
        import onnx  # workers that only run plans need none

        try:
            found = onnx.load(model)
            onnx.checker.check_model(found)
        except Exception:
            self._errors.append(ParserError("Failed to parse ONNX model from file: " + Path(model).name))
            return False
        for number, node in enumerate(found.graph.node):
            if node.domain:
                text = f"No importer registered for op: {node.op_type}. Attempting to import as plugin."
                self._errors.append(ParserError(text, number, node.name, node.op_type))
        if self._errors:
            return False
        made = {one.name for one in found.graph.initializer}
        self._network.model = found
        self._network.inputs = [_tensor(one) for one in found.graph.input if one.name not in made]
        self._network.outputs = [_tensor(one) for one in found.graph.output]
        between = [_tensor(one) for one in onnx.shape_inference.infer_shapes(found).graph.value_info]
        self._network.tensors = {one.name: one for one in (*self._network.outputs, *between)}
        return True


def _tensor(value: onnx.ValueInfoProto) -> ITensor:
    of = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in of.shape.dim]
    return ITensor(value.name, dims, _TYPES[of.elem_type])


class IOptimizationProfile:
    def __init__(self) -> None:
        self.shapes: dict[str, list[list[int]]] = {}

    def set_shape(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:
        if not all(a <= b <= c for a, b, c in zip(min, opt, max, strict=True)):
            raise ValueError(f"Shapes provided for input {input} are inconsistent")
        self.shapes[input] = [list(min), list(opt), list(max)]


class ITimingCache:
    def __init__(self, times: dict[str, int]) -> None:
        self.times = times

    def serialize(self) -> IHostMemory:
        return IHostMemory(_TIMES + json.dumps({"version": __version__, "times": self.times}).encode())

    def combine(self, input_cache: ITimingCache, ignore_mismatch: bool) -> bool:
        self.times = {**input_cache.times, **self.times}
        return True


class IBuilderConfig:
    def __init__(self) -> None:
        self.flags = {BuilderFlag.TF32}
        self.profiles: list[IOptimizationProfile] = []
        self.workspace = 0
        self.cache: ITimingCache | None = None
        self.builder_optimization_level = 3
        self.hardware_compatibility_level = HardwareCompatibilityLevel.NONE
        self.default_device_type = DeviceType.GPU
        self.DLA_core = -1
        if MAJOR >= 10:
            self.progress_monitor: Any = None

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: BuilderFlag) -> None:
        self.flags.discard(flag)

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        self.workspace = pool_size

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache | None:
        content = bytes(serialized_timing_cache)
        if not content:
            return ITimingCache({})
        if not content.startswith(_TIMES):
            return None
        document = json.loads(content[len(_TIMES) :])
        return ITimingCache(document["times"]) if document["version"] == __version__ else None

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        self.cache = cache
        return True

    def get_timing_cache(self) -> ITimingCache | None:
        return self.cache


class Builder:
    def __init__(self, logger: ILogger) -> None:
        if not host.device_count():
            logger.log(ILogger.Severity.INTERNAL_ERROR, "CUDA initialization failure with error: 100")
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self.logger = logger
        self.num_DLA_cores = 2

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        return INetworkDefinition(flags)

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> IHostMemory | None:
        assert network.model is not None
        opened = [one.name for one in network.inputs if -1 in one.shape]
        if [name for name in opened if not config.profiles or name not in config.profiles[0].shapes]:
            self._refuse(
                "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (Network has dynamic or shape inputs, "
                "but no optimization profile has been defined.)"
            )
            return None
        layers = [network.get_layer(number).type for number in range(network.num_layers)]
        if "INT8" in {flag.name for flag in config.flags} and LayerType.QUANTIZE not in layers:
            self._refuse(
                "[standardEngineBuilder.cpp::initCalibrationParams::1487] Error Code 4: Internal Error (Calibration "
                "failure occurred with no scaling factors detected. This could be due to no int8 calibrator or "
                "insufficient custom scales for network layers. Please see int8 sample to setup calibration correctly.)"
            )
            return None
        if not self._measure(network, config):
            return None
        return IHostMemory(self._plan(network, config))

    def _measure(self, network: INetworkDefinition, config: IBuilderConfig) -> bool:
        """Measure each layer that the timing cache does not have; False = the script lets it fail."""
        script, nodes = _script(), network.model.graph.node if network.model else []
        monitor = getattr(config, "progress_monitor", None)
        if monitor is not None:
            monitor.phase_start("Building Engine", None, _STEPS)
        for step in range(_STEPS):
            for number, node in enumerate(nodes):
                key = f"{node.op_type} {number}"
                if step == 0 and (config.cache is None or key not in config.cache.times):
                    time.sleep(int(script.get("milliseconds", 0)) / 1e3)
                    if config.cache is not None:
                        config.cache.times[key] = os.getpid()
            if monitor is not None and not monitor.step_complete("Building Engine", step):
                return False
            if step == 1 and not self._goes_on(script.get("ends", ""), nodes):
                return False
        if monitor is not None:
            monitor.phase_finish("Building Engine")
        return True

    def _goes_on(self, ends: str, nodes: Sequence[onnx.NodeProto]) -> bool:
        if ends in ("crash", "kill"):
            os.kill(os.getpid(), signal.SIGSEGV if ends == "crash" else signal.SIGKILL)
        if ends == "memory":
            self.logger.log(
                ILogger.Severity.WARNING,
                "Tactic Device request: 4096MB Available: 1024MB. Device memory is insufficient to use tactic.",
            )
        if ends in ("memory", "implementation"):
            self._refuse(
                "IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation "
                f"for node {nodes[0].name or nodes[0].op_type}.)"
            )
        return not ends

    def _plan(self, network: INetworkDefinition, config: IBuilderConfig) -> bytes:
        assert network.model is not None
        tensors = [
            tensor(one.name, mode, one.dtype.name, one.shape)
            for mode, of in (("INPUT", network.inputs), ("OUTPUT", network.outputs))
            for one in of
        ]
        fixed = {one.name: [list(one.shape)] * 3 for one in network.inputs if -1 not in one.shape}
        profiles = [{**fixed, **one.shapes} for one in config.profiles] or [fixed]
        return plan(
            "onnx", tensors, profiles, __version__, os.environ.get("STAND_IN_CAPABILITY", "8.7"),
            onnx=base64.b64encode(network.model.SerializeToString()).decode(), workspace=config.workspace,
            version_compatible=BuilderFlag.VERSION_COMPATIBLE in config.flags,
            data_dependent=any(node.op_type == "NonZero" for node in network.model.graph.node),
            flags=sorted(flag.name for flag in config.flags), dla_core=config.DLA_core,
        )  # fmt: skip

    def _refuse(self, text: str) -> None:
        self.logger.log(ILogger.Severity.ERROR, text)
