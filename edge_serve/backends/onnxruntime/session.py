"""Sessions: made from settings, asked what they are, and run.

`onnxruntime` is imported here and nowhere else.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import onnxruntime

from edge_serve.backends.onnxruntime.advice import advice_on
from edge_serve.backends.onnxruntime.errors import translated, translated_on_gpu
from edge_serve.backends.onnxruntime.libraries import Installed, absent_provider, missing
from edge_serve.backends.onnxruntime.providers import ON_GPU, TENSORRT, Provider
from edge_serve.backends.onnxruntime.settings import SessionSettings
from edge_serve.backends.python.api import dlpack as python_dlpack
from edge_serve.config.model.complete import FoundTensor
from edge_serve.errors import EdgeServeError, with_advice
from edge_serve.messages.tensors import Array, DataType, Shape
from edge_serve.records import frozen

#: warnings about devices that are not there would fill the log of a small machine
_ERRORS_ONLY = 3

_LEVELS = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}

_TYPES = {
    f"tensor({ort})": datatype.config_name
    for ort, datatype in {
        "bool": DataType.BOOL, "uint8": DataType.UINT8, "uint16": DataType.UINT16, "uint32": DataType.UINT32,
        "uint64": DataType.UINT64, "int8": DataType.INT8, "int16": DataType.INT16, "int32": DataType.INT32,
        "int64": DataType.INT64, "float16": DataType.FP16, "float": DataType.FP32, "double": DataType.FP64,
        "string": DataType.BYTES, "bfloat16": DataType.BF16,
    }.items()
}  # fmt: skip

onnxruntime.set_default_logger_severity(_ERRORS_ONLY)

Session: TypeAlias = onnxruntime.InferenceSession
RunOptions: TypeAlias = onnxruntime.RunOptions
#: onnx.TensorProto.BFLOAT16
_BF16 = 16

#: y = x + x, of one float (ModelProto of onnx.proto3, IR version 8, opset 13)
_SMALLEST = bytes.fromhex(
    "08083a350a0e0a01780a017812017922034164641201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a020801"
    "4202100d"
)

_global_pool: tuple[int, int] | None = None


def use_global_threads(threads: tuple[int, int]) -> None:
    """One pool for all sessions of the process; the first call decides, the library takes no second."""
    global _global_pool
    if _global_pool is None:
        onnxruntime.set_global_thread_pool_sizes(*threads)
        _global_pool = threads


def make(path: Path, settings: SessionSettings, wanted: list[Provider], name: str) -> Session:
    """A session.

    Args:
        name: of the model.

    Raises:
        Unavailable: a provider is not there.
        Internal: the model does not load.
    """
    folder = Path(onnxruntime.__file__).parent
    installed = Installed(onnxruntime.__version__, folder, onnxruntime.get_available_providers())
    for provider in wanted:
        if provider.name not in installed.providers:
            raise missing(provider.name, installed)
    on_gpu = any(provider.name in ON_GPU for provider in wanted)
    if on_gpu:
        _preload(tensorrt=any(provider.name == TENSORRT for provider in wanted))
    named = [(provider.name, provider.options) for provider in wanted]
    try:
        # without the fallback of the Python module, which prints the error and starts a session on the CPU
        session = Session(str(path), _options(settings), providers=named, enable_fallback=0)
    except Exception as error:
        if (absent := absent_provider(str(error))) is not None:
            raise missing(absent, installed) from error
        told = translated_on_gpu(error) if on_gpu else translated(error)
        advice = advice_on(told.message, path, onnxruntime.__version__, name)
        raise type(told)(with_advice(told.message, advice)) from error
    # The library itself starts without a provider whose own libraries do not load: the model would be slow, not wrong.
    for provider in wanted:
        if provider.name not in session.get_providers():
            raise missing(provider.name, installed)
    session.disable_fallback()
    return session


def warm_up() -> None:
    """Make a session and run it: the first one of a process takes 4 ms longer than others."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # it starts no threads
    session = Session(_SMALLEST, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    session.run(None, {"x": np.ones(1, np.float32)})


@cache
def _preload(*, tensorrt: bool) -> None:
    """Load the libraries that came with pip, where the dynamic linker does not look; once in a process."""
    load = getattr(onnxruntime, "preload_dlls", None)  # since 1.21
    with contextlib.redirect_stdout(io.StringIO()):  # `missing` says which one does not load
        if load is not None:
            load()
        if tensorrt:
            with contextlib.suppress(Exception):  # the package may be missing, or of another version
                import_module("tensorrt")


def run_options(settings: SessionSettings, more: Mapping[str, str] | None = None) -> RunOptions | None:
    """Return the options of each run; None for the defaults."""
    entries = {**settings.run_entries, **(more or {})}
    if not entries:
        return None
    options = onnxruntime.RunOptions()
    for key, value in entries.items():
        options.add_run_config_entry(key, value)
    return options


def inputs(session: Session) -> list[FoundTensor]:
    """Return the model's inputs."""
    return [_found(node) for node in session.get_inputs()]


def overridable(session: Session) -> list[FoundTensor]:
    """Initialisers that a request may replace."""
    return [_found(node) for node in session.get_overridable_initializers()]


def outputs(session: Session) -> list[FoundTensor]:
    """Return the model's outputs."""
    return [_found(node) for node in session.get_outputs()]


def run(session: Session, names: list[str], feed: Mapping[str, Array], options: RunOptions | None) -> Sequence[Array]:
    """The outputs of these names.

    Raises:
        Internal: the model failed, or refuses the inputs.
    """
    try:
        return cast(Sequence[Array], session.run(names, feed, options))
    except Exception as error:
        raise _translated(error, session) from error


def run_values(
    session: Session, names: list[str], feed: Mapping[str, Array], options: RunOptions | None
) -> Sequence[Array]:
    """`run` for models with BF16 tensors, whose bits are uint16 in NumPy."""
    types = {node.name: node.type for node in session.get_inputs()}
    make, make_typed = onnxruntime.OrtValue.ortvalue_from_numpy, onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
    try:
        values = {
            name: make_typed(array, _BF16) if types.get(name) == "tensor(bfloat16)" else make(array)
            for name, array in feed.items()
        }
        return [_array(value) for value in session.run_with_ort_values(names, values, options)]
    except Exception as error:
        raise _translated(error, session) from error


def _translated(error: Exception, session: Session) -> EdgeServeError:
    on_gpu = not ON_GPU.isdisjoint(session.get_providers())
    return translated_on_gpu(error) if on_gpu else translated(error)


@frozen
class Output:
    """An output of a bound run.

    Attributes:
        pointer: the place where the GPU writes it, in this shape; 0 = the library allocates it.
    """

    name: str
    datatype: DataType
    shape: Shape = ()
    pointer: int = 0


def bind(binding: Any, name: str, device: int, datatype: DataType, shape: Shape, pointer: int) -> None:
    """Bind an input to memory of a GPU.

    Raises:
        Internal: the library refuses.
    """
    try:
        binding.bind_input(name, "cuda", device, _element(datatype), shape, pointer)
    except Exception as error:
        raise translated_on_gpu(error) from error


def _element(datatype: DataType) -> Any:
    return _BF16 if datatype is DataType.BF16 else datatype.numpy


def run_bound(
    session: Session, binding: Any, outputs: Sequence[Output], device: int, options: RunOptions | None
) -> list[tuple[int, Shape]]:
    """Run with bound inputs. Return the addresses of the outputs on the GPU, and their shapes. Without a place of their
    own they are the binding's until its next run.

    Raises:
        Internal: the model failed, or refuses the inputs. DeviceLost: this process can use the device no more.
    """
    try:
        binding.clear_binding_outputs()
        for one in outputs:
            if one.pointer:
                binding.bind_output(one.name, "cuda", device, _element(one.datatype), one.shape, one.pointer)
            else:
                binding.bind_output(one.name, "cuda", device)
        session.run_with_iobinding(binding, options)
        return [(value.data_ptr(), tuple(value.shape())) for value in binding.get_outputs()]
    except Exception as error:
        raise translated_on_gpu(error) from error


def _array(value: Any) -> Array:
    if value.data_type() == "tensor(bfloat16)":
        return cast(Array, python_dlpack.take(value._ortvalue.to_dlpack())[0])
    return cast(Array, value.numpy())


def _options(settings: SessionSettings) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = _LEVELS.get(
        settings.graph_level, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    )
    if settings.parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    if settings.global_threads:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = settings.intra_op_threads
        options.inter_op_num_threads = max(settings.inter_op_threads, 0)
    if settings.mem_arena is not None:
        options.enable_cpu_mem_arena = settings.mem_arena
    if settings.mem_pattern is not None:
        options.enable_mem_pattern = settings.mem_pattern
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    for library in settings.op_libraries:
        try:
            options.register_custom_ops_library(library)
        except Exception as error:
            raise translated(error) from error
    return options


def _found(node: Any) -> FoundTensor:
    dims = tuple(dim if isinstance(dim, int) else -1 for dim in node.shape)
    data_type = _TYPES.get(node.type, "")
    return FoundTensor(node.name, data_type, dims, "" if data_type else node.type)


def first_place(config: Mapping[str, Any]) -> tuple[str, int]:
    """Return a kind and device that the configuration's instance groups want, before there are instances."""
    groups = config.get("instance_group") or [{}]
    if any(group.get("kind") == "KIND_GPU" for group in groups):
        return "GPU", next((int(gpu) for group in groups for gpu in group.get("gpus", ())), 0)
    return "CPU", 0
