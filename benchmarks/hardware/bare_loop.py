#!/usr/bin/env python3
"""Inferences per second of a loop without a server: `python -m benchmarks.hardware.bare_loop FILE KIND SECONDS SHAPE`.

FILE is an ONNX file (ONNX Runtime) or a plan (TensorRT, whose inputs and outputs stay in the device's memory: the loop
is an upper bound). SHAPE is that of the input, as in 8x3x224x224. Prints one number. A process of its own, so that
nothing of the loop disturbs the server.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT


def measure(file: Path, kind: str, seconds: float, shape: Sequence[int]) -> float:
    """Run the loop in a process of its own.

    Args:
        shape: of the input; its first dimension is the batch.

    Raises:
        RuntimeError: it failed; the text has its last words.
    """
    command = [sys.executable, "-m", "benchmarks.hardware.bare_loop", str(file), kind, str(seconds)]
    command.append("x".join(map(str, shape)))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120 + 4 * seconds)
    if done.returncode:
        raise RuntimeError(f"the bare loop over {file.name} failed: {done.stderr.strip()[-500:]}")
    return float(done.stdout.split()[-1])


def _onnx(path: str, kind: str, shape: Sequence[int]) -> Callable[[], Any]:
    import onnxruntime

    from benchmarks.hardware import models

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    provider = "CUDAExecutionProvider" if kind == "GPU" else "CPUExecutionProvider"
    session = onnxruntime.InferenceSession(
        path, options, providers=[(provider, {"device_id": 0} if kind == "GPU" else {})]
    )
    if provider not in session.get_providers():
        raise SystemExit(f"ONNX Runtime has no {provider} here")
    feed = {session.get_inputs()[0].name: models.rows(shape[0], shape=tuple(shape[1:]))}
    return lambda: session.run(None, feed)


def _tensorrt(path: str, shape: Sequence[int]) -> Callable[[], Any]:
    from edge_serve.backends.tensorrt.library import load_library

    library = load_library()
    cuda = library.cuda
    cuda.set_device(0)
    runtime = library.module.Runtime(library.logger)
    engine = runtime.deserialize_cuda_engine(Path(path).read_bytes())
    if engine is None:
        raise SystemExit(f"TensorRT does not take {path}: {library.errors.take()}")
    context, stream = engine.create_execution_context(), cuda.stream_create()
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    for name in names:
        if engine.get_tensor_mode(name) == library.module.TensorIOMode.INPUT:
            context.set_input_shape(name, tuple(shape))
    allocators = []
    for name in names:
        if (found := tuple(context.get_tensor_shape(name))) and min(found) < 0:  # the data decide
            allocators.append(library.allocator(cuda, on_host=False))
            context.set_output_allocator(name, allocators[-1])
        else:
            context.set_tensor_address(name, cuda.malloc(8 * math.prod(found)))

    def run(_living: Sequence[Any] = allocators) -> None:
        if not context.execute_async_v3(stream):
            raise SystemExit(f"TensorRT does not run {path}: {library.errors.take()}")
        cuda.stream_synchronize(stream)

    return run


def main() -> None:
    """Warm up for a fifth of the time, then count."""
    path, kind, seconds, shape = sys.argv[1], sys.argv[2], float(sys.argv[3]), [*map(int, sys.argv[4].split("x"))]
    run = _tensorrt(path, shape) if path.endswith(".plan") else _onnx(path, kind, shape)
    for share in (seconds / 5, seconds):
        count, start = 0, time.perf_counter()
        while (taken := time.perf_counter() - start) < share:
            run()
            count += 1
    print(count * shape[0] / taken)


if __name__ == "__main__":
    main()
