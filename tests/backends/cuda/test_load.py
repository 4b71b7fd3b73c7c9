"""The choice of an implementation of CudaApi, and the reasons where there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_serve.backends.cuda.api import CudaError, load_cuda, says_sticky
from edge_serve.errors import Unavailable
from tests.backends.cuda.host import HostCuda

ROOT = Path(__file__).parents[3]
CUDA_BINDINGS = "edge_serve.backends.cuda.bindings"


def loader(**found: Any) -> Callable[[str], object]:
    """Return what imports a module: one that makes `found`, or that raises it."""

    def load(path: str) -> object:
        one = found[path.rpartition(".")[2]]
        if isinstance(one, ImportError):
            raise one
        return SimpleNamespace(make=lambda: one)

    return load


def test_pycuda_is_used_where_cuda_bindings_is_missing() -> None:
    missing, host = ModuleNotFoundError("No module named 'cuda'"), HostCuda()

    assert load_cuda(loader(bindings=missing, pycuda=host)) is host
    assert load_cuda(loader(bindings=host, pycuda=missing)) is host


def test_cuda_bindings_is_preferred() -> None:
    first = HostCuda()

    assert load_cuda(loader(bindings=first, pycuda=HostCuda())) is first


def test_error_names_the_reason_of_each_library() -> None:
    missing, broken = ModuleNotFoundError("No module named 'cuda'"), ImportError("libcuda.so.1: cannot open")

    with pytest.raises(Unavailable) as failed:
        load_cuda(loader(bindings=missing, pycuda=broken))
    assert failed.value.message == (
        "CUDA cannot be used: cuda-bindings: not installed (No module named 'cuda'); pycuda: cannot be imported "
        "(libcuda.so.1: cannot open); pip install 'edge-serve[cuda]', and see: edge-serve doctor"
    )
    with pytest.raises(Unavailable, match=r"cuda-bindings: no device; .*; see: edge-serve doctor"):
        load_cuda(loader(bindings=HostCuda(devices=0), pycuda=missing))


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (12060, "the driver supports CUDA 12.6, and cuda-bindings here needs CUDA 13; install the ones that fit (pip "
                "install 'cuda-bindings==12.*'), or a newer driver"),
        (0, "no NVIDIA driver is loaded"),
    ],
    ids=["older driver", "no driver"],
)  # fmt: skip
def test_error_distinguishes_bindings_of_another_major_version_from_a_missing_driver(version: int, text: str) -> None:
    path = {"PYTHONPATH": f"{ROOT / 'tests/stand_ins'}:{ROOT}", "STAND_IN_CUDA": f"version={version}"}
    code = f"from {CUDA_BINDINGS} import make; make().device_count()"
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True)

    assert f"cudaGetDeviceCount failed with cudaErrorInsufficientDriver (35): {text}" in done.stderr


def test_error_that_ends_the_context_is_sticky() -> None:
    assert [code for code in (1, 2, 35, 226, 700, 721, 810) if CudaError("", code, "", "").sticky] == [
        226,
        700,
        721,
        810,
    ]


@pytest.mark.parametrize(
    ("text", "sticky"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: unknown error", True),  # of torch
        ("Error Code 1: Cuda Runtime (unknown error)", True),  # of TensorRT
        ("an unknown error", False),
        ("CUDA error: out of memory", False),
    ],
)
def test_texts_of_libraries_that_end_the_context_are_sticky(text: str, sticky: bool) -> None:
    assert says_sticky(text) is sticky
