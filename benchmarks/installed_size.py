"""How large is an installation? `pip install .` and with its extras, in an empty virtual environment, pip aside."""

from __future__ import annotations

import os
import subprocess
import tempfile
import venv
from pathlib import Path

from benchmarks.report import Report
from deploy.program import copy_source

#: extra -> limit in megabytes (10^6), of which NumPy is about 73 and edge-ota 3; tests/test_sizes.py checks the limits
#: ONNX Runtime 1.32 has 80 MB, 1.31 had 64
LIMITS = {"": 88, "[onnx]": 170}


def run() -> Report:
    """Install with each extra and measure; needs a package index."""
    report = Report("installed_size", "MB that `pip install .` puts into an empty virtual environment")
    for extra, bar in LIMITS.items():
        with tempfile.TemporaryDirectory() as folder:
            report.rows.append({"install": f".{extra}", "MB": installed_megabytes(extra, Path(folder)), "asked": bar})
    return report


def installed_megabytes(extra: str, folder: Path) -> float:
    """Install a copy of this checkout with `extra` into `folder/venv`. Return the MB that it added.

    Raises:
        subprocess.CalledProcessError: pip failed and printed the reason.
    """
    source = folder / "source"
    copy_source(source)
    venv.create(folder / "venv", with_pip=True)
    before = size_of(folder / "venv")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [f"{folder}/venv/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*command, f"{source}{extra}"], check=True, env=environment, cwd=folder)
    return (size_of(folder / "venv") - before) / 1e6


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder without following links."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
