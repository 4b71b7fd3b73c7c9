"""The settings of an ONNX Runtime session from a configuration, as plain values. Pure, without the library.

Keys and texts: triton-inference-server/onnxruntime_backend README.md and src/onnxruntime.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edge_serve.errors import InvalidArgument

#: A model below this size computes on one thread: to wake a second one costs more than it brings (docs/onnxruntime.md).
SMALL_MODEL_BYTES = 1024 * 1024

#: A larger model is not loaded a second time for runs beside others: memory matters more there.
MOST_TWICE_BYTES = 256 * 1024 * 1024

#: Threads of a pool wait for the next piece of a run by polling for a moment only, and not at all between runs: on a
#: small device the cores are needed for the server and its clients (docs/onnxruntime.md).
SPINNING = {"session.force_spinning_stop": "1", "session.intra_op.spin_duration_us": "50"}

CUDA, TENSORRT, OPENVINO, CPU = (f"{name}ExecutionProvider" for name in ("CUDA", "Tensorrt", "OpenVINO", "CPU"))

#: parameters whose names go to the session's own configuration as they are
_SESSION_KEYS = ("session.", "optimization.", "ep.")
_RUN_KEYS = ("memory.",)

_PRECISION = {"FP32": None, "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
_TENSORRT_NAMES = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_CUDA_CHOICES = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}
_CUDA_VALUES = ("gpu_mem_limit", "do_copy_in_default_stream")


@dataclass(slots=True)
class Provider:
    """An execution provider and its options."""

    name: str
    options: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class SessionSettings:
    """Everything that a session is made with.

    Attributes:
        graph_level: 0 all optimizations (default), 1 extended, -1 basic, 2 none.
        intra_op_threads, inter_op_threads: 0 = the number of cores.
        global_threads: use the one pool of the process.
        session_entries, run_entries: keys of the library, passed on as they are.
    """

    graph_level: int = 0
    parallel: bool = False
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    global_threads: bool = False
    mem_arena: bool | None = None
    mem_pattern: bool | None = None
    session_entries: dict[str, str] = field(default_factory=dict)
    run_entries: dict[str, str] = field(default_factory=dict)
    op_libraries: list[str] = field(default_factory=list)


def default_max_batch_size(backend_config: Mapping[str, str], otherwise: int) -> int:
    """`--backend-config=default-max-batch-size`.

    Raises:
        InvalidArgument: not a number.
    """
    text = backend_config.get("default-max-batch-size")
    return otherwise if text is None else _integer(text)


def session_settings(config: Mapping[str, Any], backend_config: Mapping[str, str], size: int) -> SessionSettings:
    """The settings of one model's sessions; `size` is the size of its file with external data.

    Raises:
        InvalidArgument: a value is not what its key needs.
    """
    parameters = _parameters(config)
    mode = _integer(parameters.get("execution_mode", "0"))
    if mode not in (0, 1):
        raise InvalidArgument(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} ."
        )
    intra = _integer(parameters.get("intra_op_thread_count", "0"))
    arena, pattern = (parameters.get(f"enable_mem_{name}") for name in ("arena", "pattern"))
    settings = SessionSettings(
        graph_level=int(((config.get("optimization") or {}).get("graph") or {}).get("level", 0)),
        parallel=mode == 1,
        # With the pool of the process, the numbers of threads are the backend's (global_threads), not the model's.
        intra_op_threads=intra if intra > 0 else int(size < SMALL_MODEL_BYTES),
        inter_op_threads=_integer(parameters.get("inter_op_thread_count", "0")),
        mem_arena=None if arena is None else _boolean(arena),
        mem_pattern=None if pattern is None else _boolean(pattern),
        global_threads=_boolean(backend_config.get("enable-global-threadpool", "0")),
        session_entries={key: value for key, value in parameters.items() if key.startswith(_SESSION_KEYS)},
        run_entries={key: value for key, value in parameters.items() if key.startswith(_RUN_KEYS)},
        op_libraries=list((config.get("model_operations") or {}).get("op_library_filename", ())),
    )
    if not any("spin" in key for key in settings.session_entries):
        settings.session_entries |= SPINNING
    return settings


def settings_together(settings: SessionSettings, size: int, instances: int, cores: int) -> SessionSettings | None:
    """For a second session, of which each of several instances has its share of the cores; None: not worth it."""
    chosen = settings.intra_op_threads > 0 or settings.global_threads or settings.parallel
    if chosen or instances < 2 or cores < 2 or size > MOST_TWICE_BYTES:
        return None
    return replace(settings, intra_op_threads=max(1, cores // instances))


def global_threads(backend_config: Mapping[str, str]) -> tuple[int, int] | None:
    """Intra-op and inter-op threads of the pool of the process (0 = number of cores), None without such a pool.

    Raises:
        InvalidArgument: not numbers.
    """
    if not _boolean(backend_config.get("enable-global-threadpool", "0")):
        return None
    intra, inter = (_integer(backend_config.get(f"{name}_op_thread_count", "0")) for name in ("intra", "inter"))
    return max(intra, 0), max(inter, 0)


def providers(config: Mapping[str, Any], kind: str, device_id: int) -> list[Provider]:
    """The execution providers of an instance of this kind, most wanted first; the CPU is always the last.

    Raises:
        InvalidArgument: an accelerator or one of its options is unknown.
    """
    accelerators = (config.get("optimization") or {}).get("execution_accelerators") or {}
    found: list[Provider] = []
    if kind == "GPU":
        cuda: dict[str, str] = {}
        for entry in accelerators.get("gpu_execution_accelerator", ()):
            options = dict(entry.get("parameters") or {})
            if entry.get("name") == "tensorrt":
                found.append(Provider(TENSORRT, _tensorrt(options) | {"device_id": str(device_id)}))
            elif entry.get("name") == "cuda":
                cuda |= options
            else:
                raise _unknown(entry)
        found.append(Provider(CUDA, _old_cuda(_parameters(config)) | cuda | {"device_id": str(device_id)}))
    for entry in accelerators.get("cpu_execution_accelerator", ()):
        if entry.get("name") != "openvino":
            raise _unknown(entry)
        found.append(Provider(OPENVINO, {"device_type": "CPU"}))
    return [*found, Provider(CPU)]


def model_path(version_directory: Path, config: Mapping[str, Any]) -> Path:
    """The model's file: `model.onnx`, or what `default_model_filename` says; in a directory, its `model.onnx`."""
    path = version_directory / (config.get("default_model_filename") or "model.onnx")
    return path / "model.onnx" if path.is_dir() else path


def model_bytes(path: Path) -> int:
    """Size of the model; one in a directory of its own, or with data beside it, counts with everything there."""
    return sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file())


def _parameters(config: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value.get("string_value", "")) for key, value in (config.get("parameters") or {}).items()}


def _tensorrt(options: Mapping[str, str]) -> dict[str, str]:
    """In the names of ONNX Runtime's own options (the table in onnxruntime_backend README.md)."""
    made: dict[str, str] = {}
    for key, value in options.items():
        if key == "precision_mode":
            if value not in _PRECISION:
                raise InvalidArgument(f"unsupported precision mode '{value}' is requested")
            enable = _PRECISION[value]
            if enable is not None:
                made[enable] = "1"
        elif key in _TENSORRT_NAMES:
            made[_TENSORRT_NAMES[key]] = value
        elif key.startswith("trt_"):
            made[key] = value
        else:
            raise InvalidArgument(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
    return made


def _old_cuda(parameters: Mapping[str, str]) -> dict[str, str]:
    """The deprecated way of writing CUDA options: among the model's parameters."""
    made = {key: parameters[key] for key in _CUDA_VALUES if key in parameters}
    for key, choices in _CUDA_CHOICES.items():
        if key in parameters:
            number = _integer(parameters[key])
            if not 0 <= number < len(choices):
                raise InvalidArgument(f"unsupported {key} value '{number}' is requested")
            made[key] = choices[number]
    return made


def _unknown(accelerator: Mapping[str, Any]) -> InvalidArgument:
    return InvalidArgument(f"unknown Execution Accelerator '{accelerator.get('name', '')}' is requested")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidArgument(f"failed to convert '{text}' to integral number") from error


def _boolean(text: str) -> bool:
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if value is None:
        raise InvalidArgument(f"failed to convert '{text}' to boolean value")
    return value
