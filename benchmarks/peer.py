#!/usr/bin/env python3
"""Fetches the server to compare with, Triton 2.51 with its python backend, and perf_analyzer, both from PyPI.

`python benchmarks/peer.py` fetches both into ~/.cache/edge-serve-bench (or BENCH_CACHE=FOLDER) and prints their
places. x86_64 only, as the wheels are. Triton's python backend runs models in the system's Python; perf_analyzer needs
glibc 2.38, so on an older system it runs in a small Debian 13 tree, which takes root and the package mmdebstrap.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

TRITON = "nvidia-pytriton==0.7.0"
PERF_ANALYZER = "perf-analyzer==2.60.0"
CUDA_RUNTIME = "nvidia-cuda-runtime-cu12==12.9.79"
#: Triton's stub was built against NumPy 1
STUB_NUMPY = "numpy<2"
PERF_ANALYZER_GLIBC = (2, 38)
CACHE = Path(os.environ.get("BENCH_CACHE", Path.home() / ".cache/edge-serve-bench"))


class NoPeerError(RuntimeError):
    """A program is not available on this machine; the text says how to get it."""


@contextlib.contextmanager
def noted(notes: list[str]) -> Iterator[None]:
    """End the block if a program is not available on this machine, and note how to get it."""
    try:
        yield
    except NoPeerError as error:
        notes.append(f"not measured: {error}")


def triton(
    repository: Path, http: int, grpc: int, metrics: int, *flags: str, backends: Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment that serve `repository` with the real Triton.

    Args:
        backends: folder of its backends, in place of Triton's own.

    Raises:
        NoPeerError: it could not be fetched, or does not run on this machine.
    """
    server = _triton_files()
    command = [
        f"{server}/bin/tritonserver", f"--model-repository={repository}",
        f"--backend-directory={backends or server / 'backends'}",
        f"--cache-directory={server}/caches", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
        f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}", *flags,
    ]  # fmt: skip
    # the stub is the system's Python: leave out our virtual environment
    return command, {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CACHE / "stub-numpy"), "HOME": str(Path.home())}


def perf_analyzer() -> list[str]:
    """Return the start of a perf_analyzer command line.

    Raises:
        NoPeerError: it could not be fetched, or does not run on this machine.
    """
    if _glibc() >= PERF_ANALYZER_GLIBC:
        root, start = Path("/"), list[str]()
        folder = CACHE / "perf-analyzer"
    else:
        root = CACHE / "debian13"
        folder = root / "opt/pa"
        script = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
        start = ["unshare", "--mount", "sh", "-c", script, str(root)]
    binary, library = folder / "perf_analyzer/bin/perf_analyzer", folder / "cuda/libcudart.so"
    if not binary.exists():
        if start:
            _debian_tree(root)
        _unpack(PERF_ANALYZER, folder, "3.12", "manylinux_2_38_x86_64")
        binary.chmod(0o755)
    if not library.exists():  # --shared-memory needs it, also without a GPU
        _unpack(CUDA_RUNTIME, library.parent, "3.12", "manylinux_2_17_x86_64")
        (library.parent / "nvidia/cuda_runtime/lib/libcudart.so.12").rename(library)
    there = {path: "/" + str(path.relative_to(root)) for path in (binary, library.parent)}
    return [*start, "env", f"LD_LIBRARY_PATH={there[library.parent]}", there[binary]]


def _triton_files() -> Path:
    server = CACHE / "triton/pytriton/tritonserver"
    stub = server / "backends/python/triton_python_backend_stub"
    if not stub.exists():
        version = _system_python()
        _unpack(TRITON, CACHE / "triton", "3.11", "manylinux_2_35_x86_64")
        built = server / "python_backend_stubs" / version / "triton_python_backend_stub"
        if not built.exists():
            raise NoPeerError(f"{TRITON} has no stub for the system's Python {version}")
        (server / "bin/tritonserver").chmod(0o755)
        _pip("install", "--target", str(CACHE / "stub-numpy"), "--python-version", version, STUB_NUMPY)
        shutil.copy(built, stub)
        stub.chmod(0o755)
    return server


def _system_python() -> str:
    command = ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoPeerError("Triton's python backend needs /usr/bin/python3: apt-get install python3") from error


def _unpack(requirement: str, folder: Path, python: str, tag: str) -> None:
    """Unpack a wheel and rename it into place in one step."""
    if platform.machine() != "x86_64":
        raise NoPeerError(f"{requirement} has wheels for x86_64 only, this is {platform.machine()}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching {requirement} into {folder}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        _pip("download", "-d", scratch, "--python-version", python, "--platform", tag, requirement)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(f"{scratch}/files")
        shutil.rmtree(folder, ignore_errors=True)
        Path(f"{scratch}/files").rename(folder)


def _pip(*arguments: str) -> None:
    options = ["-q", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    done = subprocess.run([sys.executable, "-m", "pip", arguments[0], *options, *arguments[1:]])
    if done.returncode:
        raise NoPeerError(f"pip could not get {arguments[-1]}")


def _debian_tree(tree: Path) -> None:
    if os.geteuid() or not shutil.which("mmdebstrap"):
        raise NoPeerError("perf_analyzer needs glibc 2.38, or root and: apt-get install mmdebstrap")
    tree.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(tree, ignore_errors=True)
    print(f"making a Debian 13 tree for perf_analyzer in {tree}", file=sys.stderr)
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "trixie", str(tree), _archive()], check=True)


def _archive() -> str:
    """Return the package archive that this machine uses."""
    for path in [*Path("/etc/apt/sources.list.d").glob("*.sources"), Path("/etc/apt/sources.list")]:
        if path.exists():
            found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?) +(\S+)", path.read_text(), re.MULTILINE)
            if found:
                return found[1]
    raise NoPeerError("no package archive in /etc/apt: is this a Debian?")


def _glibc() -> tuple[int, ...]:
    name, version = platform.libc_ver()
    return tuple(map(int, version.split("."))) if name == "glibc" else (0,)


if __name__ == "__main__":
    print("triton:", triton(Path("MODELS"), 8000, 8001, 8002)[0][0])
    print("perf_analyzer:", " ".join(perf_analyzer()))
