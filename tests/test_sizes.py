"""The size of an installation, and its run: `pip install .` and `.[onnx]` in an empty virtual environment, pip aside.

Needs a package index; run by `make check`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.installed_size import LIMITS, installed_megabytes


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("extra", LIMITS)
def test_install_stays_small_and_runs(extra: str, tmp_path: Path) -> None:
    megabytes = installed_megabytes(extra, tmp_path)
    assert megabytes < LIMITS[extra], f"{megabytes:.1f} MB, at most {LIMITS[extra]} MB"
    command = [str(tmp_path / "venv/bin/edge-serve"), "--help"]
    done = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert "--model-repository" in done.stdout
