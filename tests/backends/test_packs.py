"""Where packs are found, what is said of broken ones, and how their backends are imported."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edge_serve.backends import loader, packs
from edge_serve.backends.base import ModelSpec
from edge_serve.backends.packs import INTERFACE, Pack, Packs, built_in_module, find_pack, notes_on_backends
from edge_serve.errors import Internal, Unavailable

BACKEND = """
from .part import NAME


class Backend:
    def complete_config(self, spec):
        return {"from": NAME}
"""


def make_pack(root: Path, name: str = "own", source: str = BACKEND, file: str = "backend.py") -> Path:
    """Write a pack without an environment; its directory."""
    directory = root / name
    directory.mkdir(parents=True)
    (directory / file).write_text(source)
    (directory / "part.py").write_text(f"NAME = {name!r}\n")
    return directory


def found(root: Path, name: str) -> Pack:
    """Return the pack, which must be there."""
    pack = find_pack(root, name)
    assert pack is not None
    return pack


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test imports its packs anew."""
    yield
    for name in [name for name in sys.modules if name.startswith("edge_serve_pack_")]:
        del sys.modules[name]


def test_a_backend_that_is_here_gets_no_note(tmp_path: Path) -> None:
    make_pack(tmp_path, "openvino")
    (make_pack(tmp_path, "half") / "backend.py").unlink()
    (tmp_path / "half/pack.json").write_text("{}")
    names = ["", "onnxruntime", "tensorflow", "openvino", "half"]
    assert notes_on_backends(names, str(tmp_path)) == []
    assert notes_on_backends([], str(tmp_path / "none")) == []
    (note,) = notes_on_backends(["mine", "mine"], "")
    assert "no backend 'mine' is installed or in a backend directory" in note


@pytest.mark.parametrize(("file", "is_python_based"), [("backend.py", False), ("model.py", True)])
def test_a_directory_with_the_file_of_a_backend_is_a_pack(tmp_path: Path, file: str, is_python_based: bool) -> None:
    directory = make_pack(tmp_path, file=file)
    pack = found(tmp_path, "own")

    assert (pack.name, pack.directory, pack.is_python_based) == ("own", directory, is_python_based)
    assert pack.environment is None
    assert Pack.from_json(json.loads(json.dumps(pack.as_json()))) == Pack("own", directory, is_python_based)


def test_a_pack_may_have_both_kinds_of_backend(tmp_path: Path) -> None:
    directory = make_pack(tmp_path)
    pack = found(tmp_path, "own")
    assert pack.as_python_based() is None

    (directory / "model.py").write_text("")
    assert not found(tmp_path, "own").is_python_based
    assert pack.as_python_based() == replace(pack, is_python_based=True)
    assert Packs(tmp_path).find("own", "m", "model.py") == pack.as_python_based()
    assert Packs(tmp_path).find("own", "m", "") == pack


def test_a_pack_of_pytorch_without_its_other_runtime_says_so(tmp_path: Path) -> None:
    assert Packs(tmp_path).find("pytorch", "m", "model.py") is None
    make_pack(tmp_path, "pytorch")
    with pytest.raises(Unavailable) as caught:
        Packs(tmp_path).find("pytorch", "m", "model.py")
    assert caught.value.message.startswith(
        "backend 'pytorch' of model 'm' is not available: its pack is older and has "
    )
    assert caught.value.message.endswith("model.py: edge-serve pack install pytorch")


@pytest.mark.parametrize("name", ["absent", "onnxruntime", "python", "../own", "a/b", "", "."])
def test_other_names_have_no_pack(tmp_path: Path, name: str) -> None:
    make_pack(tmp_path)
    make_pack(tmp_path, "python")
    make_pack(tmp_path / "sub")
    assert find_pack(tmp_path / "sub", name) is None
    assert find_pack(tmp_path / "absent", name) is None
    assert find_pack(None, "own") is None


def test_a_backend_of_triton_in_cpp_is_no_pack(tmp_path: Path) -> None:
    (tmp_path / "pytorch").mkdir()
    (tmp_path / "pytorch/libtriton_pytorch.so").touch()
    assert find_pack(tmp_path, "pytorch") is None
    (tmp_path / "pytorch/model.py").touch()  # its other runtime
    assert find_pack(tmp_path, "pytorch") is None


def test_a_pack_may_have_a_library_of_such_a_name(tmp_path: Path) -> None:
    (make_pack(tmp_path) / "libtriton_own.so").touch()
    (tmp_path / "own/pack.json").write_text("{}")
    assert found(tmp_path, "own")


def test_models_of_tensorflow_go_to_openvino_unless_there_is_a_pack_of_their_own(tmp_path: Path) -> None:
    assert find_pack(tmp_path, "tensorflow") is None
    make_pack(tmp_path, "openvino")
    assert found(tmp_path, "tensorflow").name == "openvino"
    make_pack(tmp_path, "tensorflow")
    assert found(tmp_path, "tensorflow").name == "tensorflow"


def test_a_replaced_pack_has_another_state(tmp_path: Path) -> None:
    directory = make_pack(tmp_path)
    (directory / "pack.json").write_text("{}")
    before = found(tmp_path, "own").state
    assert found(tmp_path, "own").state == before
    (directory / "new").write_text("{}")
    (directory / "new").rename(directory / "pack.json")
    assert found(tmp_path, "own").state != before


def test_an_environment_of_a_finished_pack_is_used(tmp_path: Path) -> None:
    directory = make_pack(tmp_path)
    (directory / "venv").mkdir()
    (directory / "pack.json").write_text(json.dumps({"architectures": [platform.machine()]}))
    assert found(tmp_path, "own").environment == directory / "venv"


def test_the_archive_that_triton_knows_is_an_environment(tmp_path: Path) -> None:
    directory = make_pack(tmp_path, file="model.py")
    (directory / "pb_exec_env_model.py.tar.gz").touch()
    assert found(tmp_path, "own").environment == directory / "pb_exec_env_model.py.tar.gz"


def test_a_half_installed_pack_says_so(tmp_path: Path) -> None:
    directory = make_pack(tmp_path, "openvino")
    (directory / "venv").mkdir()
    with pytest.raises(Unavailable, match=r"half installed, it has no pack.json: edge-serve pack install openvino"):
        find_pack(tmp_path, "openvino")
    (directory / "pack.json").write_text("{}")
    (directory / "backend.py").unlink()
    with pytest.raises(Unavailable, match=r"half installed, it has no backend.py: edge-serve pack install openvino"):
        find_pack(tmp_path, "openvino")


@pytest.mark.parametrize("content", ["{", "[]", '{"architectures": "x86_64"}', "\xff"])
def test_a_broken_manifest_says_so(tmp_path: Path, content: str) -> None:
    directory = make_pack(tmp_path, "openvino")
    (directory / "pack.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(Unavailable, match=r"pack.json' cannot be read: .*: edge-serve pack install openvino"):
        find_pack(tmp_path, "openvino")


def test_a_pack_of_another_processor_says_so(tmp_path: Path) -> None:
    directory = make_pack(tmp_path, "openvino")
    (directory / "pack.json").write_text('{"architectures": ["riscv64"]}')
    with pytest.raises(Unavailable, match=f"is for riscv64, and this machine is {platform.machine()}: edge-serve pack"):
        find_pack(tmp_path, "openvino")


def test_a_pack_of_another_edge_serve_says_so(tmp_path: Path) -> None:
    directory = make_pack(tmp_path, "openvino")
    (directory / "pack.json").write_text(json.dumps({"interface": INTERFACE}))
    assert find_pack(tmp_path, "openvino") is not None
    (directory / "pack.json").write_text(json.dumps({"interface": INTERFACE - 1}))
    with pytest.raises(Unavailable, match=r"for another edge-serve \(.*\); .*: edge-serve pack install openvino"):
        find_pack(tmp_path, "openvino")


def test_an_installed_pack_without_a_number_is_of_the_first_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_pack(tmp_path, "openvino") / "pack.json"
    manifest.write_text(json.dumps({"requirements_sha256": ""}))
    assert find_pack(tmp_path, "openvino") is not None
    monkeypatch.setattr(packs, "INTERFACE", 2)
    with pytest.raises(Unavailable, match=r"\(interface 1, expected 2\); .*: edge-serve pack install openvino"):
        find_pack(tmp_path, "openvino")
    manifest.write_text("{}")
    assert find_pack(tmp_path, "openvino") is not None, "one that was made by hand"


def test_a_pack_of_an_older_edge_serve_without_a_number_says_what_installs_it(tmp_path: Path) -> None:
    make_pack(tmp_path, "openvino", "from edge_serve.backends.base import GoneSinceThen")
    spec = ModelSpec("m", 1, tmp_path, tmp_path, {}, pack=found(tmp_path, "openvino"))
    with pytest.raises(
        Internal, match=r"does not import: ImportError: .*GoneSinceThen.*edge-serve pack install openvino"
    ):
        loader.load("openvino", spec)


def test_the_error_names_the_model(tmp_path: Path) -> None:
    (make_pack(tmp_path) / "venv").mkdir()
    with pytest.raises(Unavailable, match="backend 'own' of model 'm' is not available: pack 'own'"):
        Packs(tmp_path).find("own", "m")


def test_no_backend_of_ours_is_hidden_by_a_pack() -> None:
    assert built_in_module("onnxruntime") == "edge_serve.backends.onnxruntime.backend"
    assert all(built_in_module(name) == "" for name in (*packs.PACKS, *packs.OTHERS, "cuda", "os.path", ""))


def spec_of(tmp_path: Path, pack: Pack) -> ModelSpec:
    (tmp_path / "m/1").mkdir(parents=True, exist_ok=True)
    return ModelSpec("m", 1, tmp_path / "m", tmp_path / "m/1", {}, pack=pack)


def test_the_files_of_a_pack_import_each_other(tmp_path: Path) -> None:
    make_pack(tmp_path, "one")
    make_pack(tmp_path, "two-b")
    for name in ("one", "two-b", "one"):
        spec = spec_of(tmp_path, found(tmp_path, name))
        assert loader.load(name, spec).complete_config(spec) == {"from": name}


def test_a_pack_comes_before_the_file_beside_the_model(tmp_path: Path) -> None:
    make_pack(tmp_path)
    spec = spec_of(tmp_path, found(tmp_path, "own"))
    (spec.version_directory / "backend.py").write_text("class Backend: pass")
    assert loader.load("own", spec).complete_config(spec) == {"from": "own"}


def test_a_missing_library_names_the_interpreter_and_the_way_out(tmp_path: Path) -> None:
    make_pack(tmp_path, "openvino", "import openvino_that_is_not_there")
    spec = spec_of(tmp_path, found(tmp_path, "openvino"))
    with pytest.raises(Unavailable) as caught:
        loader.load("openvino", spec)
    assert caught.value.message == (
        f"backend 'openvino' of model 'm' needs the module 'openvino_that_is_not_there', which {sys.executable} lacks: "
        "edge-serve pack install openvino"
    )


@pytest.mark.parametrize(("source", "text"), [("x = 1", "no class 'Backend'"), ("1 / 0", "ZeroDivisionError")])
def test_a_broken_backend_says_so(tmp_path: Path, source: str, text: str) -> None:
    make_pack(tmp_path, source=source)
    with pytest.raises(Internal, match=text):
        loader.load("own", spec_of(tmp_path, found(tmp_path, "own")))


def test_a_python_based_backend_is_a_python_model(tmp_path: Path) -> None:
    make_pack(tmp_path, file="model.py")
    spec = spec_of(tmp_path, found(tmp_path, "own"))
    assert spec.is_python
    assert type(loader.load("own", spec)).__name__ == "PythonBackend"
