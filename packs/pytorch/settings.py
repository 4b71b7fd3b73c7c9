"""Triton's parameters of a PyTorch model, as plain values. Pure, without torch.

Keys and log lines: triton-inference-server/pytorch_backend README.md and src/pt/model_state.cc.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edge_serve.backends.parameters import boolean, integer, parameters_of
from edge_serve.errors import InvalidArgument

#: the default of each truth value
_DEFAULTS = {
    "DISABLE_OPTIMIZED_EXECUTION": False,
    "ENABLE_CACHE_CLEANING": False,
    "INFERENCE_MODE": True,
    "DISABLE_CUDNN": False,
    "ENABLE_WEIGHT_SHARING": False,
}
#: set for the process only where a model says so
_JIT = ("ENABLE_TENSOR_FUSER", "ENABLE_JIT_PROFILING", "ENABLE_JIT_EXECUTOR")
#: Triton's older names, of its Python runtime
_ALIASES = {"INTRA_OP_THREAD_COUNT": "NUM_THREADS", "INTER_OP_THREAD_COUNT": "NUM_INTEROP_THREADS"}
#: OpenMP ends the process where the system refuses it a thread
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """How a model is loaded and run.

    Attributes:
        intra_op_threads: of one run; 0 = a share of the cores.
        inter_op_threads: of the process, as the first model that sets it says; 0 = torch's default.
        tensor_fuser, jit_profiling, jit_executor: None = torch's default.
        lines: Triton's log lines, and whether the configuration sets the value.
    """

    optimized: bool
    cache_cleaning: bool
    inference_mode: bool
    cudnn: bool
    weight_sharing: bool
    tensor_fuser: bool | None
    jit_profiling: bool | None
    jit_executor: bool | None
    intra_op_threads: int
    inter_op_threads: int
    lines: tuple[tuple[str, bool], ...]


def settings_of(config: Mapping[str, Any]) -> TorchSettings:
    """Return the settings of a model.

    Raises:
        InvalidArgument: a value is not what its key needs.
    """
    parameters = parameters_of(config)
    flags = {key: _boolean(parameters, key, default) for key, default in _DEFAULTS.items()}
    jit = {key: _boolean(parameters, key, False) if key in parameters else None for key in _JIT}
    lines = tuple(_lines(str(config.get("name", "")), parameters, flags, jit))
    return TorchSettings(
        optimized=not flags["DISABLE_OPTIMIZED_EXECUTION"],
        cache_cleaning=flags["ENABLE_CACHE_CLEANING"],
        inference_mode=flags["INFERENCE_MODE"],
        cudnn=not flags["DISABLE_CUDNN"],
        weight_sharing=flags["ENABLE_WEIGHT_SHARING"],
        tensor_fuser=jit["ENABLE_TENSOR_FUSER"],
        jit_profiling=jit["ENABLE_JIT_PROFILING"],
        jit_executor=jit["ENABLE_JIT_EXECUTOR"],
        intra_op_threads=_threads(parameters, "INTRA_OP_THREAD_COUNT"),
        inter_op_threads=_threads(parameters, "INTER_OP_THREAD_COUNT"),
        lines=lines,
    )


def _boolean(parameters: Mapping[str, str], key: str, default: bool) -> bool:
    try:
        return boolean(parameters[key]) if key in parameters else default
    except InvalidArgument as error:
        raise InvalidArgument(f"{error.message}: write true or false for the parameter {key}") from error


def _threads(parameters: Mapping[str, str], key: str) -> int:
    found = key if key in parameters else _ALIASES[key]
    try:
        count = max(0, integer(parameters.get(found, "0")))
    except InvalidArgument as error:
        raise InvalidArgument(f"{error.message}: write a number for the parameter {found}") from error
    if count > _MOST_THREADS:
        raise InvalidArgument(f"the parameter {found} is {count}, expected at most {_MOST_THREADS} threads")
    return count


def _lines(
    name: str, parameters: Mapping[str, str], flags: Mapping[str, bool], jit: Mapping[str, bool | None]
) -> Iterator[tuple[str, bool]]:
    shown = (
        ("Optimized execution", "DISABLE_OPTIMIZED_EXECUTION", not flags["DISABLE_OPTIMIZED_EXECUTION"]),
        ("Cache Cleaning", "ENABLE_CACHE_CLEANING", flags["ENABLE_CACHE_CLEANING"]),
        ("Inference Mode", "INFERENCE_MODE", flags["INFERENCE_MODE"]),
        ("cuDNN", "DISABLE_CUDNN", not flags["DISABLE_CUDNN"]),
        ("Tensor fuser", "ENABLE_TENSOR_FUSER", jit["ENABLE_TENSOR_FUSER"]),
        ("Weight sharing", "ENABLE_WEIGHT_SHARING", flags["ENABLE_WEIGHT_SHARING"] or None),
        ("Jit profiling", "ENABLE_JIT_PROFILING", jit["ENABLE_JIT_PROFILING"]),
        ("Jit executor", "ENABLE_JIT_EXECUTOR", jit["ENABLE_JIT_EXECUTOR"]),
    )
    for title, key, value in shown:
        if value is not None:
            yield f"{title} is {'enabled' if value else 'disabled'} for model instance '{name}'", key in parameters
    if threads := _threads(parameters, "INTRA_OP_THREAD_COUNT"):
        yield f"Intra op thread count is set to {threads} for model instance '{name}'", True
