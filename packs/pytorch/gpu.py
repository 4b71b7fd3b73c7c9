"""Which device an instance is for, and the library's errors there."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext

import torch

from edge_serve.backends.base import DeviceLost, InstanceSpec
from edge_serve.backends.cuda.api import says_sticky
from edge_serve.errors import EdgeServeError, Internal, Unavailable, with_advice

#: torch appends its own advice, and where the error was raised in C++
_TAIL = re.compile(
    r"\n(?:CUDA kernel errors might|Exception raised from|Compile with `TORCH_USE_CUDA_DSA`).*", re.DOTALL
)


def device_of(instance: InstanceSpec) -> torch.device | None:
    """Return the device of an instance; None for KIND_MODEL, whose model chooses.

    Raises:
        Unavailable: torch sees no such GPU.
    """
    if instance.kind == "MODEL":
        return None
    if instance.kind != "GPU":
        return torch.device("cpu")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if instance.device_id >= found:
        raise Unavailable(
            f"instance '{instance.name}' is for GPU {instance.device_id}, and torch {torch.__version__} sees {found} "
            "GPUs: edge-serve pack install pytorch --gpu, or write instance_group { kind: KIND_CPU }; see: edge-serve "
            "doctor"
        )
    return torch.device("cuda", instance.device_id)


def own_stream(device: torch.device | None) -> torch.cuda.Stream | None:
    """Return a stream for the work of one instance; None on the CPU."""
    if device is None or device.type != "cuda":
        return None
    return torch.cuda.Stream(device)


def work_on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Return a context in which work goes to this stream; nothing changes without one."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def empty_cache(device: torch.device | None) -> None:
    """Give cached memory of the GPUs back (`ENABLE_CACHE_CLEANING`)."""
    if torch.cuda.is_available() and (device is None or device.type == "cuda"):
        torch.cuda.empty_cache()


def failure(words: str, error: Exception) -> EdgeServeError:
    """Return an error of the library behind these words, with advice; DeviceLost if the device can be used no more."""
    text = f"{words}: {_TAIL.sub('', str(error)) or type(error).__name__}"
    if torch.backends.cuda.is_built() and says_sticky(text):  # else a model on the CPU has these words of its own
        return DeviceLost(text)
    return Internal(with_advice(text, _advice(error)))


def _advice(error: Exception) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return (
            "the device ran out of memory: unload models, lower count in instance_group or max_batch_size, or set "
            "ENABLE_CACHE_CLEANING"
        )
    if "could not create a primitive" in str(error):
        return (
            "torch writes code for the processor, which the service forbids (MemoryDenyWriteExecute=yes): "
            "install service.conf of the pack as a drop-in (docs/pytorch.md)"
        )
    return ""
