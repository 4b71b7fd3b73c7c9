"""What does serving add to OpenVINO's own time? 1x3x224x224 FP32 in, 1,000 numbers out, 1 and 8 connections.

It needs the pack `openvino`, 0.2 GB: `python -m tests.packs.environments openvino`. So this benchmark is not part of
`make bench`: `python -m benchmarks.run openvino_peer`.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import bodies, load
from benchmarks.make_models import INPUTS, make
from benchmarks.peer import NoPeerError
from benchmarks.report import ROOT, Report
from benchmarks.servers import Server, edge_serve

#: instances -> end of the model's name
INSTANCES = {1: "", 2: "_twice"}
ROUNDS, SECONDS, CONNECTIONS = 4, 2.0, 8
#: (streams, threads) of the bare loops, of which the fastest counts
LOOPS = ((1, 1), (2, 2), (2, 4), (2, 8))

Measure = Callable[[float, int, int], list[float]]


def run() -> Report:
    """Measure requests and bare inferences in turn, so that both see the same machine.

    Raises:
        NoPeerError: the pack is not installed.
    """
    backends = ROOT / "build/packs"
    if not (backends / "openvino/pack.json").is_file():
        raise NoPeerError("the pack is not installed: python -m tests.packs.environments openvino")
    report = Report(
        "openvino_peer", f"OpenVINO models beside the bare library, 602 KB in, 1 and {CONNECTIONS} connections"
    )
    values = np.random.default_rng(1).random((1, 3, 224, 224), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix="bench-openvino-") as folder:
        write_models(Path(folder, "models"))
        np.save(Path(folder, "values.npy"), values)
        with edge_serve(Path(folder, "models"), f"--backend-directory={backends}") as server:
            for name, tensor in INPUTS.items():
                path = Path(folder, "models", name, "1/model.onnx")
                with bare(backends, path, Path(folder, "values.npy")) as measure:
                    requests = {
                        n: bodies.picture_binary(f"{name}{end}", tensor, values) for n, end in INSTANCES.items()
                    }
                    report.rows.append(one_connection(name, server, requests[1], measure))
                    report.rows.append(many_connections(name, server, requests, measure))
    return report


def write_models(root: Path) -> None:
    """Write each network with one instance, and with two."""
    networks = make()
    for name in INPUTS:
        for count, end in INSTANCES.items():
            (root / f"{name}{end}/1").mkdir(parents=True)
            shutil.copy(networks / name / "1/model.onnx", root / f"{name}{end}/1")
            config = f'backend: "openvino"\ninstance_group {{ count: {count} }}\n'
            (root / f"{name}{end}/config.pbtxt").write_text(config)


@contextmanager
def bare(backends: Path, model: Path, values: Path) -> Iterator[Measure]:
    """Yield a function that measures the library alone, in a process of the pack's interpreter."""
    command = [backends / "openvino/venv/bin/python", ROOT / "benchmarks/bare_openvino.py", model, values]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        questions, answers = process.stdin, process.stdout
        assert questions is not None
        assert answers is not None

        def measure(seconds: float, streams: int, threads: int) -> list[float]:
            print(seconds, streams, threads, file=questions, flush=True)
            taken: list[float] = json.loads(answers.readline())
            return taken

        try:
            yield measure
        finally:
            questions.close()


def one_connection(name: str, server: Server, request: bytes, measure: Measure) -> dict[str, object]:
    """Return the time that serving adds: medians of all rounds."""
    alone, served = [], []
    for _ in range(ROUNDS):
        alone += measure(SECONDS, 1, 1)
        served += load.latencies(server, request, SECONDS)
    bare_ms, served_ms = statistics.median(alone) * 1e3, statistics.median(served) * 1e3
    return {
        "model": name, "connections": 1, "bare": bare_ms, "served": served_ms, "unit": "ms",
        "ratio": bare_ms / served_ms,
    }  # fmt: skip


def many_connections(name: str, server: Server, requests: dict[int, bytes], measure: Measure) -> dict[str, object]:
    """Return inferences per second: the best bare loop, and the better number of instances; medians of all rounds."""
    bare_rates: dict[tuple[int, int], list[float]] = {loop: [] for loop in LOOPS}
    served_rates: dict[int, list[float]] = {count: [] for count in INSTANCES}
    for _ in range(ROUNDS):
        for loop in LOOPS:
            taken = measure(SECONDS, *loop)
            bare_rates[loop].append(loop[1] / statistics.fmean(taken))
        for count, request in requests.items():
            served_rates[count].append(load.rate(server, request, CONNECTIONS, SECONDS))
    best_bare = max(statistics.median(rates) for rates in bare_rates.values())
    best_served = max(statistics.median(rates) for rates in served_rates.values())
    return {
        "model": name, "connections": CONNECTIONS, "bare": best_bare, "served": best_served, "unit": "per second",
        "ratio": best_served / best_bare,
    }  # fmt: skip
