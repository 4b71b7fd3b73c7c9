"""Many loads, failed ones among them, on the host implementation of CUDA: what they took is released."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from edge_serve.backends.base import InstanceSpec, Timing
from edge_serve.backends.cuda.api import OUT_OF_MEMORY
from edge_serve.backends.tensorrt.backend import TensorRtBackend
from edge_serve.backends.tensorrt.library import load_library
from edge_serve.errors import EdgeServeError
from tests.backends.cuda.host import HostCuda
from tests.backends.tensorrt.test_instance import host, identity, request, spec

__all__ = ["host"]

#: calls of a load that fail in turn; the load without a failure is among them
CALLS = ("", "cudaMalloc", "cudaStreamCreateWithPriority", "cudaStreamSynchronize", "cudaStreamBeginCapture")


def load(host: HostCuda, model: Path, number: int) -> bool:
    """Load a model, in which one call of CUDA may fail, run a request, and unload it. Return whether it loaded."""
    call, after = CALLS[number % len(CALLS)], number // len(CALLS)
    described = spec(model, identity(device_memory=1 << 20), optimization={"cuda": {"graphs": True}})
    backend, instances = TensorRtBackend(partial(load_library, cuda=lambda: host)), []
    if call:
        host.fail(call, OUT_OF_MEMORY, after)
    try:
        described.config = backend.complete_config(described)
        instances = backend.open(described, [InstanceSpec(f"m_0_{i}", "GPU", 0) for i in range(2)])
        instances[0].execute([request(np.ones((1, 4), np.float32))], Timing())
        return True
    except EdgeServeError:
        return False
    finally:
        for instance in instances:
            instance.close()
        backend.close()
        host._scripted.clear()  # what was not reached must not fail the next load


def test_memory_of_the_device_is_flat_over_50_loads(host: HostCuda, tmp_path: Path) -> None:
    host.set_device(0)
    free = host.memory_info()[0]
    loaded = []
    for number in range(50):
        loaded.append(load(host, tmp_path / str(number), number))
        assert host.memory_info()[0] == free, f"load {number} of {CALLS[number % len(CALLS)]}"
        assert host.open_handles() == dict.fromkeys(host.open_handles(), 0)
    assert 10 < sum(loaded) < 50, "loads fail, and others do not"
