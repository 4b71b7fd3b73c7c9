"""Installs the libraries that train the models of these tests, and trains them.

`python -m tests.packs.fil.libraries` does both.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.packs.environments import ROOT, environment_with, lack

HERE = Path(__file__).parent
VENV = ROOT / "fil-training"
MODELS = ROOT / "fil-models"
REQUIREMENTS = ["xgboost-cpu", "lightgbm", "scikit-learn", "treelite"]
_STAMP = MODELS / "made"


def need_treelite() -> None:
    """Make the library of the pack findable, or skip the module that asks."""
    for site in (ROOT / "fil/venv").glob("lib/python*/site-packages"):
        if str(site) not in sys.path:
            sys.path.append(str(site))  # nothing is imported from there: the C library is loaded
        return
    lack("no Treelite in build/packs/fil: python -m tests.packs.environments fil")


def need_models() -> Path:
    """Return the directory of the trained models, or skip the module that asks."""
    if not _STAMP.is_file() or _STAMP.read_text() != _state():
        lack("no trained models in build/packs/fil-models: python -m tests.packs.fil.libraries")
    return MODELS


def _state() -> str:
    return hashlib.sha256((HERE / "train.py").read_bytes()).hexdigest()


def main() -> None:
    """Install and train, unless both are done."""
    python = environment_with(VENV, REQUIREMENTS)
    if _STAMP.is_file() and _STAMP.read_text() == _state():
        return
    shutil.rmtree(MODELS, ignore_errors=True)
    subprocess.run([str(python), str(HERE / "train.py"), str(MODELS)], check=True)
    _STAMP.write_text(_state())


if __name__ == "__main__":
    main()
