"""TensorRT's own Python bindings in the cache of the tests, with the stand-in libnvinfer beside them.

`python -m tests.nvinfer.genuine` installs and builds everything (2 MB from the package index, a C++ compiler). The
tests build the stand-in again when its sources change, and never use the package index. `--cuda` builds the stand-in
with nvcc too, for a machine with a GPU (tests/gpu/test_bindings.py); that machine needs neither nvcc nor the index.
"""

from __future__ import annotations

import contextlib
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
DISTRIBUTIONS = {
    "8.6.1": "tensorrt-bindings==8.6.1",
    "10.3.0": "tensorrt-cu12-bindings==10.3.0",
    "11.4.0": "tensorrt-cu13-bindings==11.4.0.106",
}
#: the package `tensorrt` re-exports the bindings
PACKAGE = """from tensorrt_bindings import *
from tensorrt_bindings import __version__
"""
#: here it also gives the stand-in the devices of the host CudaApi
CONNECT = """from tests.nvinfer.streams import connect

connect(__version__)
"""
#: of nvcc: code that the driver compiles for GPUs from Turing on
NVCC = ["nvcc", "-x", "cu", "-gencode=arch=compute_75,code=compute_75", "-Xcompiler", "-fPIC"]


class Missing(Exception):
    """The bindings cannot be used here, with the reason and the remedy."""


def place(version: str, cuda: bool = False) -> Path:
    """Return the folder for PYTHONPATH that has the bindings of a version, over the host or over CUDA."""
    return CACHE / f"{version}-{sys.implementation.cache_tag}{'-cuda' if cuda else ''}"


def ready(version: str) -> Path:
    """Return the folder with the bindings, and with a stand-in built from the present sources.

    Raises:
        Missing: the bindings are not installed, or there is no compiler.
    """
    if not place(version).is_dir():
        raise Missing(f"{DISTRIBUTIONS[version]} is not installed: .venv/bin/python -m tests.nvinfer.genuine")
    if not is_built(version) and shutil.which("g++") is None:
        raise Missing("no g++ to build the stand-in libnvinfer with")
    build(version)
    return place(version)


def environ(version: str) -> dict[str, str]:
    """Return the variables of a process that imports the bindings as `tensorrt`."""
    return {"PYTHONPATH": f"{ready(version)}:{STAND_INS}:{ROOT}"}


def install(version: str, cuda: bool = False) -> None:
    """Install the bindings of a version, unless they are there.

    Raises:
        subprocess.CalledProcessError: pip fails.
    """
    if place(version, cuda).is_dir():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        made = Path(folder) / "made"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wheels = ["--no-deps", "--only-binary=:all:", "--target", str(made)]
        subprocess.run([*pip, *wheels, DISTRIBUTIONS[version]], check=True, timeout=120)
        (made / "tensorrt").mkdir()
        (made / "tensorrt/__init__.py").write_text(PACKAGE if cuda else PACKAGE + CONNECT)
        made.rename(place(version, cuda))


def sources(version: str) -> str:
    """Return a digest of the sources of the stand-in."""
    content = b"".join(one.read_bytes() for one in sorted(HERE.glob("*.[ch]pp")))
    return hashlib.sha256(content + version.encode()).hexdigest()


def is_built(version: str, cuda: bool = False) -> bool:
    """Return whether the stand-in is built from the present sources."""
    mark = place(version, cuda) / "sources"
    return mark.is_file() and mark.read_text() == sources(version)


def build(version: str, cuda: bool = False) -> None:
    """Build the stand-in for a version, unless it is built from the present sources."""
    if is_built(version, cuda):
        return
    libraries, major = place(version, cuda) / "tensorrt_bindings", version.partition(".")[0]
    name = f"libnvinfer.so.{major}"
    made = libraries / f"{name}.{os.getpid()}"
    compiler = NVCC if cuda else ["g++", "-fPIC"]
    options = ["-shared", "-std=c++17", "-O1", f"-DSTAND_IN_MAJOR={major}", f'-DSTAND_IN_VERSION="{version}"']
    linker = ["-Xlinker", f"-soname={name}", "-o", str(made)]
    subprocess.run([*compiler, *options, *linker, str(HERE / "nvinfer.cpp")], check=True, timeout=300)
    made.replace(libraries / name)
    for other in ("libnvonnxparser", "libnvinfer_plugin", "libnvparsers"):  # one library under three names
        with contextlib.suppress(FileExistsError):
            (libraries / f"{other}.so.{major}").symlink_to(name)
    (place(version, cuda) / "sources").write_text(sources(version))


def main() -> None:
    """Install and build everything that the package index has for this Python."""
    for version, distribution in DISTRIBUTIONS.items():
        for cuda in (False, True) if "--cuda" in sys.argv else (False,):
            try:
                install(version, cuda)
            except subprocess.CalledProcessError:
                print(f"{distribution} cannot be installed here: its tests are skipped", file=sys.stderr)
                continue
            build(version, cuda)
            print(place(version, cuda))


if __name__ == "__main__":
    main()
