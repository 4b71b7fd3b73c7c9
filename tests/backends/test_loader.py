"""Where backends are found, and what is said when they are not."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

import pytest

import edge_serve.backends
from edge_serve.backends import loader, packs
from edge_serve.backends.base import ModelSpec
from edge_serve.errors import Internal, InvalidArgument, Unavailable
from tests.texts import without_advice

SOURCE = """
class Backend:
    def complete_config(self, spec):
        return {"from": __file__}
"""


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    (tmp_path / "1").mkdir()
    return ModelSpec("m", 1, tmp_path, tmp_path / "1", {})


@pytest.mark.parametrize("place", ["here.py", "here/backend.py"])
def test_ours_are_found_by_their_file(spec: ModelSpec, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = spec.model_directory / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(SOURCE)
    monkeypatch.setattr(edge_serve.backends, "__path__", [*edge_serve.backends.__path__, str(spec.model_directory)])
    try:
        assert loader.load("here", spec).complete_config(spec) == {"from": str(path)}
    finally:
        for name in ("here", "here.backend"):
            sys.modules.pop(f"edge_serve.backends.{name}", None)


@pytest.mark.parametrize("name", ["nothing", "base", "loader", "host", "cuda", "", "../echo", "os.path", "a b", "sys"])
def test_unknown_names_get_tritons_text(spec: ModelSpec, name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        loader.load(name, spec)
    said = f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
    assert without_advice(caught.value.message, said) == said
    assert "The backends here are" in caught.value.message


@pytest.mark.parametrize("name", ["pytorch_libtorch", "tensorflow_savedmodel", "openvino"])
def test_known_names_say_what_to_do(spec: ModelSpec, name: str) -> None:
    with pytest.raises(Unavailable, match=r"is not available: .*onnxruntime"):
        loader.load(name, spec)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("fil", "skl2onnx"),
        ("tflite", "tf2onnx --tflite"),
        ("tensorflow", "tf2onnx"),
        ("pytorch", "torch.onnx.export"),
        ("openvino", "edge-serve pack install openvino"),
        ("vllm", "docs/generative.md"),
        ("tensorrtllm", "docs/generative.md"),
        ("dali", "ensemble"),
        ("sklearn", "skl2onnx"),
        ("xgboost", "onnxmltools"),
        ("lightgbm", "onnxmltools"),
        ("keras", "tf2onnx"),
        ("mlflow", "model.py"),
        ("huggingface", "model.py"),
    ],
)
def test_backends_of_other_servers_say_what_to_do_instead(spec: ModelSpec, name: str, advice: str) -> None:
    with pytest.raises(Unavailable, match=f"backend '{name}' of model 'm' is not available: .*{advice}"):
        loader.load(name, spec)


def test_a_missing_library_says_what_to_install(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> None:
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

    monkeypatch.setattr(importlib, "import_module", without)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
    with pytest.raises(Unavailable, match=r"'onnxruntime', which is not installed: \S+ -m pip install onnxruntime$"):
        loader.load("onnxruntime_onnx", spec)


@pytest.mark.parametrize("place", ["backend.py", "1/backend.py"])
def test_a_backend_may_come_with_its_model(spec: ModelSpec, place: str) -> None:
    path = spec.model_directory / place
    path.write_text(SOURCE)
    assert loader.load("own", spec).complete_config(spec) == {"from": str(path)}


def test_the_version_comes_before_the_model(spec: ModelSpec) -> None:
    for place in ("backend.py", "1/backend.py"):
        (spec.model_directory / place).write_text(SOURCE)
    assert loader.load("own", spec).complete_config(spec) == {"from": str(spec.version_directory / "backend.py")}


@pytest.mark.parametrize(("source", "text"), [("x = 1", "no class 'Backend'"), ("1 / 0", "ZeroDivisionError")])
def test_a_broken_file_says_so(spec: ModelSpec, source: str, text: str) -> None:
    (spec.model_directory / "backend.py").write_text(source)
    with pytest.raises(Internal, match=text):
        loader.load("own", spec)


def test_an_installed_backend_is_found(
    spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path_factory.mktemp("site")
    (site / "edge_extra.py").write_text(SOURCE)
    information = site / "edge_extra-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: edge-extra\nVersion: 1\n")
    (information / "entry_points.txt").write_text(
        "[edge_serve.backends]\nextra = edge_extra\nextra_class = edge_extra:Backend\nbroken = edge_missing\n"
    )
    monkeypatch.syspath_prepend(str(site))
    try:
        for name in ("extra", "extra_class"):
            assert loader.load(name, spec).complete_config(spec) == {"from": str(site / "edge_extra.py")}
        with pytest.raises(Internal, match="edge_missing"):
            loader.load("broken", spec)
        assert {entry.name for entry in metadata.entry_points(group=packs.GROUP)} >= {"extra", "broken"}
    finally:
        sys.modules.pop("edge_extra", None)


def test_a_backend_is_warmed_up_ahead_and_one_that_cannot_be_is_left_to_its_first_model(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = spec.model_directory / "warm.py"
    path.write_text(f"{SOURCE}\ntimes = []\ndef warm_up():\n    times.append(1)\n    raise RuntimeError('no')\n")
    monkeypatch.setattr(edge_serve.backends, "__path__", [*edge_serve.backends.__path__, str(spec.model_directory)])
    try:
        loader.import_ahead("warm")
        assert sys.modules["edge_serve.backends.warm"].times == [1]
        loader.import_ahead("not_there")
        assert loader.load("warm", spec).complete_config(spec) == {"from": str(path)}
    finally:
        sys.modules.pop("edge_serve.backends.warm", None)
