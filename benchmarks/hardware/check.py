#!/usr/bin/env python3
"""Shows what only an owner's hardware can show: `make hw-check`. Writes build/hw-check/report.json.

The steps: facts of the machine, tests that need a GPU, metrics beside nvidia-smi, models of ONNX Runtime and of
TensorRT (built here) beside a bare loop, time to ready, boot, and power. Figures that the project requires get a
verdict. A step that fails, or that cannot be run here, is part of the report. Nothing is sent anywhere:
docs/hardware.md says how to send a report, and what is in it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.hardware import facts, models, programs, readings, serving, verdicts
from benchmarks.hardware.outcome import Skipped
from benchmarks.report import ROOT, Report, Row
from benchmarks.servers import edge_serve

FOLDER = ROOT / "build/hw-check"
Step = Callable[[], Any]


def build(name: str, precision: str = "") -> Row:
    """Build a plan twice: the second time it comes from the cache.

    Args:
        precision: "fp16", or "" = that of the file, without TF32.

    Raises:
        Skipped: TensorRT has no option for the precision.
        RuntimeError: there is no plan; the text says why.
    """
    tensor, path, seconds = models.ends(name)[0], plan(name, precision), []
    known, last = models.shapes(name), models.MAX_BATCH
    profile = (("min", (1, *known[0])), ("opt", (last, *models.measured(name))), ("max", (last, *known[-1])))
    shapes = [f"--{side}-shapes={tensor}:{'x'.join(map(str, shape))}" for side, shape in profile]
    if name == models.PLACES:  # its input has one shape
        shapes = []
    command = [
        sys.executable, "-m", "edge_serve", "build", str(models.onnx_file(name)), "--output", str(path), "--json",
        "--cache", str(FOLDER / "cache"), *shapes, f"--{precision or 'no-tf32'}",
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of a run before
    for _ in range(2):
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000)
        if done.returncode:
            text = (done.stderr or done.stdout).strip()
            kind = Skipped if "cannot be asked for: from TensorRT 11" in text else RuntimeError
            raise kind(f"edge-serve build: {text[-800:]}")
        seconds.append(time.monotonic() - started)
    size = path.stat().st_size
    return {"model": name, "build s": seconds[0], "from the cache s": seconds[1], "plan bytes": size}


def plan(name: str, precision: str = "") -> Path:
    """Return the place of a model's plan."""
    return FOLDER / name / f"model{precision and '_'}{precision}.plan"


def needs(plans: Sequence[Path], step: Step) -> Any:
    """Run a step with plans.

    Raises:
        Skipped: one of them was not built.
    """
    if missing := [path.name for path in plans if not path.exists()]:
        raise Skipped(f"{missing[0]} was not built: see the step that builds it")
    return step()


def start(kind: str, plans: bool) -> Row:
    """Measure the time from the start of the process to ready, with all models."""
    with tempfile.TemporaryDirectory(prefix="hw-check-") as folder:
        for name in models.NAMES:
            models.write(Path(folder), name, kind, plan(name) if plans else None)
        with edge_serve(Path(folder)) as server:
            return {"ready s": server.start_seconds, "idle power W": readings.means(server, 5).get(readings.POWER)}


def equal(name: str, kind: str, of: Path | None = None, most: float = 1e-3, *, graphs: bool = False) -> Row:
    """Compare served answers with ONNX Runtime's on the CPU.

    Raises:
        RuntimeError: they differ by more than `most`.
    """
    found = serving.largest_difference(name, kind, of, graphs=graphs)
    if found > most:
        raise RuntimeError(f"answers differ from ONNX Runtime's on the CPU by {found:.2g}, expected at most {most:g}")
    return {"largest difference": found}


def steps(kind: str, seconds: float, examples: Path | None = None) -> dict[str, Step]:
    """Return the steps in their order.

    Args:
        kind: GPU or CPU.
        examples: the folder with Triton's examples; None = that step is skipped.
    """
    told: dict[str, Step] = {"facts": facts.collect, "boot": facts.boot, "tests": programs.tests}
    told["cudashm examples"] = partial(programs.cudashm_examples, examples, kind)
    told["metrics"] = partial(readings.beside_nvidia_smi, serving.under_load, "resnet50", kind, seconds)
    for name in (*models.NAMES, models.SIZES, models.PLACES):
        told[f"onnx {name}: equal"] = partial(equal, name, kind)
        told[f"onnx {name}"] = partial(serving.beside_loop, name, kind, seconds)
    told["onnx heavy"] = partial(serving.heavy, kind, seconds)
    told["onnx: start"] = partial(start, kind, False)
    if kind == "GPU":
        for name in models.NAMES:
            told |= _of_plan(name, seconds, "", graphs=True) | _of_plan(name, seconds, "fp16", graphs=True)
        told |= _of_plan(models.SIZES, seconds, "", graphs=True) | _of_plan(models.PLACES, seconds, "", graphs=False)
        told["tensorrt: start"] = partial(needs, [plan(name) for name in models.NAMES], partial(start, kind, True))
        told["sanitizer"] = programs.sanitizer
    return told


def _of_plan(name: str, seconds: float, precision: str, *, graphs: bool) -> dict[str, Step]:
    """Return the steps of a plan: without CUDA graphs, and with them if `graphs`."""
    most, path = (1e-2 if precision else 1e-3), plan(name, precision)
    step = f"tensorrt {name} {precision}".rstrip()
    told: dict[str, Step] = {f"{step}: build": partial(build, name, precision)}
    for suffix, captured in ((step, False), (f"{step}, graphs", True))[: 2 if graphs else 1]:
        compared = partial(equal, name, "GPU", path, most, graphs=captured)
        measured = partial(serving.beside_loop, name, "GPU", seconds, path, graphs=captured)
        told |= {f"{suffix}: equal": partial(needs, [path], compared), suffix: partial(needs, [path], measured)}
    return told


def run(todo: dict[str, Step], note: Callable[[str], None] = print) -> dict[str, Any]:
    """Run the steps one after the other; an error is its step's result, and the others still run.

    Figures with a limit come last, under "verdicts".
    """
    results: dict[str, Any] = {}
    for number, (name, step) in enumerate(todo.items(), 1):
        note(f"[{number}/{len(todo)}] {name} ...")
        started = time.monotonic()
        try:
            results[name] = step()
        except Skipped as reason:
            results[name] = {"skipped": str(reason)}
            note(f"    skipped: {reason}")
        except Exception as error:
            results[name] = {"failed": f"{type(error).__name__}: {error}"}
            note(f"    failed: {error}")
        note(f"    {time.monotonic() - started:.0f} s")
    return {**results, "verdicts": verdicts.judge(results)}


def main() -> None:
    """Run all steps and write the report; exit 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("GPU", "CPU"), default="GPU", help="CPU: a rehearsal without a GPU")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default: 10)")
    parser.add_argument("--only", default="", help="regular expression of the steps to run (default: all)")
    parser.add_argument("--triton-examples", type=Path, help=f"folder with Triton's Python examples: {programs.SOURCE}")
    arguments = parser.parse_args()
    if arguments.kind == "GPU" and not (found := facts.collect())["gpus"]:
        raise SystemExit(
            f"no NVIDIA GPU was found{': ' if found['gpu_problem'] else ''}{found['gpu_problem']}\n"
            "`edge-serve doctor` says more; a rehearsal on the CPU: python -m benchmarks.hardware.check --kind CPU"
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = steps(arguments.kind, arguments.seconds, arguments.triton_examples)
    todo = {name: step for name, step in wanted.items() if re.search(arguments.only, name)}
    results = run(todo, lambda text: print(text, flush=True))
    path = FOLDER / "report.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(summary(results))
    print(f"written to {path.relative_to(ROOT)}; nothing was sent. docs/hardware.md says how to send it")
    if failed := [name for name in todo if results[name].get("failed")]:
        raise SystemExit(f"failed: {', '.join(failed)}")


def summary(results: dict[str, Any]) -> str:
    """Return the measured rows, the verdicts, and the steps that were skipped."""
    rows = [row for name, row in results.items() if name != "verdicts" and "ratio" in row]
    skipped = [f"skipped: {name}: {row['skipped']}" for name, row in results.items() if "skipped" in row]
    tables = [Report("hw-check", "a server beside a bare loop", rows).table()]
    tables += [Report("hw-check", "required figures", results["verdicts"]).table(), *skipped]
    return "\n".join(tables)


if __name__ == "__main__":
    main()
