"""What does serving add to a model's own time? 1x3x224x224 FP32 in, 1,000 numbers out, one connection."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from benchmarks import bodies, load
from benchmarks.make_models import INPUTS, make
from benchmarks.report import Report
from benchmarks.servers import MODELS, edge_serve, repository

ROUNDS, SECONDS = 4, 1.0


def run() -> Report:
    """Measure requests over one connection and bare session.run calls in turn, so that both see the same machine."""
    report = Report(
        "large_tensors", "time added to a bare session.run, 602 KB in, one connection (asked: 1 ms = 10 % of 10 ms)"
    )
    values = np.random.default_rng(1).random((1, 3, 224, 224), dtype=np.float32)
    networks = make()
    with (
        repository([*(networks / name for name in INPUTS), MODELS / "picture"]) as models,
        edge_serve(models) as server,
    ):
        for name, tensor in INPUTS.items():
            request = bodies.picture_binary(name, tensor, values)
            bare_seconds, served_seconds = [], []
            for _ in range(ROUNDS):
                bare_seconds += bare_runs(str(models / name / "1/model.onnx"), tensor, values, SECONDS)
                served_seconds += load.latencies(server, request, SECONDS)
            bare, served = statistics.median(bare_seconds), statistics.median(served_seconds)
            added = (served - bare) * 1e3
            report.rows.append({"model": name, "bare ms": bare * 1e3, "served ms": served * 1e3, "added ms": added})
        request = bodies.picture_binary("picture", "INPUT0", values)
        served = statistics.median(load.latencies(server, request, SECONDS)) * 1e3
        report.rows.append(
            {"model": "picture (python, no work)", "bare ms": 0.0, "served ms": served, "added ms": served}
        )
    return report


def bare_runs(path: str, tensor: str, values: Any, seconds: float) -> list[float]:
    """Return the seconds of each session.run, with ONNX Runtime's defaults."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    taken, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        session.run(None, {tensor: values})
        taken.append(time.perf_counter() - start)
    return taken[len(taken) // 5 :]
