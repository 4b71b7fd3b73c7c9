"""Errors of ONNX Runtime in Triton's words, with advice where a GPU is the cause. Without the library."""

from __future__ import annotations

import re

from edge_serve.backends.base import DeviceLost
from edge_serve.backends.cuda.api import STICKY, says_sticky
from edge_serve.errors import EdgeServeError, Internal, with_advice

#: a run with bound tensors fails without the code (onnxruntime_pybind_state.cc)
_BOUND = "Error in execution: "
#: errors of a request's tensors, whose code is 2 (INVALID_ARGUMENT; ValidateInputs in inference_session.cc)
_OF_INPUTS = ("Got invalid dimensions for input", "Invalid rank for input", "Unexpected input data type")
_ORT_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)

#: the library's own text for a failed call of CUDA, with its cudaError_t
_CUDA_FAILURE = re.compile(r"\bCUDA failure (\d+):")
#: the same errors of libraries whose texts have names
_STICKY = re.compile(r"CUDA_ERROR_(?:ILLEGAL_ADDRESS|LAUNCH_FAILED|ASSERT)")
_LIMIT = re.compile(r"Available memory of (\d+) is smaller than requested bytes of (\d+)")
_MEMORY = re.compile(
    r"Failed to allocate memory for requested buffer of size (\d+)|CUDA failure 2:|STATUS_ALLOC_FAILED"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
)
_DRIVER = re.compile(r"CUDA failure (?:3|34|35|100|802|803|804|999):")
_NO_KERNEL = re.compile(r"CUDA failure (?:209|222|223):|no kernel image is available")
_ON_CPU = "assigned to the default CPU EP, but fallback to CPU EP has been explicitly disabled"


def translated(error: Exception) -> EdgeServeError:
    """Return an error of the library in Triton's words: `onnx runtime error <code>: <text>`."""
    text = str(error)
    if text.startswith(_BOUND):
        text = text.removeprefix(_BOUND)
        return Internal(f"onnx runtime error {2 if text.startswith(_OF_INPUTS) else 1}: {text}")
    match = _ORT_ERROR.search(text)
    if match is None:
        return Internal(f"onnx runtime error 1: {text}")
    return Internal(f"onnx runtime error {match[1]}: {match[2]}")


def translated_on_gpu(error: Exception) -> EdgeServeError:
    """Return an error of a session on a GPU, with advice; DeviceLost if this process can use the device no more."""
    told = translated(error)
    return DeviceLost(told.message) if _is_sticky(told.message) else Internal(with_advice(told.message, _advice(told)))


def _is_sticky(text: str) -> bool:
    codes = {int(code) for code in _CUDA_FAILURE.findall(text)}
    return says_sticky(text) or _STICKY.search(text) is not None or not codes.isdisjoint(STICKY)


def _advice(told: EdgeServeError) -> str:
    text = told.message
    if match := _LIMIT.search(text):
        return (
            f"the model reached its limit of device memory (asked for {_mb(match[2])}, and {_mb(match[1])} were left): "
            "raise gpu_mem_limit, lower max_batch_size, or set arena_extend_strategy to kSameAsRequested"
        )
    if match := _MEMORY.search(text):
        asked = f" (asked for {_mb(match[1])})" if match[1] else ""
        return (
            f"the device ran out of memory{asked}: unload models, lower count in instance_group or max_batch_size, or "
            "set gpu_mem_limit of the models beside it"
        )
    if _DRIVER.search(text):
        return "no NVIDIA driver answers, or it is older than the CUDA of onnxruntime-gpu: see: edge-serve doctor"
    if _NO_KERNEL.search(text):
        return (
            "this onnxruntime-gpu has no code for this device: install one that was built for it (for a Jetson, "
            "NVIDIA's own for its JetPack), and see: edge-serve doctor"
        )
    if _ON_CPU in text:
        return (
            "session.disable_cpu_ep_fallback forbids nodes on the CPU, and the GPU's provider lacks one: "
            "remove the parameter, or export the model without it"
        )
    return ""


def _mb(text: str) -> str:
    return f"{int(text) / 1e6:.1f} MB"
