"""Advice on directories: what lies there, and the command that puts it right."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edge_serve.config.model.layout import (
    advice_on_backend,
    advice_on_config,
    advice_on_file,
    advice_on_ignored,
    advice_on_label_file,
    advice_on_repository,
    advice_on_repository_file,
    advice_on_versions,
    refusal_of,
)


def made(root: Path, *names: str) -> Path:
    """Write empty files, and directories where a name ends with `/`."""
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return root / names[0].partition("/")[0]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ("m/1/iris.onnx",),
            "m/1/ holds iris.onnx; expected model.onnx or model.py: mv m/1/iris.onnx m/1/model.onnx, or write in "
            'config.pbtxt: backend: "onnxruntime" default_model_filename: "iris.onnx"',
        ),
        (
            ("m/1/a.onnx", "m/1/b.onnx"),
            "m/1/ holds a.onnx, b.onnx; expected model.onnx or model.py: rename one of them, or name it in "
            'config.pbtxt: backend: "onnxruntime" default_model_filename: "a.onnx"',
        ),
        (
            ("m/1/Model.ONNX",),
            "m/1/ holds Model.ONNX; expected model.onnx or model.py: mv m/1/Model.ONNX m/1/model.onnx (upper and lower "
            "case differ)",
        ),
        (
            ("m/1/x y/model.onnx",),
            "m/1/ holds x y/; expected model.onnx or model.py: mv 'm/1/x y'/* m/1/ && rmdir 'm/1/x y'",
        ),
        (("m/1/.hidden",), "m/1/ is empty: put the model's file there, as model.onnx or model.py"),
        (
            ("m/1/a", "m/1/b", "m/1/c", "m/1/d", "m/1/e", "m/1/f", "m/1/g"),
            "m/1/ holds a, b, c, d, e and 2 more; expected model.onnx or model.py, or backend and "
            "default_model_filename in config.pbtxt",
        ),
        (
            ("m/10/x.pkl", "m/9/x.pkl"),
            "m/9/ holds x.pkl; expected model.onnx or model.py: x.pkl is a pickled model: convert it with "
            'skl2onnx.to_onnx to m/9/model.onnx, or load it in m/9/model.py with backend: "python"',
        ),
        (
            ("m/1/saved_model.pb",),
            "m/1/ holds saved_model.pb; expected model.onnx or model.py: saved_model.pb is a TensorFlow SavedModel: "
            "move it and its variables/ into m/1/model.savedmodel/",
        ),
        (
            ("m/v02/model.onnx",),
            "m/v02 is no version directory: its name must be a number without zeros before it: mv m/v02 m/2",
        ),
        (
            ("m/config.pbtxt", "m/m/1/"),
            "m/m/ looks like the model itself: mv -n m/m/* m/ && rmdir m/m",
        ),
        (
            ("m/\u0661/model.onnx",),
            "m/\u0661 is no version directory: its name must be a number: mv 'm/\u0661' m/1",
        ),
        (
            ("m/x.py",),
            "m/ holds x.py and no version directory such as m/1: mkdir m/1 && mv m/x.py m/1/model.py",
        ),
        (
            ("m/",),
            "there is no version directory such as m/1: mkdir m/1 and put the model's file there, as model.onnx or "
            "model.py (git does not keep empty directories); if m/ is no model, keep it outside of the model "
            "repository, which is for models only",
        ),
        (
            ("m/config.pbtxt",),
            "there is no version directory such as m/1: mkdir m/1 and put the model's file there, as model.onnx or "
            "model.py (git does not keep empty directories)",
        ),
        (
            ("m/model.py", "m/helper.py"),
            "m/ holds model.py and no version directory such as m/1: mkdir m/1 && mv m/model.py m/1/model.py",
        ),
        (
            ("m/a.py", "m/b.py"),
            "there is no version directory such as m/1: mkdir m/1 and put the model's file there, as model.onnx or "
            "model.py (git does not keep empty directories); if m/ is no model, keep it outside of the model "
            "repository, which is for models only",
        ),
        (
            ("m/latest/model.py",),
            "m/latest is no version directory: its name must be a number: mv m/latest m/1",
        ),
        (
            ("m/__init__.py", "m/hardware/board.py", "m/results/plot.py"),  # a package of Python
            "there is no version directory such as m/1: mkdir m/1 and put the model's file there, as model.onnx or "
            "model.py (git does not keep empty directories); if m/ is no model, keep it outside of the model "
            "repository, which is for models only",
        ),
        (
            ("m/pyvenv.cfg", "m/lib/python3.11/"),
            "m/ is a virtual environment of Python, not a model: keep it outside of the model repository, which is for "
            "models only",
        ),
    ],
)  # fmt: skip
def test_reason_why_the_backend_is_unknown(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    assert advice_on_backend(made(tmp_path, *names), "m") == said


def test_a_model_repository_in_place_of_a_model_is_named_and_not_taken_apart(tmp_path: Path) -> None:
    models = made(tmp_path / "top", "models/bls/1/model.py", "models/lin/config.pbtxt").parent / "models"
    said = f"'{models}' looks like a model repository: give --model-repository={models}"
    assert advice_on_backend(models, "models") == said

    shutil.rmtree(models / "lin")
    assert advice_on_backend(models, "models") == (
        f"{said}; if models/bls is the model 'models' itself: mv -n models/bls/* models/ && rmdir models/bls"
    )


def test_a_model_with_variants_is_no_model_repository(tmp_path: Path) -> None:
    model = made(tmp_path, "m/config.pbtxt", "m/fp16/1/model.onnx", "m/fp32/1/model.onnx")
    assert advice_on_backend(model, "m") == (
        "m/ holds fp16/, fp32/, expected version directories such as m/1: move those of one: mv -n m/fp16/* m/ && "
        "rmdir m/fp16"
    )
    assert "looks like a model" in advice_on_repository(model)


def test_a_version_in_place_of_a_model_is_a_model_in_place_of_a_repository(tmp_path: Path) -> None:
    model = made(tmp_path / "models", "iris/1/model.onnx")
    said = f"'{model}' looks like a model: give its parent, --model-repository={tmp_path}/models"

    assert advice_on_backend(model / "1", "1") == f"'1' is named like a version, and {said}"
    assert advice_on_repository(model) == said
    assert advice_on_repository(model / "1").endswith(f"give --model-repository={tmp_path}/models")
    assert advice_on_repository(tmp_path / "other") == (
        f"'{tmp_path}/other' has no model directory, expected such as {tmp_path}/other/m/1/model.onnx"
    )
    (tmp_path / "models/model.onnx").touch()
    assert "expected a directory for each model" in advice_on_repository(tmp_path / "models")


def test_directories_that_look_like_versions_are_named(tmp_path: Path) -> None:
    model = made(tmp_path, "m/1/model.onnx", "m/v1/", "m/v2/", "m/configs/", "m/01/")
    said = "is no version directory: its name must be a number without zeros before it"
    assert advice_on_ignored(model, "m") == [f"m/01 {said}", f"m/v1 {said}", f"m/v2 {said}: mv m/v2 m/2"]
    assert advice_on_ignored(made(tmp_path, "n/v1/"), "n") == [], "the error of the model says so"


def test_a_file_in_place_of_a_repository_gets_the_command_that_makes_one() -> None:
    assert advice_on_repository_file(Path("my models/lin.onnx")) == (
        "make a repository from it: edge-serve init lin --onnx 'my models/lin.onnx' --model-repository models"
    )
    assert advice_on_repository_file(Path("lin.txt")) == ""


def test_why_there_is_no_version(tmp_path: Path) -> None:
    model = made(tmp_path, "m/1/model.onnx", "m/2/")
    said = advice_on_versions(model, "m", ensemble=False, policy="specific { versions: 3 }")
    assert said == "version_policy asks for specific { versions: 3 }, and m/ holds 1, 2"
    assert "mkdir e/1 " in advice_on_versions(made(tmp_path, "e/"), "e", ensemble=True, policy="")


def test_advice_names_the_file_found_in_place_of_the_models_file(tmp_path: Path) -> None:
    model = made(tmp_path, "m/1/net.onnx")
    assert advice_on_file(model / "1", "model.onnx", "m").startswith("m/1/ holds net.onnx; expected model.onnx: mv ")
    assert advice_on_file(model / "1", "model.py", "m") == (
        "m/1/ holds net.onnx; expected model.py, or default_model_filename in config.pbtxt"
    )
    assert advice_on_file(tmp_path / "none/1", "model.py", "none") == (
        "none/1/ is empty: put the model's file there, as model.py"
    )
    (model / "1/model.plan").symlink_to("nowhere")
    assert advice_on_file(model / "1", "model.plan", "m") == (
        "m/1/model.plan is a link whose target does not exist: copy the file itself there"
    )


@pytest.mark.parametrize("name", ["Config.pbtxt", "config.pbtxt.txt", "config.txt", "1/config.pbtxt"])
def test_a_file_that_looks_like_the_configuration(tmp_path: Path, name: str) -> None:
    model = made(tmp_path, "m/1/model.onnx", f"m/{name}")
    assert advice_on_config(model, "m") == (
        f"m/{name} is not read, expected m/config.pbtxt: mv m/{name} m/config.pbtxt"
    )
    (model / "config.pbtxt").touch()
    assert advice_on_config(model, "m") == ""


def test_advice_names_the_place_of_a_label_file(tmp_path: Path) -> None:
    model = made(tmp_path, "m/1/labels.txt", "m/Names.txt")
    assert advice_on_label_file(model, "m", "labels.txt").startswith('write label_filename: "1/labels.txt", or mv ')
    assert advice_on_label_file(model, "m", "names.txt").startswith('write label_filename: "Names.txt", or mv ')
    assert advice_on_label_file(model, "m", "a\\b.txt") == 'a path is written with /: label_filename: "a/b.txt"'
    assert advice_on_label_file(model, "m", "none.txt").endswith("put the file at m/none.txt")


def test_a_missing_permission_has_the_command_that_gives_it() -> None:
    denied = PermissionError(13, "Permission denied")
    assert refusal_of(denied, Path("/models/m n")) == (
        "Permission denied; give the server's user the right to read it: chmod -R o+rX '/models/m n'"
    )
    assert refusal_of(OSError(5, "Input/output error"), Path("m")) == "Input/output error"
