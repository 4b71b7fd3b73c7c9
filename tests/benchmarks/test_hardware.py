"""`make hw-check` without a GPU: its steps, its report, and a rehearsal on the CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format

from benchmarks.hardware import check, facts, models, programs, readings, serving, verdicts
from edge_serve.backends.onnxruntime.providers import providers
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.json_form import model_config_to_json
from edge_serve.devices.find import find_devices
from tests.devices import stand_in

ROOT = Path(__file__).parents[2]


def test_failed_step_is_part_of_the_report_and_the_others_run() -> None:
    def fail() -> None:
        raise RuntimeError("no TensorRT here")

    lines: list[str] = []
    found = check.run({"first": fail, "second": lambda: {"ratio": 1.0}}, lines.append)

    assert found == {
        "first": {"failed": "RuntimeError: no TensorRT here"}, "second": {"ratio": 1.0}, "verdicts": [],
    }  # fmt: skip
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


def test_step_that_cannot_be_run_here_is_skipped_with_its_reason() -> None:
    lines: list[str] = []
    todo = {"examples": check.steps("GPU", 1.0)["cudashm examples"]}

    found = check.run(todo, lines.append)

    assert "--triton-examples" in found["examples"]["skipped"]
    assert found["verdicts"] == []
    assert "skipped: examples: no examples of Triton" in check.summary(found)


def test_plan_that_tensorrt_has_no_option_for_is_skipped_with_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 11 on the types in the file decide, and our networks are FP32."""
    text = "precision FP16 cannot be asked for: from TensorRT 11 (this is 11.4.1) the types in the ONNX file decide"
    refused = subprocess.CompletedProcess((), 1, "", text)
    monkeypatch.setattr(check, "FOLDER", tmp_path)
    monkeypatch.setattr(models, "ends", lambda name: ("X", ["Y"]))
    monkeypatch.setattr(models, "onnx_file", lambda name: tmp_path / "m.onnx")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **more: refused)
    check.plan("resnet50", "fp16").parent.mkdir()
    check.plan("resnet50", "fp16").touch()  # of a run before
    wanted = check.steps("GPU", 1.0)

    found = check.run({name: step for name, step in wanted.items() if "resnet50 fp16" in name}, lambda text: None)

    assert len(found) == 6
    assert all("skipped" in result for name, result in found.items() if name != "verdicts"), found


def test_figures_get_a_verdict_beside_their_limit() -> None:
    results = {
        "onnx heavy": {"ratio": 0.96, "bare loop /s": 900.0, "server's own ms (median)": 0.41},
        "onnx squeezenet": {"ratio": 0.5, "bare loop /s": 9000.0},
        "tensorrt resnet50 fp16, graphs": {"ratio": 0.94, "bare loop /s": 9000.0},
        "tensorrt resnet50 fp16: equal": {"largest difference": 9e-3},
        "metrics": {"nv_gpu_utilization": 0.5, "nv_gpu_utilization off": 0.06},
        "sanitizer": {"errors": 0, "processes": 3},
        "tensorrt resnet50": {"failed": "RuntimeError: no TensorRT"},
    }

    found = [(row["step"], row["figure"], row["wanted"], row["verdict"]) for row in verdicts.judge(results)]

    assert found == [
        ("onnx heavy", "ratio", "at least 0.95", "reached"),
        ("onnx heavy", "server's own ms (median)", "at most 0.4", "missed"),
        ("tensorrt resnet50 fp16, graphs", "ratio", "at least 0.95", "missed"),
        ("tensorrt resnet50 fp16: equal", "largest difference", "at most 0.01", "reached"),
        ("metrics", "nv_gpu_utilization off", "at most 0.05", "missed"),
        ("sanitizer", "errors", "at most 0", "reached"),
    ]


def test_figures_of_the_tests_are_in_the_report() -> None:
    text = (
        '<a><testcase classname="tests.gpu" name="one"><properties><property name="MiB of a CUDA context" value="300"/>'
        '</properties></testcase><testcase classname="tests.gpu" name="two"><skipped message="no GPU"/></testcase>'
        '<testcase classname="tests.gpu" name="three"><failure message="wrong"/></testcase></a>'
    )
    assert programs.told(ET.fromstring(text).iter("testcase")) == {
        "passed": 1,
        "failed": ["tests.gpu::three: wrong"],
        "skipped tests": ["tests.gpu::two: no GPU"],
        "figures": {"MiB of a CUDA context": "300"},
    }


def test_errors_that_compute_sanitizer_reports_are_counted() -> None:
    output = (
        "========= COMPUTE-SANITIZER\n1 passed\n========= Invalid __global__ write of size 4 bytes\n"
        "========= ERROR SUMMARY: 2 errors\n========= ERROR SUMMARY: 1 error\n"
    )
    assert programs.sanitizer_summary(output) == {
        "processes": 2, "errors": 3, "first errors": ["========= Invalid __global__ write of size 4 bytes"],
    }  # fmt: skip
    with pytest.raises(RuntimeError, match="reported no process"):
        programs.sanitizer_summary("Target application terminated before first instrumented API call")


def test_metrics_are_compared_with_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text('#!/bin/sh\necho "100, 1000, 50, 200.00, [N/A]"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    page = (
        '# TYPE nv_gpu_utilization gauge\nnv_gpu_utilization{gpu_uuid="GPU-a"} 0.52\n'
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 104857600\nnv_gpu_power_usage{gpu_uuid="GPU-a"} 300\n'
        'nv_gpu_power_limit{gpu_uuid="GPU-a"} 700\nnv_gpu_utilization{gpu_uuid="GPU-b"} 0.9\n'
    )
    uuid, ours = readings.of_page(page)
    theirs = readings.nvidia_smi(uuid)
    samples = [readings.Sample(at, {**ours, readings.ENERGY: 210.0 * at}, theirs) for at in (1.0, 2.0, 5.0)]

    row = readings.differences(samples)

    assert row["missing"] == ["nv_gpu_memory_total_bytes"]
    assert (uuid, readings.of_page("")) == ("GPU-a", ("", {}))
    assert {name: value for name, value in row.items() if name.endswith("off")} == pytest.approx(
        {
            "nv_gpu_memory_used_bytes off": 0.0, "nv_gpu_utilization off": 0.04, "nv_gpu_power_usage off": 0.5,
            "nv_energy_consumption off": 0.05,
        }
    )  # fmt: skip


def test_answers_of_a_gpu_are_compared_without_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rounds operands to 10 bits, and so differs by more than the limit."""
    (tmp_path / "file.onnx").touch()
    monkeypatch.setattr(models, "onnx_file", lambda name: tmp_path / "file.onnx")
    models.write(tmp_path, "m", "GPU", tf32=False)

    config = model_config_to_json(text_format.Parse((tmp_path / "m/config.pbtxt").read_text(), pb.ModelConfig()))

    assert providers(config, "GPU", 0)[0].options["use_tf32"] == "0"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_networks_answer_each_input_differently() -> None:
    """Otherwise the comparison of answers shows nothing."""
    for name in (*models.NAMES, models.SIZES, models.PLACES, "resnet50-2-times"):
        session = onnxruntime.InferenceSession(models.onnx_file(name), providers=[("CPUExecutionProvider", {})])
        source, outputs = models.ends(name)
        first, second = (
            session.run(outputs, {source: models.rows(1, seed, models.measured(name))})[0] for seed in (1, 2)
        )
        assert np.abs(first - second).max() > 2e-3, name


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_rehearsal_on_the_cpu() -> None:
    row = serving.beside_loop("squeezenet", "CPU", 4.0)  # on a busy machine 32 requests take longer than a second
    assert row["served /s"] > 1
    assert row["mean batch"] > 1
    assert row["one seat /s"] > 1
    assert row["bare loop /s"] > 1
    assert 0 < row["server's own ms (median)"] <= row["server's own ms (p99)"]
    assert serving.largest_difference("squeezenet", "CPU") < 1e-5
    assert models.rows(2).shape == (2, 3, 224, 224)
    assert models.rows(2).dtype == np.float32


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_plans_are_built_and_served_on_the_stand_ins(tmp_path: Path) -> None:
    code = (
        "from benchmarks.hardware import bare_loop, check, models, serving\n"
        "name = 'squeezenet'\n"
        "check.FOLDER = __import__('pathlib').Path(__import__('sys').argv[1])\n"
        "if __name__ == '__main__':\n"
        "    assert check.build(name, 'fp16')['plan bytes']\n"
        "    assert check.equal(name, 'GPU', check.plan(name, 'fp16'))['largest difference'] < 1e-5\n"
        "    row = serving.beside_loop(name, 'GPU', 1.0, check.plan(name, 'fp16'), graphs=True)\n"
        "    assert row['mean batch'] > 1 and row['bare loop /s'] > 1, row\n"
        "    for name in (models.SIZES, models.PLACES):\n"
        "        assert check.build(name)['plan bytes']\n"
        "        assert check.equal(name, 'GPU', check.plan(name))['largest difference'] < 1e-5\n"
        "    places = check.plan(models.PLACES)\n"
        "    assert bare_loop.measure(places, 'GPU', 1.0, (1, *models.SHAPE)) > 0\n"
    )
    script = tmp_path / "rehearse.py"
    script.write_text(code)
    prefix = stand_in.prefix(stand_in.build(tmp_path), devices=1)
    command = [*prefix, f"PYTHONPATH={ROOT}/tests/stand_ins:{ROOT}", sys.executable, str(script), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
