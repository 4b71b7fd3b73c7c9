"""How many inferences per second, beside Triton's C++ onnxruntime backend? ONNX models from 7 us to 25 ms.

No package registry has that backend, so this one is not part of `make bench`: `python -m benchmarks.run onnx_peer` with
BENCH_TRITON_BACKENDS naming a folder that holds `onnxruntime/libtriton_onnxruntime.so` (and the ONNX Runtime library it
needs beside it), built for the backend API of Triton 2.51 (r24.10).
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks import load, peer
from benchmarks.make_models import INPUTS, make
from benchmarks.report import Report
from benchmarks.servers import BESIDE, DEMO, Server, edge_serve, repository, triton

VARIABLE = "BENCH_TRITON_BACKENDS"
LIBRARY = "onnxruntime/libtriton_onnxruntime.so"


@dataclass(frozen=True)
class Case:
    """One model: connections -> the ratio that the project requires, and perf_analyzer's flags for the model."""

    model: str
    bars: dict[int, float]
    flags: tuple[str, ...] = ()


#: models of 2 ms and more must reach Triton's rate, faster ones nearly; `simple` takes 7 us, the rest is the worker hop
CASES = (
    Case("simple", {1: 0.45, 8: 0.6, 32: 0.65}),
    Case("text_direction", {1: 0.95, 8: 0.95}),
    Case("squeezenet_random", {1: 1.0, 4: 1.0, 8: 1.0}),
    Case("magika", {1: 1.0, 8: 1.0}),
    Case("text_detection", {1: 1.0, 4: 1.0}, ("--shape", "x:3,320,320")),
    Case("resnet50_random", {1: 1.0, 4: 1.0, 8: 1.0}),
)


def run(rounds: int = 3) -> Report:
    """Measure with perf_analyzer over binary HTTP, both servers in turn.

    Raises:
        peer.NoPeerError: no backend is named, or the demo models are missing; the text says what to do.
    """
    backends = None if BESIDE else _backends()
    report = Report("onnx_peer", "ONNX models beside Triton's C++ onnxruntime backend (perf_analyzer, binary HTTP)")
    if backends is not None:
        version = _runtime_version(backends)
        report.notes.append(f"Triton 2.51, {LIBRARY} with ONNX Runtime {version}, both servers' defaults")
    with (
        repository([_folder(case.model) for case in CASES]) as models,
        edge_serve(models) as ours,
        triton(models, backends=backends) as theirs,
    ):
        for case in CASES:
            for connections, bar in case.bars.items():
                measure = functools.partial(_measure, case=case, connections=connections)
                row = load.versus(ours, theirs, measure, rounds, case.model)
                report.rows.append({"model": case.model, "connections": connections, **row, "asked": bar})
    return report


def _measure(server: Server, case: Case, connections: int) -> tuple[float, float]:
    return load.perf_analyzer(server, case.model, connections, 1500, "http", *case.flags)


def _backends() -> Path:
    named = os.environ.get(VARIABLE)
    if not named:
        raise peer.NoPeerError(f"set {VARIABLE} to a folder that holds {LIBRARY}, built for Triton 2.51 (r24.10)")
    folder = Path(named).resolve()
    if not (folder / LIBRARY).is_file():
        raise peer.NoPeerError(f"{VARIABLE} names {folder}, which has no {LIBRARY}")
    return folder


def _folder(model: str) -> Path:
    folder = make() / model if model in INPUTS else DEMO / model
    if not (folder / "1/model.onnx").is_file():
        raise peer.NoPeerError(f"model '{model}' has no ONNX file yet: make models")
    return folder


def _runtime_version(backends: Path) -> str:
    """Return the version in the file name of the library."""
    names = " ".join(path.name for path in (backends / "onnxruntime").glob("libonnxruntime.so.*"))
    found = re.search(r"libonnxruntime\.so\.(\d+\.\d+\.\d+)", names)
    return found[1] if found else "of unknown version"
