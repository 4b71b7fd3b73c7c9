"""Describes the engines of a TensorRT model: from the engine where TensorRT is installed, else from `plan.meta.json`.

The engine is read in a process of its own, `python -m edge_serve.check.engine PLAN MODEL SETTINGS`, which prints JSON:
TensorRT may end the process that calls it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from edge_serve.backends.tensorrt.engine import DATA_TYPES, Range, read_engine
from edge_serve.backends.tensorrt.errors import failure
from edge_serve.backends.tensorrt.library import load_library, load_plugins, make_runtime
from edge_serve.backends.tensorrt.plan import DEFAULT_FILENAME, PlanMeta, Step, read_meta
from edge_serve.backends.tensorrt.settings import backend_settings
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import EdgeServeError
from edge_serve.messages.tensors import shape_text
from edge_serve.records import slotted
from edge_serve.workers.launch.interpreter import own_interpreter

BACKENDS = ("tensorrt", "tensorrt_plan")
#: input -> `min`, `opt` and `max` of its shape, or of the values of a shape tensor
Spans = Mapping[str, Mapping[str, Sequence[int]]]
#: how long it may take to read an engine: a context of CUDA alone takes seconds on a small device
READ_SECONDS = 120.0


@slotted
class EngineReport:
    """One plan of a model.

    Attributes:
        source: of tensors and profiles: `engine`, or `meta` (the file beside the plan); "" = neither could be read.
        problem: why the engine itself was not read; "" = it was.
        tensors: `input INPUT0 FLOAT [-1,4]`; profiles: `0: INPUT0 [1,4] to [8,4], best [4,4]`.
        context_bytes: memory of the device that each context takes; 0 = unknown.
        installed: the TensorRT here; "" = none could be loaded.
    """

    plan: str
    plan_bytes: int
    source: str = ""
    problem: str = ""
    tensors: list[str] = field(default_factory=list)
    profiles: list[str] = field(default_factory=list)
    context_bytes: int = 0
    installed: str = ""
    meta: PlanMeta | None = None


def describe_engines(
    version_directory: Path, config: pb.ModelConfig, settings: Mapping[str, str] | None = None
) -> list[EngineReport]:
    """Describe each plan of a version that the configuration names and that is there. Blocks: in a thread.

    Args:
        settings: of the backend (`--backend-config`).
    """
    names = [config.default_model_filename or DEFAULT_FILENAME, *config.cc_model_filenames.values()]
    plans = [version_directory / name for name in dict.fromkeys(names)]
    return [_describe(plan, config.name, settings or {}) for plan in plans if plan.is_file()]


def _describe(plan: Path, model: str, settings: Mapping[str, str]) -> EngineReport:
    report = EngineReport(plan.name, plan.stat().st_size)
    try:
        report.meta = read_meta(plan, model)
    except EdgeServeError as error:
        report.problem = error.message
        return report
    read, spans = _read(plan, model, settings), list[Spans]()
    report.installed, report.problem = str(read.get("tensorrt", "")), str(read.get("problem", ""))
    if not report.problem:
        report.source, report.context_bytes = "engine", int(read["device_memory_bytes"])
        report.tensors = [_tensor_text(one) for one in read["tensors"]]
        values = [{f"values of {name}": span for name, span in one["values"].items()} for one in read["profiles"]]
        spans = [one["shapes"] | more for one, more in zip(read["profiles"], values, strict=True)]
    elif report.meta is not None:
        report.source = "meta"
        spans = [{name: _span(shapes) for name, shapes in one.items()} for one in report.meta.profiles]
    report.profiles = [_profile_text(number, one) for number, one in enumerate(spans)]
    return report


def _span(shapes: Sequence[Sequence[int]]) -> dict[str, Sequence[int]]:
    return dict(zip(("min", "opt", "max"), shapes, strict=False))


def _read(plan: Path, model: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return what the process of its own printed; `problem` = why the engine cannot be read."""
    interpreter = own_interpreter()
    try:
        done = subprocess.run(
            [*interpreter.command, __name__, str(plan), model, json.dumps(settings)], env=interpreter.variables,
            capture_output=True, text=True, errors="replace", timeout=READ_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"problem": f"TensorRT did not read it within {READ_SECONDS:g} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip()[-300:]
        return {"problem": f"the process that read it ended with status {done.returncode}: {said}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _tensor_text(tensor: Mapping[str, Any]) -> str:
    side = "input" if tensor["is_input"] else "output"
    kind = DATA_TYPES.get(tensor["kind"]) or f"{tensor['kind']} (cannot be served)"
    marks = [tensor["format"]] if tensor["format"] != "LINEAR" else []
    marks += ["shape tensor"] if tensor["is_shape"] else []
    return f"{side} {tensor['name']} {kind} {shape_text(tensor['shape'])}" + (f" ({', '.join(marks)})" if marks else "")


def _profile_text(number: int, spans: Spans) -> str:
    ranges = []
    for name, span in spans.items():
        least, best, most = (tuple(span.get(key, ())) for key in ("min", "opt", "max"))
        best_text = f", best {shape_text(best)}" if least != most else ""
        ranges.append(f"{name} {Range(least, best, most)}{best_text}")
    return f"{number}: {'; '.join(ranges)}"


def engine_lines(report: EngineReport) -> Iterator[str]:
    """Yield a report for a person."""
    meta = report.meta
    facts = [f"{report.plan}, {report.plan_bytes / 2**20:.1f} MiB"]
    if meta is not None:
        device = f" ({meta.device})" if meta.device else ""
        facts += [f"built by TensorRT {meta.tensorrt} for compute capability {meta.capability}{device}"]
        facts += [f"flags {', '.join(meta.flags)}"] if meta.flags else []
        facts += [f"from ONNX {meta.onnx_sha256[:12]}"] if meta.onnx_sha256 else []
    if report.installed:
        facts.append(f"TensorRT {report.installed} is installed")
    if report.context_bytes:
        facts.append(f"{report.context_bytes / 2**20:.0f} MiB for each context")
    yield f"engine {', '.join(facts)}"
    if report.problem:
        instead = f"; from {report.plan}.meta.json:" if report.source == "meta" else ""
        yield f"  not read: {report.problem}{instead}"
    yield from (f"  {text}" for text in report.tensors)
    yield from (f"  profile {text}" for text in report.profiles)


def main(plan: Path, model: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the description of a plan's engine, or why there is none.

    Args:
        given: settings of the backend (`--backend-config`).
    """
    found: dict[str, Any] = {}
    try:
        settings = backend_settings(given)
        library = load_library(library=settings.library)
        found["tensorrt"] = library.version
        load_plugins(library, settings.plugins)
        runtime = make_runtime(library, model, -1, host_code=settings.version_compatible)
        engine = runtime.deserialize_cuda_engine(plan.read_bytes())
        if engine is None:
            raise failure(Step.ENGINE, library.errors.take(), model, plan=plan)
        return {**found, **asdict(read_engine(engine))}
    except EdgeServeError as error:
        return {**found, "problem": error.message}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))))
