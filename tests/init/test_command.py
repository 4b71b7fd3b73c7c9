"""`edge-serve init`: what it writes, what it refuses, and that nothing half written is left."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from edge_serve import cli
from edge_serve.config.stages import load_model_config
from edge_serve.init import ensemble
from edge_serve.init.directory import new_directory
from tests.forked import program
from tests.server.running import PATIENCE, python_model, start
from tests.server.test_commands import onnx_model


def init(repository: Path, *arguments: str) -> int:
    """Run the command in this process; its exit status."""
    return cli.main(["init", *arguments, "--model-repository", str(repository)])


def refusal(repository: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line of the error, after a check that nothing was written."""
    before = sorted(repository.rglob("*")) if repository.exists() else None
    capsys.readouterr()
    assert init(repository, *arguments) == 1
    captured = capsys.readouterr()
    assert (sorted(repository.rglob("*")) if repository.exists() else None) == before
    assert captured.out == ""
    assert captured.err.startswith("edge-serve: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_model_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not leave a directory that looks complete and has empty files."""
    synced: list[str] = []
    models, fsync, rename = tmp_path / "models", os.fsync, os.rename

    def record_sync(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def record_rename(source: Path, target: Path) -> None:
        synced.append("renamed")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", record_rename)
    assert init(models, "m", "--python") == 0
    before, after = synced[: synced.index("renamed")], synced[synced.index("renamed") + 1 :]
    assert {"config.pbtxt", "model.py", "1"} <= set(before)
    assert after == ["models", tmp_path.name]


def test_a_directory_that_cannot_be_synced_does_not_fail_a_model_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent may be written and searched, and not be read, as one of mode 733."""

    def refuse(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("edge_serve.init.directory.sync_directory", refuse)
    assert init(tmp_path / "models", "m", "--python") == 0
    assert (tmp_path / "models" / "m" / "config.pbtxt").exists()


def test_a_python_model_and_an_ensemble_of_two_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "models"
    assert init(models, "first", "--python") == 0
    assert init(models, "second", "--python") == 0
    capsys.readouterr()
    assert init(models, "both", "--ensemble", "first,second") == 0

    said = capsys.readouterr().out
    assert f"wrote {models}/both: 1/.gitkeep, config.pbtxt" in said
    assert f"edge-serve check {models} --model both --infer" in said
    assert "curl -s localhost:8000/v2/models/both/infer -d '{" in said
    config = load_model_config(models / "both", auto_complete=False)
    first, second = config.ensemble_scheduling.step
    assert (dict(first.input_map), dict(first.output_map)) == ({"INPUT": "INPUT"}, {"OUTPUT": "first_OUTPUT"})
    assert (dict(second.input_map), dict(second.output_map)) == ({"INPUT": "first_OUTPUT"}, {"OUTPUT": "OUTPUT"})
    assert config.max_batch_size == 8
    assert (models / "both").stat().st_mode & 0o700 == 0o700
    text = (models / "first" / "config.pbtxt").read_text()
    for word in ("max_batch_size: 8", "dynamic_batching {", "instance_group [", "#model_warmup [", "# https://"):
        assert word in text
    for file in (models / "first").rglob("*"):  # pip installs no pages of ours
        assert not file.is_file() or "docs/" not in file.read_text().replace("main/docs/", "")


def test_directories_that_are_no_models_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("environment", "good/1", ".hidden", "__pycache__"):
        (tmp_path / name).mkdir(parents=True)

    assert init(tmp_path, "first", "--python") == 0
    said = capsys.readouterr().out
    assert f"note: a server of '{tmp_path}' ends with an error, because these are no models: environment/. Keep" in said
    for name in "abcd":
        (tmp_path / name).mkdir()
    assert init(tmp_path, "second", "--python") == 0
    assert "no models: a/, b/, c/, d/ and others. Keep" in capsys.readouterr().out
    assert init(tmp_path / "own", "first", "--python") == 0
    assert "note:" not in capsys.readouterr().out


def test_the_warmup_in_comments_is_valid_when_it_is_uncommented(tmp_path: Path) -> None:
    assert init(tmp_path, "m", "--python") == 0
    file = tmp_path / "m" / "config.pbtxt"
    head, _, example = file.read_text().partition("#model_warmup")
    file.write_text(head + re.sub("^#", "", f"#model_warmup{example}", flags=re.MULTILINE))

    (sample,) = load_model_config(tmp_path / "m", auto_complete=False).model_warmup
    assert sample.inputs["INPUT"].dims == [1]


def test_mistakes_are_one_line_and_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "models"
    python_model(models, "there")
    (tmp_path / "file").touch()

    assert "'" + str(models / "there") + "' is there already" in refusal(models, capsys, "there", "--python")
    for name in ("a/b", "..", "", ".hidden", "line\nbreak"):
        assert "name" in refusal(models, capsys, name, "--python")
    assert "there is no such file" in refusal(models, capsys, "m", "--onnx", str(tmp_path / "none.onnx"))
    assert "not a file" in refusal(models, capsys, "m", "--onnx", str(tmp_path))
    said = refusal(models, capsys, "m", "--ensemble", "there,gone")
    assert "there is no model 'gone' in" in said
    assert "found there" in said
    assert "is the directory of a model" in refusal(models / "there", capsys, "m", "--python")
    assert "is no directory" in refusal(tmp_path / "file", capsys, "m", "--python")
    assert "there is no directory" in refusal(tmp_path / "no" / "models", capsys, "m", "--python")
    assert not (tmp_path / "no").exists()


def test_a_refused_command_removes_the_repository_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refusal(tmp_path / "new", capsys, "m", "--onnx", str(tmp_path / "none.onnx"))

    assert not (tmp_path / "new").exists()


def test_one_kind_must_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--python", "--onnx", "x"], ["--ensemble", ","]):
        with pytest.raises(SystemExit) as ended:
            init(tmp_path, "m", *arguments)
        assert ended.value.code == 2


def member(name: str, inputs: str, outputs: str, batch: int = 8) -> str:
    """Text of a configuration; tensors are written as NAME:TYPE:DIMS."""
    sides = [("input", one) for one in inputs.split()] + [("output", one) for one in outputs.split()]
    faces = [
        f'{side} {{ name: "{tensor}" data_type: TYPE_{kind} dims: [ {dims} ] }}'
        for side, (tensor, kind, dims) in ((side, one.split(":")) for side, one in sides)
    ]
    return f'name: "{name}" backend: "python" max_batch_size: {batch} ' + " ".join(faces)


def connected(tmp_path: Path, *texts: str) -> tuple[list[dict[str, str]], list[str], int]:
    """Return the input maps, the ensemble's inputs with dims, and its batch, for models with these configurations."""
    configs = []
    for number, text in enumerate(texts):
        python_model(tmp_path, f"m{number}", config=text)
        configs.append(load_model_config(tmp_path / f"m{number}", auto_complete=False))
    config, _ = ensemble.connect("e", configs)
    maps = [dict(step.input_map) for step in config.ensemble_scheduling.step]
    return maps, [f"{one.name} {list(one.dims)}" for one in config.input], config.max_batch_size


def test_inputs_are_connected_by_name_then_by_type_and_shape(tmp_path: Path) -> None:
    maps, inputs, batch = connected(
        tmp_path,
        member("m0", "X:FP32:4", "SCORES:FP32:3 IDS:INT64:1"),
        member("m1", "IDS:INT64:1 THRESHOLD:FP32:1 VALUES:FP32:-1", "OUT:FP32:1", batch=4),
    )

    assert maps[1] == {"IDS": "m0_IDS", "THRESHOLD": "THRESHOLD", "VALUES": "m0_SCORES"}
    assert inputs == ["X [4]", "THRESHOLD [1]"]
    assert batch == 4


def test_members_with_and_without_a_batch_make_an_ensemble_without(tmp_path: Path) -> None:
    maps, inputs, batch = connected(
        tmp_path, member("m0", "X:FP32:4", "Y:FP32:4"), member("m1", "X:FP32:-1,4", "Y:FP32:1", batch=0)
    )

    assert (maps[1], inputs, batch) == ({"X": "m0_Y"}, ["X [-1, 4]"], 0)


def test_models_that_do_not_fit_say_what_they_take_and_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python_model(tmp_path, "a", config=member("a", "X:FP32:4", "Y:INT32:4"))
    python_model(tmp_path, "b", config=member("b", "X:FP32:4", "Y:INT32:4"))

    said = refusal(tmp_path, capsys, "e", "--ensemble", "a,b")
    assert "fits one of its inputs: it takes X TYPE_FP32 [4], and they give Y TYPE_INT32 [4]" in said


@pytest.mark.slow
def test_models_of_init_pass_check_and_are_served(tmp_path: Path) -> None:
    onnx_model(tmp_path / "other", "iris", "")
    models = tmp_path / "models"
    said = ""
    for arguments in (
        ["iris", "--onnx", str(tmp_path / "other" / "iris" / "1" / "model.onnx")],
        ["double", "--python"],
        ["chain", "--ensemble", "iris,double"],
    ):
        done = program("init", *arguments, "--model-repository", str(models))
        assert done.status == 0, done.output
        said += done.output
    config = load_model_config(models / "iris", auto_complete=False)
    assert (config.max_batch_size, list(config.input[0].dims), config.output[0].name) == (8, [4], "OUT")

    checked = program("check", str(models), "--infer", limit=60.0)
    assert checked.status == 0, checked.output
    assert "3 of 3 models answer as their configuration says" in checked.output

    server = start(f"--model-repository={models}")
    try:
        server.wait_for_log(r"ready in .* with 3 models")
        port = re.search(r"HTTP on [0-9.]+:(\d+)", server.log())
        assert port is not None
        for line in (line for line in said.splitlines() if line.startswith("curl ")):
            typed = line.replace("localhost:8000", f"127.0.0.1:{port[1]}")
            answer = subprocess.run(["sh", "-c", typed], capture_output=True, text=True, timeout=PATIENCE, check=True)
            assert '"outputs":[' in answer.stdout, (line, answer.stdout)
    finally:
        server.stop()


@pytest.mark.slow
def test_a_file_that_is_no_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models").mkdir()
    said = refusal(tmp_path / "models", capsys, "m", "--onnx", sys.executable)

    assert f"--onnx '{sys.executable}' cannot be served: " in said


def test_a_full_disk_is_named_by_the_new_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source, None, target)  # as the real one does

    monkeypatch.setattr("shutil.copyfile", fail)
    (tmp_path / "models").mkdir()
    said = refusal(tmp_path / "models", capsys, "m", "--onnx", sys.executable)

    assert re.search(rf"'{tmp_path}/models/\S+/1/model.onnx': No space left on device", said)


@pytest.mark.slow
def test_weights_in_other_files_are_copied_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [64], bytes(256), raw=True)
    sides = [helper.make_tensor_value_info(side, TensorProto.FLOAT, ["n", 64]) for side in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("Add", ["IN", "w"], ["OUT"])], "m", sides[:1], sides[1:], [values])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = tmp_path / "m.onnx"
    onnx.save(model, file, save_as_external_data=True, location="parameters.bin", size_threshold=0)

    assert init(tmp_path / "models", "m", "--onnx", str(file)) == 0
    assert (tmp_path / "models/m/1/parameters.bin").stat().st_size == 256
    (tmp_path / "parameters.bin").unlink()
    said = refusal(tmp_path / "models", capsys, "other", "--onnx", str(file))
    assert "keeps its weights in 'parameters.bin': put that file beside it" in said


def test_directories_of_killed_commands_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    killed, foreign = models / f".init-{'0a' * 8}", models / ".init-of-mine"
    for directory in (killed, foreign):
        (directory / "1").mkdir(parents=True)
    with new_directory(models, "first") as running:
        assert init(models, "second", "--python") == 0
        assert running.version.is_dir()
    assert sorted(os.listdir(models)) == [".init-of-mine", "first", "second"]


def test_a_repository_whose_name_is_not_utf_8_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    path.mkdir()
    assert "is not UTF-8: rename the directory" in refusal(path, capsys, "m", "--python")
