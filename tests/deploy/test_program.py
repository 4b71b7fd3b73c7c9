"""/opt/edge-serve, with a pip that is played: the real one fills it in tests/system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy import program
from deploy.program import HOME, Target

TARGET = Target("3.11", "x86_64", 36, "/usr/bin/python3.11")


class Pip:
    """Installs a module, or fails."""

    def __init__(self) -> None:
        self.works = True

    def __call__(self, *arguments: str) -> None:
        if not self.works:
            raise subprocess.CalledProcessError(1, ["python", "-m", "pip", arguments[0], "..."])
        if arguments[0] == "install":
            folder = Path(arguments[arguments.index("--target") + 1])
            (folder / "edge_serve.py").write_text("x = 1\n")
        else:
            Path(arguments[arguments.index("--wheel-dir") + 1], "edge_serve-1-py3-none-any.whl").touch()


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    pip = Pip()
    monkeypatch.setattr(program, "_pip", pip)
    monkeypatch.setattr(program, "this_machine", lambda: TARGET)
    return pip


@pytest.fixture
def private() -> Iterator[None]:
    """The umask of a hardened system's root."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("pip", "private")
def test_the_service_s_user_can_read_what_a_careful_root_installs(tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert program.main([str(root)]) == 0

    home = root / HOME
    packages = home / "lib/python3.11/site-packages"
    assert (packages / "edge_serve.py").stat().st_mode & 0o777 == 0o644
    for path in (home.parent, home, packages, home / "bin", home / "bin/edge-serve"):
        assert path.stat().st_mode & 0o777 == 0o755, path
    assert os.readlink(home / "bin/python3") == TARGET.interpreter
    assert os.umask(0o077) == 0o077, "the caller's own umask is as it was"


def test_the_old_program_stays_until_the_new_one_is_there(
    pip: Pip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / HOME
    (home / "bin").mkdir(parents=True)
    (home / "bin/edge-serve").write_text("old")
    pip.works = False
    assert program.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == "install: python -m pip wheel ... failed, see above\n"
    assert (home / "bin/edge-serve").read_text() == "old"
    assert os.listdir(home.parent) == ["edge-serve"]
    pip.works = True
    assert program.main([str(tmp_path)]) == 0
    assert "from edge_serve.cli import main" in (home / "bin/edge-serve").read_text()
    assert os.listdir(home.parent) == ["edge-serve"]


@pytest.mark.usefixtures("pip")
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "opt").touch()
    assert program.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"install: cannot write '{tmp_path}/opt': File exists\n"
