"""Tests of /opt/edge-serve with a fake pip; tests/system use the real one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy import program
from deploy.program import HOME, Target
from deploy.requirements import lock_file

TARGET = Target("3.11", "x86_64", 36, "/usr/bin/python3.11")

#: files of wheels
LEFT_OUT = [
    "bin/f2py", "onnxruntime/capi/libonnxruntime.so.1.32.0", "numpy/_core/tests/data/a.csv", "numpy/ma/tests/test_a.py",
    "numpy/_core/_simd.cpython-311-x86_64-linux-gnu.so", "numpy/_core/_umath_tests.cpython-311-x86_64-linux-gnu.so",
    "numpy/random/lib/libnpyrandom.a", "numpy-2.dist-info/direct_url.json", "numpy-2.dist-info/REQUESTED",
]  # fmt: skip
KEPT = [
    "numpy/testing/__init__.py", "numpy-2.dist-info/METADATA", "numpy-2.dist-info/RECORD",
    "onnxruntime/capi/onnxruntime_pybind11_state.cpython-311-x86_64-linux-gnu.so",
    "onnxruntime/capi/libonnxruntime_providers_shared.so",
]  # fmt: skip


class Pip:
    """A fake pip: installs a module, or fails."""

    def __init__(self) -> None:
        self.works = True
        self.source = ""
        self.asked: tuple[str, ...] = ()

    def __call__(self, *arguments: str, path: str = "") -> None:
        if not self.works:
            raise subprocess.CalledProcessError(1, ["python", "-m", "pip", arguments[0], "..."])
        if arguments[0] == "wheel":
            folder = Path(arguments[arguments.index("--wheel-dir") + 1])
            self.source = Path(arguments[-1], "edge_serve/__init__.py").read_text()
            with zipfile.ZipFile(folder / "edge_serve-1-py3-none-any.whl", "w") as wheel:
                wheel.writestr("edge_serve.py", "x = 1\n")
        elif "--report" in arguments:
            self.asked = arguments
            Path(arguments[arguments.index("--report") + 1]).write_text('{"install": []}')
            packages = Path(arguments[arguments.index("--target") + 1])
            for name in LEFT_OUT + KEPT:
                (packages / name).parent.mkdir(parents=True, exist_ok=True)
                (packages / name).touch()
            record = "".join(f"{name},,\n" for name in LEFT_OUT + KEPT)
            (packages / "numpy-2.dist-info/RECORD").write_text(record)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    pip = Pip()
    monkeypatch.setattr(program, "pip", pip)
    monkeypatch.setattr(program, "this_machine", lambda: TARGET)
    monkeypatch.setattr(os, "sync", lambda: None)  # takes long on a busy disk
    return pip


@pytest.fixture
def private() -> Iterator[None]:
    """Set the umask of root on a hardened system."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("pip", "private")
def test_installation_under_a_strict_umask_is_readable_by_all(tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert program.main([str(root)]) == 0

    home = root / HOME
    packages = home / "lib/python3.11/site-packages"
    assert (packages / "edge_serve.py").stat().st_mode & 0o777 == 0o644
    for path in (home.parent, home, packages, home / "bin", home / "bin/edge-serve"):
        assert path.stat().st_mode & 0o777 == 0o755, path
    assert os.readlink(home / "bin/python3") == TARGET.interpreter
    assert os.umask(0o077) == 0o077, "the caller's own umask is as it was"


def test_old_program_stays_until_the_new_one_is_complete(
    pip: Pip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / HOME
    (home / "bin").mkdir(parents=True)
    (home / "bin/edge-serve").write_text("old")
    pip.works = False
    assert program.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == "install: python -m pip install ... failed, see above\n"
    assert (home / "bin/edge-serve").read_text() == "old"
    assert os.listdir(home.parent) == ["edge-serve"]
    pip.works = True
    assert program.main([str(tmp_path)]) == 0
    assert "from edge_serve.cli import main" in (home / "bin/edge-serve").read_text()
    assert os.listdir(home.parent) == ["edge-serve"]


@pytest.mark.usefixtures("pip")
@pytest.mark.parametrize("exchanges", [True, False])
def test_a_program_is_in_its_place_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    home = tmp_path / HOME
    (home / "bin").mkdir(parents=True)
    (home / "bin/edge-serve").write_text("old")
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if target == home and path.name != "old":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    if not exchanges:
        monkeypatch.setattr(program, "_RENAME_EXCHANGE", 1 << 30)  # EINVAL, as a file system without it answers

    assert program.main([str(tmp_path)]) == (0 if exchanges else 1)
    assert ((home / "bin/edge-serve").read_text() == "old") is not exchanges
    assert os.listdir(home.parent) == ["edge-serve"]


@pytest.mark.usefixtures("pip")
def test_unwritable_place_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "opt").touch()
    assert program.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"install: cannot write '{tmp_path}/opt': File exists\n"


def test_program_has_the_locked_wheels_without_unused_files(pip: Pip, tmp_path: Path) -> None:
    program.install(tmp_path, TARGET, "0.1.0+git484.1cac580")

    packages = tmp_path / HOME / "lib/python3.11/site-packages"
    assert [name for name in LEFT_OUT if (packages / name).exists()] == []
    assert [name for name in KEPT if not (packages / name).exists()] == []
    record = (packages / "numpy-2.dist-info/RECORD").read_text()
    assert record == "".join(f"{name},,\n" for name in KEPT)
    assert "--require-hashes" in pip.asked
    assert str(lock_file("3.11")) in pip.asked
    assert '\n__version__ = "0.1.0+git484.1cac580"\n' in pip.source


def test_python_without_a_lock_file_gets_the_newest_wheels_and_a_warning(
    pip: Pip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.install(tmp_path, Target("3.99", "x86_64", 36, "/usr/bin/python3.99"), "1")

    assert "--require-hashes" not in pip.asked
    assert capsys.readouterr().err == "install: no requirements-3.99.txt in deploy/, so pip chooses the newest wheels\n"


@pytest.mark.usefixtures("pip")
def test_program_imports_the_tensorrt_of_the_system_where_there_is_one(tmp_path: Path) -> None:
    target = Target("3.10", "aarch64", 35, "/usr/bin/python3.10")
    program.install(tmp_path, target, "1")

    packages = tmp_path / HOME / "lib/python3.10/site-packages"
    assert os.readlink(packages / "tensorrt") == "/usr/lib/python3.10/dist-packages/tensorrt"
    assert os.readlink(packages / "tensorrt_lean") == "/usr/lib/python3.10/dist-packages/tensorrt_lean"
    find = (
        "import sys, importlib.util; sys.path.insert(0, sys.argv[1]); print(bool(importlib.util.find_spec('tensorrt')))"
    )
    ask = [sys.executable, "-I", "-c", find, str(packages)]
    assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "False\n", "the link is dangling"
    system = tmp_path / "dist-packages/tensorrt"
    system.mkdir(parents=True)
    (system / "__init__.py").touch()
    (packages / "tensorrt").unlink()
    (packages / "tensorrt").symlink_to(system)
    assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "True\n"


@pytest.mark.usefixtures("pip")
def test_a_tensorrt_among_the_wheels_comes_before_that_of_the_system(pip: Pip, tmp_path: Path) -> None:
    KEPT.append("tensorrt/__init__.py")
    try:
        program.install(tmp_path, TARGET, "1")
    finally:
        KEPT.pop()

    assert not (tmp_path / HOME / "lib/python3.11/site-packages/tensorrt").is_symlink()
