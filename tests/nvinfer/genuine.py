"""TensorRT's own Python bindings in the cache of the tests, with the stand-in libnvinfer beside them.

`python -m tests.nvinfer.genuine` installs and builds everything (2 MB from the package index, a C++ compiler). The
tests build the stand-in again when its sources change, and never use the package index.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STAND_INS = ROOT / "tests/stand_ins"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edge-serve" / "tensorrt-bindings"
#: version of TensorRT -> the distribution with its bindings
DISTRIBUTIONS = {"10.3.0": "tensorrt-cu12-bindings==10.3.0", "11.4.0": "tensorrt-cu13-bindings==11.4.0.106"}
#: the package `tensorrt` re-exports the bindings; here it also connects the stand-in to the devices
PACKAGE = """from tensorrt_bindings import *
from tensorrt_bindings import __version__
from tests.nvinfer.streams import connect

connect(__version__)
"""


class Missing(Exception):
    """The bindings cannot be used here, with the reason and the remedy."""


def place(version: str) -> Path:
    """Return the folder for PYTHONPATH that has the bindings of a version."""
    return CACHE / f"{version}-{sys.implementation.cache_tag}"


def ready(version: str) -> Path:
    """Return the folder with the bindings, and with a stand-in built from the present sources.

    Raises:
        Missing: the bindings are not installed, or there is no compiler.
    """
    folder = place(version)
    if not folder.is_dir():
        raise Missing(f"{DISTRIBUTIONS[version]} is not installed: {Path(sys.executable).name} -m {__spec__.name}")
    if shutil.which("g++") is None:
        raise Missing("no g++ to build the stand-in libnvinfer with")
    build(version, folder)
    return folder


def environ(version: str) -> dict[str, str]:
    """Return the variables of a process that imports the bindings as `tensorrt`."""
    return {"PYTHONPATH": f"{ready(version)}:{STAND_INS}:{ROOT}"}


def install(version: str) -> None:
    """Install the bindings of a version, unless they are there.

    Raises:
        subprocess.CalledProcessError: pip fails.
    """
    if place(version).is_dir():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        made = Path(folder) / "made"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wheels = ["--no-deps", "--only-binary=:all:", "--target", str(made)]
        subprocess.run([*pip, *wheels, DISTRIBUTIONS[version]], check=True, timeout=120)
        (made / "tensorrt").mkdir()
        (made / "tensorrt/__init__.py").write_text(PACKAGE)
        made.rename(place(version))


def build(version: str, folder: Path) -> None:
    """Build the stand-in for a version, unless the one in the folder has these sources."""
    sources = b"".join(one.read_bytes() for one in sorted(HERE.glob("*.[ch]pp")))
    digest = hashlib.sha256(sources + version.encode()).hexdigest()
    mark, libraries = folder / "sources", folder / "tensorrt_bindings"
    if mark.is_file() and mark.read_text() == digest:
        return
    major = version.partition(".")[0]
    name = f"libnvinfer.so.{major}"
    made = libraries / f"{name}.{os.getpid()}"
    defines = [f"-DSTAND_IN_MAJOR={major}", f'-DSTAND_IN_VERSION="{version}"']
    command = ["g++", "-shared", "-fPIC", "-std=c++17", "-O1", f"-Wl,-soname,{name}", *defines]
    subprocess.run([*command, "-o", str(made), str(HERE / "nvinfer.cpp")], check=True, timeout=120)
    made.replace(libraries / name)
    for other in ("libnvonnxparser", "libnvinfer_plugin"):  # one library under three names
        link = libraries / f"{other}.so.{major}"
        if not link.is_symlink():
            link.symlink_to(name)
    mark.write_text(digest)


def main() -> None:
    """Install and build everything."""
    for version in DISTRIBUTIONS:
        install(version)
        print(ready(version))


if __name__ == "__main__":
    main()
