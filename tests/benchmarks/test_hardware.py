"""`make hw-check` without a GPU: its steps, its report, and a rehearsal on the CPU."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.hardware import check, facts, models, serving
from edge_serve.devices.find import find_devices
from tests.devices import stand_in

ROOT = Path(__file__).parents[2]


def test_failed_step_is_part_of_the_report_and_the_others_run() -> None:
    def fail() -> None:
        raise RuntimeError("no TensorRT here")

    lines: list[str] = []
    found = check.run({"first": fail, "second": lambda: {"ratio": 1.0}}, lines.append)

    assert found == {"first": {"failed": "RuntimeError: no TensorRT here"}, "second": {"ratio": 1.0}}
    assert "    failed: no TensorRT here" in lines


def test_machine_without_gpu_says_what_to_do() -> None:
    if find_devices().found:
        pytest.skip("a GPU is here")
    done = subprocess.run([sys.executable, "-m", "benchmarks.hardware.check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no NVIDIA GPU was found" in done.stderr
    assert "edge-serve doctor" in done.stderr


def test_facts_name_neither_the_device_nor_its_owner() -> None:
    text = json.dumps(facts.collect())
    for private in (socket.gethostname(), str(Path.home()), str(ROOT), "GPU-"):
        assert private not in text


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_rehearsal_on_the_cpu() -> None:
    row = serving.beside_loop("squeezenet", "CPU", 1.0)
    assert row["served /s"] > 1
    assert row["mean batch"] > 1
    assert row["one seat /s"] > 1
    assert row["bare loop /s"] > 1
    assert serving.largest_difference("squeezenet", "CPU") < 1e-5
    assert models.rows(2).shape == (2, 3, 224, 224)
    assert models.rows(2).dtype == np.float32


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_plans_are_built_and_served_on_the_stand_ins(tmp_path: Path) -> None:
    code = (
        "from benchmarks.hardware import check, serving\n"
        "name = 'squeezenet'\n"
        "check.FOLDER = __import__('pathlib').Path(__import__('sys').argv[1])\n"
        "if __name__ == '__main__':\n"
        "    assert check.build(name, 'fp16')['plan bytes']\n"
        "    assert check.equal(name, 'GPU', check.plan(name, 'fp16'))['largest difference'] < 1e-5\n"
        "    row = serving.beside_loop(name, 'GPU', 1.0, check.plan(name, 'fp16'), graphs=True)\n"
        "    assert row['mean batch'] > 1 and row['bare loop /s'] > 1, row\n"
    )
    script = tmp_path / "rehearse.py"
    script.write_text(code)
    prefix = stand_in.prefix(stand_in.build(tmp_path), devices=1)
    command = [*prefix, f"PYTHONPATH={ROOT}/tests/stand_ins:{ROOT}", sys.executable, str(script), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
