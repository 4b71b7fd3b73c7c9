"""TensorRT's own Python bindings over the stand-in libnvinfer with kernels, graphs, and memory of a real GPU.

The stand-in is built with nvcc, here or elsewhere: `python -m tests.nvinfer.genuine --cuda`.
"""

from __future__ import annotations

from typing import Any

import pytest

from edge_serve.devices.device import Gpus
from tests.nvinfer.genuine import DISTRIBUTIONS, ROOT, is_built, place
from tests.nvinfer.test_bindings import output


@pytest.fixture(params=sorted(DISTRIBUTIONS))
def path(request: pytest.FixtureRequest, gpus: Gpus) -> dict[str, str]:
    """Return the variables of a process that has the bindings over CUDA."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    if not is_built(request.param, cuda=True):
        pytest.skip("the stand-in is not built with nvcc: .venv/bin/python -m tests.nvinfer.genuine --cuda")
    return {"PYTHONPATH": f"{place(request.param, cuda=True)}:{ROOT}"}


def test_bindings_do_on_the_gpu_what_they_do_on_the_host(path: dict[str, str]) -> None:
    results = output("checks", path)["checks"]

    assert {name: failure for name, failure in results.items() if failure} == {}


@pytest.mark.timeout(120)
def test_10_000_executions_in_four_threads_leak_nothing_on_the_gpu(path: dict[str, str]) -> None:
    result: dict[str, Any] = output("load", path)

    assert (result["wrong"], result["living"]) == (0, 0)
    assert result["leaked"].get("memory", 0) > -(2 << 20), f"{result['leaked']} bytes of device memory"
    assert result["grown"] < 4096
