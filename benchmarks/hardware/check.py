#!/usr/bin/env python3
"""Shows what only an owner's hardware can show: `make hw-check`. About 10 minutes; writes build/hw-check/report.json.

The steps: facts of the machine, tests that need a GPU, models of ONNX Runtime and of TensorRT (built here) beside a
bare loop, time to ready, boot, and power. A step that fails is part of the report. Nothing is sent anywhere:
docs/hardware.md says how to send a report, and what is in it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.hardware import facts, models, serving
from benchmarks.report import ROOT, Report, Row
from benchmarks.servers import edge_serve

FOLDER = ROOT / "build/hw-check"
Step = Callable[[], Any]


def tests() -> Row:
    """Run the tests that are marked `gpu`; those that are skipped are named with their reason."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={path}"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=1500)
        cases = list(ET.parse(path).getroot().iter("testcase"))
    told: Row = {"passed": 0, "failed": [], "skipped": []}
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        if (skipped := case.find("skipped")) is not None:
            told["skipped"].append(f"{name}: {skipped.get('message')}")
        elif (failed := next(iter(case.findall("failure") + case.findall("error")), None)) is not None:
            told["failed"].append(f"{name}: {failed.get('message')}")
        else:
            told["passed"] += 1
    return told


def build(name: str, precision: str = "") -> Row:
    """Build a plan twice: the second time it comes from the cache.

    Args:
        precision: "fp16", or "" = that of the file.

    Raises:
        RuntimeError: there is no plan; the text says why.
    """
    tensor, path, seconds = models.ends(name)[0], plan(name, precision), []
    shapes = [
        f"--{side}-shapes={tensor}:{rows}x{'x'.join(map(str, models.SHAPE))}"
        for side, rows in (("min", 1), ("opt", models.MAX_BATCH), ("max", models.MAX_BATCH))
    ]
    command = [
        sys.executable, "-m", "edge_serve", "build", str(models.onnx_file(name)), "--output", str(path), "--json",
        "--cache", str(FOLDER / "cache"), *shapes, *([f"--{precision}"] if precision else []),
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000)
        if done.returncode:
            raise RuntimeError(f"edge-serve build: {(done.stderr or done.stdout).strip()[-800:]}")
        seconds.append(time.monotonic() - started)
    size = path.stat().st_size
    return {"model": name, "build s": seconds[0], "from the cache s": seconds[1], "plan bytes": size}


def plan(name: str, precision: str = "") -> Path:
    """Return the place of a model's plan."""
    return FOLDER / name / f"model{precision and '_'}{precision}.plan"


def start(kind: str, plans: bool) -> Row:
    """Measure the time from the start of the process to ready, with all models."""
    with tempfile.TemporaryDirectory(prefix="hw-check-") as folder:
        for name in models.NAMES:
            models.write(Path(folder), name, kind, plan(name) if plans else None)
        with edge_serve(Path(folder)) as server:
            return {"ready s": server.start_seconds, "idle power W": serving.sampled_power(server)}


def equal(name: str, kind: str, of: Path | None = None, most: float = 1e-3) -> Row:
    """Compare served answers with ONNX Runtime's on the CPU.

    Raises:
        RuntimeError: they differ by more than `most`.
    """
    found = serving.largest_difference(name, kind, of)
    if found > most:
        raise RuntimeError(f"answers differ from ONNX Runtime's on the CPU by {found:.2g}, expected at most {most:g}")
    return {"largest difference": found}


def steps(kind: str, seconds: float) -> dict[str, Step]:
    """Return the steps in their order."""
    told: dict[str, Step] = {"facts": facts.collect, "boot": facts.boot, "tests": tests}
    for name in models.NAMES:
        told[f"onnx {name}: equal"] = partial(equal, name, kind)
        told[f"onnx {name}"] = partial(serving.beside_loop, name, kind, seconds)
    told["onnx: start"] = partial(start, kind, False)
    for name in models.NAMES if kind == "GPU" else ():
        for precision, most in (("", 1e-3), ("fp16", 1e-2)):
            step, path = f"tensorrt {name} {precision}".rstrip(), plan(name, precision)
            told[f"{step}: build"] = partial(build, name, precision)
            told[f"{step}: equal"] = partial(equal, name, kind, path, most)
            told[step] = partial(serving.beside_loop, name, kind, seconds, path)
        told[f"tensorrt {name}: graphs"] = partial(serving.beside_loop, name, kind, seconds, plan(name), graphs=True)
    if kind == "GPU":
        told["tensorrt: start"] = partial(start, kind, True)
    return told


def run(todo: dict[str, Step], note: Callable[[str], None] = print) -> dict[str, Any]:
    """Run the steps one after the other; an error is its step's result, and the others still run."""
    results: dict[str, Any] = {}
    for number, (name, step) in enumerate(todo.items(), 1):
        note(f"[{number}/{len(todo)}] {name} ...")
        started = time.monotonic()
        try:
            results[name] = step()
        except Exception as error:
            results[name] = {"failed": f"{type(error).__name__}: {error}"}
            note(f"    failed: {error}")
        note(f"    {time.monotonic() - started:.0f} s")
    return results


def main() -> None:
    """Run all steps and write the report; exit 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("GPU", "CPU"), default="GPU", help="CPU: a rehearsal without a GPU")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default: 10)")
    arguments = parser.parse_args()
    if arguments.kind == "GPU" and not (found := facts.collect())["gpus"]:
        raise SystemExit(
            f"no NVIDIA GPU was found{': ' if found['gpu_problem'] else ''}{found['gpu_problem']}\n"
            "`edge-serve doctor` says more; a rehearsal on the CPU: python -m benchmarks.hardware.check --kind CPU"
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = run(steps(arguments.kind, arguments.seconds), lambda text: print(text, flush=True))
    path = FOLDER / "report.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    rows = [row for row in results.values() if "ratio" in row]
    print(Report("hw-check", "a server beside a bare loop", rows).table())
    failed = [name for name, row in results.items() if row.get("failed")]
    print(f"written to {path.relative_to(ROOT)}; nothing was sent. docs/hardware.md says how to send it")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
