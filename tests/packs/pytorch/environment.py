"""Lets the tests of this process import torch from the environment of the pack, behind their own packages."""

from __future__ import annotations

import importlib.util
import sys

from tests.packs.environments import ROOT, lack

VENV = ROOT / "pytorch/venv"


def need_torch() -> None:
    """Make torch importable, or skip the module that asks; it fails where REQUIRED is set."""
    site = VENV / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    if site.is_dir() and str(site) not in sys.path:
        sys.path.append(str(site))
    if importlib.util.find_spec("torch") is not None:
        return
    lack("pack pytorch is not installed: python -m tests.packs.environments pytorch")
