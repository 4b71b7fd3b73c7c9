"""The committed quickstart models are what their script makes, and compute what Triton's do."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

REPOSITORY = Path(__file__).parents[2] / "model_repository"
NUMBERS = np.arange(16)


def script(name: str) -> ModuleType:
    """A script of the model repository, which is no package."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_models = script("make_models")


def run(model: str, **inputs: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(REPOSITORY / model / "1/model.onnx", providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


@pytest.mark.parametrize("name", make_models.MODELS)
def test_the_committed_file_is_what_the_script_makes(name: str) -> None:
    committed = onnx.load(REPOSITORY / name / "1/model.onnx")
    assert committed == make_models.MODELS[name]()


def test_the_script_writes_into_a_folder(tmp_path: Path) -> None:
    make_models.main(tmp_path)
    assert sorted(path.parent.parent.name for path in tmp_path.glob("*/1/model.onnx")) == sorted(make_models.MODELS)


@pytest.mark.parametrize(("name", "kind"), [("simple", np.int32), ("simple_int8", np.int8)])
def test_sum_and_difference(name: str, kind: Any) -> None:
    first, second = np.stack([NUMBERS, NUMBERS * 2]).astype(kind), np.ones((2, 16), kind)
    total, difference = run(name, INPUT0=first, INPUT1=second)
    assert total.dtype == kind
    np.testing.assert_array_equal(total, first + second)
    np.testing.assert_array_equal(difference, first - second)


def test_sum_and_difference_of_strings() -> None:
    first = np.array([[str(number) for number in NUMBERS]], object)
    total, difference = run("simple_string", INPUT0=first, INPUT1=np.full((1, 16), "1", object))
    assert [int(text) for text in total[0]] == list(NUMBERS + 1)
    assert [int(text) for text in difference[0]] == list(NUMBERS - 1)


def test_the_string_sample_is_sixteen_numbers() -> None:
    data, found = (REPOSITORY / "simple_string/warmup/numbers").read_bytes(), []
    while data:
        (length,) = struct.unpack_from("<I", data)
        found.append(int(data[4 : 4 + length]))
        data = data[4 + length :]
    assert found == list(range(16))


@pytest.mark.parametrize(("ready", "start", "output"), [(1, 0, 5), (1, 1, 6), (0, 1, 0)])
def test_sequence(ready: int, start: int, output: int) -> None:
    numbers = {"INPUT": 5, "START": start, "READY": ready}
    (found,) = run("simple_sequence", **{name: np.array([[value]], np.int32) for name, value in numbers.items()})
    assert found.tolist() == [[output]]


@pytest.mark.parametrize(("end", "output"), [(0, 6), (1, 1006)])
def test_dyna_sequence(end: int, output: int) -> None:
    numbers = {"INPUT": 5, "START": 1, "READY": 1, "END": end}
    inputs = {name: np.array([[value]], np.int32) for name, value in numbers.items()}
    (found,) = run("simple_dyna_sequence", CORRID=np.array([[1000]], np.uint64), **inputs)
    assert found.tolist() == [[output]]


def made_by_script(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "make_models.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ}, check=False)


def test_the_script_prints_help_and_makes_no_folder_named_after_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert "[folder]" in made_by_script("--help").stdout
    assert list(tmp_path.iterdir()) == []


def test_the_script_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "onnx.py").write_text("raise ImportError(\"No module named 'onnx'\")\n")
    done = made_by_script(PYTHONPATH=str(tmp_path))

    assert done.returncode == 1
    assert done.stderr.startswith("make_models: No module named 'onnx'; the package onnx is needed: pip install onnx")
    assert "Traceback" not in done.stderr
