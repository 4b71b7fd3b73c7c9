"""The whole command on the stand-ins for CUDA and TensorRT, whose plans compute what ONNX Runtime computes."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.convert import candidate, command
from edge_serve.convert.command import Row, document, run
from edge_serve.convert.trial import Difference, Trial
from edge_serve.devices.device import Gpu, Gpus
from tests.backends.onnx_models import FLOAT, HALF, node, save
from tests.devices import stand_in

ROOT = Path(__file__).parents[2]
STAND_INS = ROOT / "tests/stand_ins"
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 10


def network(path: Path, weights: Any = WEIGHTS) -> Path:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    return save(path, nodes, {"x": (FLOAT, ("N", 4))}, {"y": (FLOAT, ("N", 3))}, {"w": weights})


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with net.onnx, wrong.onnx (other weights), and inputs.npz."""
    network(tmp_path / "net.onnx")
    network(tmp_path / "wrong.onnx", WEIGHTS + 1)
    np.savez(tmp_path / "inputs.npz", x=np.random.default_rng(1).random((5, 4), np.float32))
    return tmp_path


def edge_serve(library: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = [f"{name}={value}" for name, value in environment.items()]
    prefix = [*stand_in.prefix(library, devices=1), f"PYTHONPATH={STAND_INS}:{ROOT}", *variables]
    command = [*prefix, sys.executable, "-m", "edge_serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def convert(library: Path, files: Path, *more: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    arguments = ["convert", "net", "--onnx", f"{files}/net.onnx", "--inputs", f"{files}/inputs.npz", "--json"]
    arguments += ["--model-repository", f"{files}/models", "--cache", f"{files}/cache", *more]
    done = edge_serve(library, *arguments, **environment)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.slow
def test_fastest_precision_within_its_tolerance_is_written_and_passes_its_golden_test(
    library: Path, files: Path
) -> None:
    status, found, _ = convert(library, files, "--onnx-for", f"fp16={files}/wrong.onnx")

    assert (status, found["kept"] in ("fp32", "tf32")) == (0, True)
    reference, single, rounded, half = found["precisions"]
    assert reference["precision"] == "onnxruntime"
    assert single["fits"]
    assert single["largest"] < 1e-6
    assert (single["rtol"], single["values"]) == (1e-3, 15)
    assert (rounded["precision"], rounded["rtol"], rounded["fits"]) == ("tf32", 1e-2, True)
    assert not half["fits"]
    assert half["beyond"] == 15
    assert half["largest"] > 1
    model = files / "models/net"
    assert {one.name for one in (model / "1").iterdir()} == {"model.plan", "model.plan.meta.json"}
    checked = edge_serve(library, "check", f"{files}/models")
    assert "5 samples as recorded" in checked.stdout, checked.stdout + checked.stderr


@pytest.mark.slow
def test_nothing_is_written_if_no_precision_fits(library: Path, files: Path) -> None:
    status, found, _ = convert(library, files, "--precisions=fp16", "--onnx-for", f"fp16={files}/wrong.onnx")
    assert status == 1
    assert "no precision has answers within its tolerance" in found["error"]
    assert not (files / "models").exists()


@pytest.mark.slow
def test_a_build_that_fails_is_a_row_and_the_others_go_on(library: Path, files: Path) -> None:
    (files / "broken.onnx").write_bytes(b"not a model")
    status, found, _ = convert(library, files, "--onnx-for", f"fp16={files}/broken.onnx")
    assert (status, found["kept"] in ("fp32", "tf32")) == (0, True)
    assert found["precisions"][3]["problem"]


@pytest.mark.slow
def test_precision_flags_of_tensorrt_11_are_refused_with_the_way_out(library: Path, files: Path) -> None:
    status, found, _ = convert(library, files, "--precisions=fp16", STAND_IN_TENSORRT="11.4.0")
    assert status == 1
    assert "export the model in this precision, and build that file" in found["precisions"][1]["problem"]

    half = files / "half.onnx"
    nodes = [
        node("Cast", ["x"], ["h"], to=HALF), node("MatMul", ["h", "w"], ["m"]), node("Relu", ["m"], ["r"]),
        node("Cast", ["r"], ["y"], to=FLOAT),
    ]  # fmt: skip
    ends = {"x": (FLOAT, ("N", 4))}, {"y": (FLOAT, ("N", 3))}
    save(half, nodes, *ends, {"w": WEIGHTS.astype(np.float16)})
    arguments = ("--precisions=fp16", "--onnx-for", f"fp16={half}")
    status, found, _ = convert(library, files, *arguments, STAND_IN_TENSORRT="11.4.0")
    assert (status, found["kept"]) == (0, "fp16"), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--onnx", "none.onnx"], "there is no such file"),
        (["--inputs", "none.npz"], "No such file"),
        (["--min-shapes", "x"], "expected INPUT:1x3x224x224"),
    ],
)
def test_bad_input_gives_one_line_and_leaves_nothing(library: Path, files: Path, more: list[str], text: str) -> None:
    status, found, errors = convert(library, files, *more)
    assert status == 1
    assert text in found["error"] + "".join(one["problem"] for one in found["precisions"])
    assert not errors
    assert not (files / "models").exists()


@pytest.mark.parametrize("option", ["--precisions=fp12", "--onnx-for=fp16", "--keep=best"])
def test_wrong_use_is_status_2(files: Path, option: str) -> None:
    command = [sys.executable, "-m", "edge_serve", "convert", "net", "--onnx=a", "--inputs=b", option]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "expected" in done.stderr or "choose from" in done.stderr


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--max-batch=0", "found '0', expected 1 to 1048576"),
        ("--max-batch=-1", "found '-1', expected 1 to 1048576"),
        ("--max-batch=99999999999999999999", "expected 1 to 1048576"),
        ("--samples=0", "found '0', expected 1 to 1048576"),
        ("--rtol=-1", "found '-1', expected a number from 0"),
        ("--atol=nan", "found 'nan', expected a number from 0"),
        ("--cache-mb=-1", "found '-1', expected 0 to"),
        ("--keep=int8", "--keep names int8, which is not tried: --precisions=fp32,tf32,fp16,int8"),
        ("--onnx-for=bf16=a", "--onnx-for names bf16, which is not tried: --precisions=fp32,tf32,fp16,bf16"),
    ],
)
def test_values_that_an_option_cannot_have_are_refused_at_once(
    option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["net", "--onnx=a", "--inputs=b", option])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.slow
def test_failed_builds_are_not_reported_as_wrong_answers(library: Path, files: Path) -> None:
    status, found, _ = convert(library, files, "--precisions=fp32,fp32", "--dla-core=3")
    assert status == 1
    assert found["error"] == "fp32 cannot be built or run: nothing was written"
    assert "DLA core 3 was asked for, and this device has 2" in found["precisions"][1]["problem"]


@pytest.mark.parametrize(
    ("capability", "tried"),
    [((7, 2), ["fp32", "fp16"]), ((8, 7), ["fp32", "tf32", "fp16"]), (None, ["fp32", "tf32", "fp16"])],
)
def test_tf32_is_not_tried_where_it_is_fp32(capability: tuple[int, int] | None, tried: list[str]) -> None:
    found = () if capability is None else (Gpu(0, "Xavier", "GPU-1", capability, 1 << 30),)
    assert candidate.default_precisions(Gpus(found)) == tried


def test_only_the_precision_of_all_bits_is_held_to_a_thousandth() -> None:
    """TensorRT rounds the operands of FP32 products to 10 bits, unless it is told not to."""
    options = {name: one.tf32 for name, one in candidate.PRECISIONS.items()}
    assert options == {"fp32": False, "tf32": True, "fp16": True, "bf16": True, "int8": True}
    assert [name for name, (rtol, _) in candidate.TOLERANCES.items() if rtol < 1e-2] == ["fp32"]


def test_differences_without_a_number_are_null_in_json() -> None:
    row = Row("fp16", trial=Trial([], 1.0, 1.0), difference=Difference(math.inf, math.inf, 1, 1))
    text = json.dumps(document([row], "", "", "none fits"), allow_nan=False)
    (found,) = json.loads(text)["precisions"]
    assert (found["largest"], found["relative"], found["beyond"]) == (None, None, 1)


def test_a_model_that_cannot_be_copied_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def copy(*_: object) -> tuple[str, str]:
        raise shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")])

    monkeypatch.setattr(command, "_convert", copy)
    assert command.run(["net", "--onnx=a", "--inputs=b", f"--model-repository={tmp_path}"]) == 1
    said = capsys.readouterr().err
    assert said == "edge-serve: cannot write the model: [Errno 28] No space left on device: 'b'\n"
