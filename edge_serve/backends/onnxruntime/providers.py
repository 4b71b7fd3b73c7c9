"""The execution providers of an instance and their options, from a configuration. Pure, without the library.

Keys and texts: triton-inference-server/onnxruntime_backend README.md and src/onnxruntime.cc, which passes options to
the C API. The Python API takes True and False alone for the options of TensorRT.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from edge_serve.backends.parameters import boolean, integer, parameters_of, unsigned
from edge_serve.errors import InvalidArgument
from edge_serve.records import slotted

CUDA, TENSORRT, OPENVINO, CPU = (f"{name}ExecutionProvider" for name in ("CUDA", "Tensorrt", "OpenVINO", "CPU"))
ON_GPU = frozenset({CUDA, TENSORRT})

#: with "1", a model with a node that runs on the CPU does not load
NO_CPU_FALLBACK = "session.disable_cpu_ep_fallback"

_PRECISION = {"FP32": None, "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
#: Triton's names that are not the library's own
_TENSORRT_NAMES = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_BOOLEANS = {
    "int8_use_native_calibration_table", "trt_dla_enable", "trt_engine_cache_enable", "trt_dump_subgraphs",
    "trt_force_sequential_engine_build", "trt_context_memory_sharing_enable", "trt_layer_norm_fp32_fallback",
    "trt_timing_cache_enable", "trt_force_timing_cache", "trt_detailed_build_log", "trt_build_heuristics_enable",
    "trt_sparsity_enable", "trt_cuda_graph_enable", "trt_dump_ep_context_model",
}  # fmt: skip
_TENSORRT_INTEGERS = {
    "trt_max_partition_iterations", "trt_min_subgraph_size", "trt_dla_core", "trt_builder_optimization_level",
    "trt_auxiliary_streams", "trt_ep_context_embed_mode",
}  # fmt: skip
_TENSORRT_TEXTS = {
    "int8_calibration_table_name", "trt_engine_cache_path", "trt_engine_cache_prefix", "trt_timing_cache_path",
    "trt_tactic_sources", "trt_extra_plugin_lib_paths", "trt_profile_min_shapes", "trt_profile_max_shapes",
    "trt_profile_opt_shapes", "trt_ep_context_file_path",
}  # fmt: skip
_CUDA_BOOLEANS = {"do_copy_in_default_stream", "use_ep_level_unified_stream", "enable_cuda_graph"}
_CUDA_CHOICES = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}
_CUDA_VALUES = ("gpu_mem_limit", "do_copy_in_default_stream")
#: options that need tensors at the same addresses in every run: with the memory that a batch gets here, a graph would
#: read and write that of another batch
_GRAPHS = {"enable_cuda_graph", "trt_cuda_graph_enable"}
#: options that the backend sets itself
_OWN = {"device_id", "has_user_compute_stream", "user_compute_stream"}


@slotted
class Provider:
    """An execution provider and its options."""

    name: str
    options: dict[str, str] = field(default_factory=dict)


def providers(config: Mapping[str, Any], kind: str, device_id: int) -> list[Provider]:
    """Return the execution providers of an instance of this kind, most wanted first.

    The CPU is the last one, unless the configuration forbids it with `session.disable_cpu_ep_fallback`.

    Raises:
        InvalidArgument: an accelerator or one of its options is unknown, or has a value that it does not take.
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
                cuda |= _cuda(options)
            else:
                raise _unknown(entry)
        found.append(Provider(CUDA, _old_cuda(parameters_of(config)) | cuda | {"device_id": str(device_id)}))
    for entry in accelerators.get("cpu_execution_accelerator", ()):
        if entry.get("name") != "openvino":
            raise _unknown(entry)
        found.append(Provider(OPENVINO, {"device_type": "CPU"}))
    if kind == "GPU" and parameters_of(config).get(NO_CPU_FALLBACK) == "1":
        return found
    return [*found, Provider(CPU)]


def on_stream(wanted: Iterable[Provider], stream: int) -> list[Provider]:
    """Return the providers with the options that make those of the GPU run on a stream."""
    own = {"user_compute_stream": str(stream)}
    return [
        Provider(one.name, one.options | own) if one.name in ON_GPU else one for one in wanted
    ]  # an own stream implies has_user_compute_stream


def notes(config: Mapping[str, Any]) -> list[str]:
    """Return a line for each option that has no effect."""
    accelerators = (config.get("optimization") or {}).get("execution_accelerators") or {}
    entries = accelerators.get("gpu_execution_accelerator", ())
    return [
        f"option '{key}' has no effect: CUDA graphs of ONNX Runtime need each batch at the same addresses; build a "
        "plan for backend 'tensorrt', and set optimization.cuda.graphs there"
        for entry in entries
        for key in entry.get("parameters") or ()
        if key in _GRAPHS
    ]


def _tensorrt(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options in the names of ONNX Runtime (the table in onnxruntime_backend README.md)."""
    made: dict[str, str] = {}
    for key, value in options.items():
        if key == "precision_mode":
            if value not in _PRECISION:
                raise InvalidArgument(f"unsupported precision mode '{value}' is requested")
            if (enable := _PRECISION[value]) is not None:
                made[enable] = "True"
        elif key in _TENSORRT_BOOLEANS:
            made[_TENSORRT_NAMES.get(key, key)] = str(boolean(value))
        elif key in _TENSORRT_INTEGERS:
            made[key] = str(integer(value))
        elif key == "max_workspace_size_bytes":
            made[_TENSORRT_NAMES[key]] = str(unsigned(value))
        elif key in _TENSORRT_TEXTS:
            made[_TENSORRT_NAMES.get(key, key)] = value
        else:
            raise InvalidArgument(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
    return {key: value for key, value in made.items() if value and key not in _GRAPHS}


def _cuda(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the accelerator `cuda`: the library checks the others than these itself."""
    made = {key: str(int(boolean(value))) if key in _CUDA_BOOLEANS else value for key, value in options.items()}
    if made.get("gpu_mem_limit"):
        made["gpu_mem_limit"] = str(unsigned(made["gpu_mem_limit"]))
    return {key: value for key, value in made.items() if value and key not in _GRAPHS | _OWN}


def _old_cuda(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the options that are written in the deprecated way: among the model's parameters."""
    made = _cuda({key: parameters[key] for key in _CUDA_VALUES if key in parameters})
    for key, choices in _CUDA_CHOICES.items():
        if key in parameters:
            number = integer(parameters[key])
            if not 0 <= number < len(choices):
                raise InvalidArgument(f"unsupported {key} value '{number}' is requested")
            made[key] = choices[number]
    return made


def _unknown(accelerator: Mapping[str, Any]) -> InvalidArgument:
    return InvalidArgument(f"unknown Execution Accelerator '{accelerator.get('name', '')}' is requested")
