from __future__ import annotations

from pathlib import Path

import pytest
from setuptools import Distribution

from deploy.build_py import CleanBuild


def test_a_wheel_has_no_modules_of_older_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old = tmp_path / "build/lib/removed.py"
    old.parent.mkdir(parents=True)
    for file in (old, tmp_path / "module.py"):
        file.touch()
    made = Distribution({"py_modules": ["module"], "cmdclass": {"build_py": CleanBuild}})
    made.run_command("build_py")

    assert [path.name for path in (tmp_path / "build/lib").iterdir()] == ["module.py"]
    assert "deploy/build_py.py" in made.get_command_obj("build_py").get_source_files()
