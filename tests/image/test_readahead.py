"""The list of files that the initrd reads ahead, made from this machine's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import edge_serve

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "image/mkosi/readahead"
UNITS = ROOT / "image/mkosi/mkosi.images/initrd/mkosi.extra/usr/lib/systemd/system"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def listed(home: Path) -> list[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(home)}
    command = [sys.executable, str(PROGRAM)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_list_has_files_below_the_root_in_one_order(listed: list[str]) -> None:
    assert listed == sorted(set(listed), key=Path)
    assert all(Path("/", path).is_file() and not path.startswith("/") for path in listed)
    assert str(PROGRAM.resolve())[1:] not in listed, "it is not in the image"


def test_the_list_has_byte_code_and_libraries_of_all_programs_of_a_start(listed: list[str]) -> None:
    code = Path(edge_serve.__file__).parent
    for module in ("server", "first_workers", "workers/child/main", "transport/grpc_service/server"):
        file = (code / module).resolve()
        either = {f"{file}.py"[1:], f"{file.parent}/__pycache__/{file.name}.{sys.implementation.cache_tag}.pyc"[1:]}
        assert either & set(listed), module
    for library in ("onnxruntime_pybind11_state", "_multiarray_umath", "libc.so"):
        assert any(library in path for path in listed), library
    assert not any("openblas" in path for path in listed), "large, and hardly read"


def test_the_list_is_made_without_traces(listed: list[str], home: Path) -> None:
    """ONNX Runtime keeps events for its maker in the home directory, unless it is told not to before its import."""
    assert listed
    assert not list(home.iterdir())


def test_the_unit_of_the_initrd_never_holds_the_boot_up() -> None:
    """No `Before=`, which would make the boot wait; no failure, which the device would report."""
    lines = (UNITS / "edge-readahead.service").read_text().splitlines()
    assert not [line for line in lines if line.startswith(("Before=", "RequiredBy=", "Type="))]
    assert all(line.startswith("ExecStart=-") for line in lines if line.startswith("Exec"))
    assert (UNITS / "initrd.target.wants/edge-readahead.service").readlink() == Path("../edge-readahead.service")
