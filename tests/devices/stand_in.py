"""The stand-in driver: builds libcuda.cpp once per run, and gives the environment in which it is found."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from edge_serve.devices.probe import LIBRARY


def build(folder: Path) -> Path:
    """Build the stand-in libcuda.so.1 in a folder. Return the folder."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to build the stand-in libcuda with")
    (folder / LIBRARY).write_bytes(_compiled())
    return folder


@functools.cache
def _compiled() -> bytes:
    """Compile the stand-in, once for all modules with tests."""
    source = Path(__file__).with_name("libcuda.cpp")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, LIBRARY)
        command = ["g++", "-shared", "-fPIC", "-std=c++17", "-O1", "-o", str(target), str(source)]
        subprocess.run(command, check=True, timeout=120)
        return target.read_bytes()


def environ(folder: Path, **fields: object) -> dict[str, str]:
    """Return the variables that make a process find the stand-in, with what libcuda.cpp describes."""
    described = " ".join(f"{name}={value}" for name, value in fields.items())
    return {"LD_LIBRARY_PATH": str(folder), "STAND_IN_CUDA": described}


def prefix(folder: Path, **fields: object) -> list[str]:
    """Return the start of a command that finds the stand-in."""
    return ["env", *(f"{name}={value}" for name, value in environ(folder, **fields).items())]
