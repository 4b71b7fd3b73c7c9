"""`edge-serve check`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.forked import program
from tests.server.running import PATIENCE, python_model


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge_serve", *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


def onnx_model(root: Path, name: str, config: str) -> None:
    """Identity of FP32 [batch, 4] under a configuration."""
    (root / name / "1").mkdir(parents=True)
    sides = [helper.make_tensor_value_info(side, TensorProto.FLOAT, ["batch", 4]) for side in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("Identity", ["IN"], ["OUT"])], name, sides[:1], sides[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, root / name / "1" / "model.onnx")
    (root / name / "config.pbtxt").write_text(config)


def test_check_shows_declared_beside_found_and_the_line(tmp_path: Path) -> None:
    onnx_model(
        tmp_path,
        "wrong",
        'platform: "onnxruntime_onnx"  # INT32 would not do\nmax_batch_size: 4\n'
        'input { name: "IN" data_type: TYPE_FP32 dims: [ 5 ] }\n'
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }\n',
    )
    python_model(tmp_path, "good")
    python_model(tmp_path, "typo", config="max_batch: 3\n")

    done = program("check", str(tmp_path))

    assert done.status == 1
    lines = done.output.splitlines()
    assert any(line.startswith("ok      good") for line in lines)
    assert any(
        "input IN" in line and "[-1, 5]" in line and "[-1, 4]" in line and "config.pbtxt line 3" in line
        for line in lines
    )
    assert not any("output OUT" in line and "differs" in line for line in lines)
    assert "did you mean 'max_batch_size'" in done.output
    assert lines[-1] == "1 of 3 models can be served"
    assert "Traceback" not in done.output


def test_check_of_a_sound_repository_succeeds(tmp_path: Path) -> None:
    onnx_model(tmp_path, "fine", 'platform: "onnxruntime_onnx"\n')

    assert program("check", str(tmp_path)).status == 0


def test_check_names_a_directory_that_the_server_leaves_out_for_its_name(tmp_path: Path) -> None:
    python_model(tmp_path, "good")
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")

    done = program("check", str(tmp_path))

    assert done.status == 1
    failed = done.output.partition("FAILED")[2]
    assert r"'caf\udce9'" in failed
    assert "name is not UTF-8" in failed
    assert "rename it" in failed
    assert done.output.splitlines()[-1] == "1 of 2 models can be served"


def test_check_of_a_repository_without_models_fails(tmp_path: Path) -> None:
    done = program("check", str(tmp_path))
    assert (done.status, done.output) == (
        1, f"edge-serve: '{tmp_path}' has no model directory, expected such as {tmp_path}/m/1/model.onnx\n"
    )  # fmt: skip


def test_the_way_from_an_onnx_file_to_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_model(tmp_path, "lin", "")
    monkeypatch.chdir(tmp_path)
    os.rename("lin/1/model.onnx", "lin.onnx")

    done = program("check", "lin.onnx")
    assert done.status == 1
    assert "'lin.onnx': Not a directory; expected a directory of models that this user can read" in done.output
    advised = shlex.split(done.output.partition("edge-serve init")[2])
    assert program("init", *advised).status == 0
    (tmp_path / "models/lin/v2").mkdir()
    done = program("check", "models")
    assert done.status == 0
    assert "note: lin/v2 is no version directory" in done.output


def test_a_repository_that_is_not_there_is_one_line() -> None:
    done = command("check", "/no/such/place")

    assert done.returncode == 1
    assert done.stderr.startswith("edge-serve: ")
    assert len(done.stderr.splitlines()) == 1


def test_names_of_tensors_do_not_reach_the_terminal_as_they_are(tmp_path: Path) -> None:
    onnx_model(tmp_path, "wrong", 'platform: "onnxruntime_onnx"\n')
    evil = "IN\x1b[31m\x9b\n"
    sides = [helper.make_tensor_value_info(side, TensorProto.FLOAT, ["batch", 4]) for side in (evil, "OUT")]
    graph = helper.make_graph([helper.make_node("Identity", [evil], ["OUT"])], "wrong", sides[:1], sides[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "wrong/1/model.onnx",
    )

    done = program("check", str(tmp_path))

    assert "input IN\\x1b[31m\\x9b\\n" in done.output
    assert not {"\x1b", "\x9b"} & set(done.output)


def test_text_that_the_output_cannot_encode_is_escaped(tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [sys.executable, "-m", "edge_serve", "init", "thé", "--python", "--model-repository", str(tmp_path)]
    done = subprocess.run(command, env=variables, capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\xe9" in done.stdout
