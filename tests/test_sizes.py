"""What an install weighs: `pip install .` and `pip install .[onnx]` in an empty virtual environment, pip aside.

Needs a package index; run by `make check`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: megabytes (10^6), of which NumPy is about 73
LIMITS = {"": 85, "[onnx]": 155}


def size_of(folder: Path) -> int:
    """Bytes of all files below, links not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from, so that no build folder is left in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "edge_serve", copy / "edge_serve", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("extra", LIMITS)
def test_install_stays_small(extra: str, checkout: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    before = size_of(tmp_path / "venv")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{checkout}{extra}"]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    megabytes = (size_of(tmp_path / "venv") - before) / 1e6
    print(f"pip install .{extra}: {megabytes:.1f} MB on Python {sys.version.split()[0]}")
    assert megabytes < LIMITS[extra], f"{megabytes:.1f} MB, at most {LIMITS[extra]} MB"
    done = subprocess.run([python, "-m", "edge_serve", "--help"], check=True, env=environment, cwd=tmp_path,
                          capture_output=True, text=True)  # fmt: skip
    assert "--model-repository" in done.stdout
