"""Installs the libraries that train the models of these tests, and trains them.

`python -m tests.packs.fil.libraries` does both.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2] / "build/packs"
VENV = ROOT / "fil-training"
MODELS = ROOT / "fil-models"
REQUIREMENTS = ["xgboost-cpu", "lightgbm", "scikit-learn", "treelite"]
#: set by .ci/run: a missing library is a failure, not a reason to skip
REQUIRED = "PACKS_REQUIRED"
_STAMP = MODELS / "made"


def need_treelite() -> None:
    """Make the library of the pack findable, or skip the module that asks."""
    for site in (ROOT / "fil/venv").glob("lib/python*/site-packages"):
        if str(site) not in sys.path:
            sys.path.append(str(site))  # nothing is imported from there: the C library is loaded
        return
    _lack("no Treelite in build/packs/fil: python -m tests.packs.environments fil")


def need_models() -> Path:
    """Return the directory of the trained models, or skip the module that asks."""
    if not _STAMP.is_file() or _STAMP.read_text() != _state():
        _lack("no trained models in build/packs/fil-models: python -m tests.packs.fil.libraries")
    return MODELS


def _lack(text: str) -> None:
    if os.environ.get(REQUIRED):
        raise RuntimeError(f"{text} ({REQUIRED} is set)")
    pytest.skip(text, allow_module_level=True)


def _state() -> str:
    return hashlib.sha256((HERE / "train.py").read_bytes()).hexdigest()


def main() -> None:
    """Install and train, unless both are done."""
    python = VENV / "bin/python"
    if not python.exists():
        venv.create(VENV, with_pip=True, symlinks=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *REQUIREMENTS], check=True)
    if _STAMP.is_file() and _STAMP.read_text() == _state():
        return
    shutil.rmtree(MODELS, ignore_errors=True)
    subprocess.run([str(python), str(HERE / "train.py"), str(MODELS)], check=True)
    _STAMP.write_text(_state())


if __name__ == "__main__":
    main()
