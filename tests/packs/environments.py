"""Installs the libraries of the packs for tests: `python -m tests.packs.environments [NAME...]`."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from edge_serve.backends.packs import SOURCES
from edge_serve.pack.install import PackWish, find_lock, install, python_version
from edge_serve.pack.versions import sweep

ROOT = Path(__file__).parents[2] / "build/packs"
#: set by .ci/run: a pack or a library that is not installed is a failure, not a reason to skip
REQUIRED = "PACKS_REQUIRED"


def names() -> list[str]:
    """Return the packs that have libraries."""
    return sorted(path.parent.name for path in SOURCES.glob("*/backend.py"))


def make(name: str) -> Path:
    """Install a pack below ROOT unless it is there with the same libraries. Return its directory."""
    source = SOURCES / name
    lock = find_lock(source, python_version(sys.executable), platform.machine())
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest() if lock is not None else ""
    manifest = ROOT / name / "pack.json"
    if not manifest.is_file() or json.loads(manifest.read_text())["requirements_sha256"] != wanted:
        install(PackWish(name, source, sys.executable), ROOT)
        sweep(name, ROOT)
    return ROOT / name


def installed(name: str) -> Path:
    """Return the directory of a pack below ROOT.

    The test is skipped if it is not there, and fails where REQUIRED is set.
    """
    if not (ROOT / name / "pack.json").is_file():
        lack(f"pack {name} is not installed: python -m tests.packs.environments {name}")
    return ROOT / name


def backends_with(name: str, root: Path) -> Path:
    """Return a backend directory in `root` with the present files of a pack and its libraries below ROOT."""
    libraries = installed(name)
    place = root / name
    place.mkdir(parents=True)
    for file in (SOURCES / name).glob("*.py"):
        (place / file.name).symlink_to(file)
    for part in ("venv", "pack.json"):
        (place / part).symlink_to(libraries / part)
    return root


def lack(reason: str) -> NoReturn:
    """Skip the test, or the module that is being imported; fail it where REQUIRED is set."""
    if os.environ.get(REQUIRED):
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)


def environment_with(place: Path, requirements: Sequence[str]) -> Path:
    """Return the interpreter of a virtual environment, which is made if it is not there, with these packages."""
    python = place / "bin/python"
    if not python.exists():
        venv.create(place, with_pip=True, symlinks=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *requirements], check=True)
    return python


def main(given: Sequence[str]) -> int:
    """Install packs. Return the exit status."""
    for name in given or names():
        print(make(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
