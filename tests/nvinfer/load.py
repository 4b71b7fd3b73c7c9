"""Executions in four threads through the backend and the module `tensorrt`: are the answers right, and what leaks?

`python -m tests.nvinfer.load` runs 10,000, and prints JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edge_serve.backends.base import InstanceSpec, ModelSpec, Timing
from edge_serve.backends.tensorrt.backend import TensorRtBackend
from edge_serve.backends.tensorrt.instance import TensorRtInstance
from edge_serve.backends.tensorrt.library import load_library
from edge_serve.errors import EdgeServeError
from tests.backends.tensorrt.test_instance import request
from tests.nvinfer.library import living
from tests.nvinfer.session import BATCHED, INDEX, VERSION, host, tensors
from tests.stand_ins.plans import plan, tensor

THREADS = 4
#: one execution in so many has an output whose size the data decide
NONZERO_EVERY = 10


class Model:
    """A model with an instance for each thread."""

    def __init__(self, folder: Path, name: str, content: bytes, **config: Any) -> None:
        directory = folder / name / "1"
        directory.mkdir(parents=True)
        (directory / "model.plan").write_bytes(content)
        groups = [{"name": f"{name}_0", "kind": "KIND_GPU", "count": THREADS, "gpus": [0]}]
        spec = ModelSpec(name, 1, directory.parent, directory, {"name": name, "instance_group": groups, **config})
        self.backend = TensorRtBackend(partial(load_library, cuda=lambda: host))
        spec.config = self.backend.complete_config(spec)
        specs = [InstanceSpec(f"{name}_0_{n}", "GPU", 0) for n in range(THREADS)]
        self.instances: list[TensorRtInstance] = self.backend.open(spec, specs)

    def close(self) -> None:
        for instance in self.instances:
            instance.close()
        self.backend.close()


def ask(same: TensorRtInstance, nonzero: TensorRtInstance, count: int, seed: int, wrong: list[object]) -> None:
    """Execute batches of one to four requests. Collect the answers that are wrong."""
    random = np.random.default_rng(seed)
    for n in range(count):
        if n % NONZERO_EVERY:
            arrays = [random.random((rows, 4), np.float32) for rows in (1, 3)[: 1 + n % 2]]
            replies = same.execute([request(array) for array in arrays], Timing())
        else:
            arrays = [np.array([0, n, 0, n % 3], np.float32)]
            replies = nonzero.execute([request(array) for array in arrays], Timing())
            arrays = [np.argwhere(arrays[0]).T]
        found = [reply.outputs[0].array() for reply in replies]
        if not all(np.array_equal(one, array) for one, array in zip(found, arrays, strict=True)):
            wrong.append((found, arrays))


def run(models: tuple[Model, Model], count: int, wrong: list[object]) -> None:
    """Execute in all threads at once."""
    threads = [
        threading.Thread(target=ask, args=(*(model.instances[n] for model in models), count // THREADS, n, wrong))
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def resident() -> int:
    """Return the KiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def fail(folder: Path, count: int) -> None:
    """Load plans that are cut off."""
    for n in range(count):
        try:
            Model(folder, f"cut{n}", plan("identity", tensors(), [], VERSION)[: 40 + n])
        except EdgeServeError:
            continue
        raise AssertionError("a plan that is cut off was loaded")


def cycle(folder: Path, count: int, wrong: list[object]) -> int:
    """Load models, execute, and unload them. Return how many KiB the process grew after a fifth of the executions."""
    both = [tensors()[0], tensors()[2]]
    found = [tensor("INPUT0", "INPUT", "FLOAT", (-1,)), tensor("OUTPUT0", "OUTPUT", INDEX[0], (1, -1))]
    without_batches = {
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": f"TYPE_{INDEX[0]}", "dims": [1, -1]}],
    }
    same = Model(folder, "same", plan("identity", both, [{"INPUT0": BATCHED}], VERSION, device_memory=4096))
    nonzero = Model(folder, "nonzero", plan("nonzero", found, [{"INPUT0": ((4,),) * 3}], VERSION), **without_batches)
    run((same, nonzero), count // 5, wrong)
    fail(folder, 25)
    memory = resident()
    run((same, nonzero), count - count // 5, wrong)
    fail(folder / "again", 25)
    grown = resident() - memory
    for model in (same, nonzero):
        model.close()
    return grown


def main(count: int) -> dict[str, Any]:
    """Return what happened in a number of executions."""
    used = getattr(host, "open_handles", lambda: {"memory": host.memory_info()[0]})
    wrong: list[object] = []
    with tempfile.TemporaryDirectory() as name:
        cycle(Path(name) / "first", 80, wrong)  # CUDA loads kernels when they first run, and keeps them
        gc.collect()
        before, start = used(), time.monotonic()
        grown = cycle(Path(name) / "then", count, wrong)
        seconds = time.monotonic() - start
    gc.collect()
    after = used()
    leaked = {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]}
    return {
        "wrong": len(wrong),
        "grown": grown,
        "leaked": leaked,
        "living": living(VERSION),
        "seconds": round(seconds, 2),
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]) if sys.argv[1:] else 10_000)))
