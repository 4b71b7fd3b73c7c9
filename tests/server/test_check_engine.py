"""`edge-serve check` of TensorRT models, on the stand-ins for CUDA and TensorRT, and on a machine without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge_serve.backends.tensorrt.plan import PlanMeta, meta_path, write_meta
from edge_serve.check import engine
from edge_serve.check.engine import describe_engines, engine_lines
from edge_serve.config.model.text import parse_model_config
from tests.devices import stand_in
from tests.stand_ins.plans import plan, tensor

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parents[1] / "stand_ins"
RANGES = ((1, 4), (4, 4), (8, 4))
CONFIG = 'platform: "tensorrt_plan"\ninstance_group { kind: KIND_GPU }\n'


def write(root: Path, content: bytes, meta: PlanMeta | None = None, config: str = CONFIG) -> Path:
    folder = root / "model" / "1"
    folder.mkdir(parents=True)
    (folder / "model.plan").write_bytes(content)
    (root / "model/config.pbtxt").write_text(config)
    if meta is not None:
        write_meta(folder / "model.plan", meta)
    return folder


def identity(**more: Any) -> bytes:
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)), tensor("OUTPUT0", "OUTPUT", "HALF", (-1, 4))]
    profiles = [{"INPUT0": RANGES}, {"INPUT0": ((2, 4), (2, 4), (2, 4))}]
    return plan("identity", both, profiles, device_memory=3 << 20, **more)


META = PlanMeta("10.3.0", "8.7", "Orin", "ab" * 32, ({"INPUT0": RANGES},), ("FP16",), os.uname().machine)


LINES = [
    "engine model.plan, 0.0 MiB, built by TensorRT 10.3.0 for compute capability 8.7 (Orin), flags FP16, from ONNX "
    "abababababab, TensorRT 10.3.0 is installed, 3 MiB for each context",
    "input INPUT0 TYPE_FP32 [-1,4]",
    "output OUTPUT0 TYPE_FP16 [-1,4]",
    "profile 0: INPUT0 [1,4] to [8,4], best [4,4]",
    "profile 1: INPUT0 [2,4]",
]


def test_engine_is_read_where_tensorrt_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, identity(), META)
    monkeypatch.setenv("PYTHONPATH", f"{STAND_INS}:{ROOT}")

    (report,) = describe_engines(folder, parse_model_config('name: "model"'))

    assert (report.source, report.problem) == ("engine", "")
    assert [line.strip() for line in engine_lines(report)] == LINES


def test_engine_is_read_by_the_library_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, library = write(tmp_path / "models", identity()), tmp_path / "library"
    library.mkdir()
    (library / "tensorrt_rtx.py").write_text("from tensorrt import *\n__version__ = '1.2.0'\n")
    monkeypatch.setenv("PYTHONPATH", f"{library}:{STAND_INS}:{ROOT}")

    (report,) = describe_engines(folder, parse_model_config('name: "model"'), {"library": "tensorrt_rtx"})

    assert (report.source, report.installed, report.problem) == ("engine", "1.2.0", "")


@pytest.mark.slow
def test_engine_is_shown_beside_the_configuration(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    write(tmp_path / "models", identity(), META)
    environment = {**os.environ, **stand_in.environ(stand_in.build(library)), "PYTHONPATH": f"{STAND_INS}:{ROOT}"}

    command = [sys.executable, "-m", "edge_serve", "check", str(tmp_path / "models")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert any(line.startswith("input INPUT0") and line.endswith("TYPE_FP32 [-1, 4]") for line in lines)
    at = next(number for number, line in enumerate(lines) if line.startswith("engine"))
    assert lines[at : at + 5] == LINES


@pytest.mark.slow
def test_gpu_that_the_server_does_not_use_is_not_used_by_the_check(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    write(tmp_path / "models", identity(), META)
    variables = stand_in.environ(stand_in.build(library), devices=1, capability="5.3")

    command = [sys.executable, "-m", "edge_serve", "check", str(tmp_path / "models")]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)

    assert done.returncode == 1
    assert "--min-supported-compute-capability is 6, and GPU 0 has 5.3" in done.stdout


def test_without_tensorrt_the_file_beside_the_plan_is_shown(tmp_path: Path) -> None:
    folder = write(tmp_path, identity(), META)

    (report,) = describe_engines(folder, parse_model_config('name: "model"'))

    assert (report.source, report.profiles, report.tensors) == ("meta", ["0: INPUT0 [1,4] to [8,4], best [4,4]"], [])
    assert "CUDA cannot be used" in report.problem
    lines = list(engine_lines(report))
    assert lines[0].startswith("engine model.plan, 0.0 MiB, built by TensorRT 10.3.0 for compute capability 8.7 (Orin)")
    assert lines[1].endswith("; from model.plan.meta.json:")
    assert json.loads(json.dumps(report.profiles)) == report.profiles


def test_plans_of_several_devices_are_shown_and_missing_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_read", lambda plan, model, settings: {"problem": "no TensorRT"})
    folder = write(tmp_path, identity(), None)
    (folder / "orin.plan").write_bytes(b"x")
    config = 'cc_model_filenames { key: "8.7" value: "orin.plan" } cc_model_filenames { key: "9.0" value: "n" }'

    reports = describe_engines(folder, parse_model_config(f'name: "model" {config}'))

    assert [report.plan for report in reports] == ["model.plan", "orin.plan"]
    assert [report.source for report in reports] == ["", ""]


@pytest.mark.parametrize("text", ["{", '{"tensorrt": "10"}'])
def test_unreadable_file_beside_the_plan_is_reported(text: str, tmp_path: Path) -> None:
    folder = write(tmp_path, identity(), META)
    meta_path(folder / "model.plan").write_text(text)

    (report,) = describe_engines(folder, parse_model_config('name: "model"'))

    assert "model.plan.meta.json does not describe a plan" in report.problem
