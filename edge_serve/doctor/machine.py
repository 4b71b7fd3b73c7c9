"""The machine: Python, kernel, memory, backends, limits, disks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from edge_serve.doctor.finding import Finding
from edge_serve.workers.launch import landlock

_MIB = 1 << 20
#: free bytes and share of a disk below which something will fail soon
_LEAST_BYTES, _LEAST_SHARE = 200 * _MIB, 0.02

#: backend -> (module that it needs, distributions that bring it, how to get it)
_BACKENDS = {
    "python": ("numpy", ("numpy",), ""),
    "onnxruntime": ("onnxruntime", ("onnxruntime-gpu", "onnxruntime"), "pip install onnxruntime"),
    "tensorrt": ("tensorrt", ("tensorrt",), "for plans on an NVIDIA GPU: pip install 'edge-serve[tensorrt]'"),
}


def examine_machine() -> Iterator[Finding]:
    """Examine Python, the kernel and the limits of this process."""
    version = platform.python_version()
    supported = (3, 10) <= sys.version_info[:2] <= (3, 13)
    yield Finding("python", f"{version} at {sys.executable}", supported, "" if supported else "use Python 3.10 to 3.13")
    memory = f"{memory_bytes() / (1 << 30):.1f} GiB"
    yield Finding("machine", f"{platform.machine()}, {os.cpu_count()} cores, {memory} of memory, {platform.release()}")
    if hasattr(os, "memfd_create"):
        yield Finding("tensors", "memfd available", True)
    else:
        yield Finding("tensors", "memfd_create is missing", False, "a Linux kernel >= 3.17")
    yield _limits()
    yield _sandbox()


def memory_bytes() -> int:
    """Return the size of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limits() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard >= 4096 or hard == resource.RLIM_INFINITY
    text = f"open files: {soft}, can be raised to {hard}"
    return Finding("limits", text, enough, "" if enough else "LimitNOFILE=65536 in the unit")


def _sandbox() -> Finding:
    version = landlock.version()
    if version >= landlock.WITH_SCOPES:
        return Finding("sandbox", f"Landlock {version}: models are kept from the server's files and processes", True)
    if version >= landlock.OLDEST:
        text = f"Landlock {version}: models are kept from the server's files, and may send it signals"
        return Finding("sandbox", text)
    text = f"Landlock {version}, {landlock.OLDEST} is needed: models can read the server's keys and each other's files"
    return Finding("sandbox", text, None, "a Linux kernel >= 6.12 with CONFIG_SECURITY_LANDLOCK (docs/security.md)")


def examine_backends() -> Iterator[Finding]:
    """Examine the libraries that models run with."""
    for name, (module, distributions, advice) in _BACKENDS.items():
        there = importlib.util.find_spec(module) is not None
        versions = [f"{dist} {installed(dist)}" for dist in distributions if installed(dist)]
        text = f"{name}: {', '.join(versions) or 'available'}" if there else f"{name}: not installed"
        yield Finding("backend", text, True if there else None, "" if there else advice)
    if installed("onnxruntime") and installed("onnxruntime-gpu"):
        text = "onnxruntime and onnxruntime-gpu are both installed and overwrite each other"
        yield Finding("backend", text, False, "pip uninstall both, then install the one you want")


def installed(distribution: str) -> str:
    """Return the version of an installed package; "" = it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return _beside(distribution)


def _beside(module: str) -> str:
    """Return the version of a module that the program links to, from the metadata beside the module itself."""
    try:
        found = importlib.util.find_spec(module)
    except ValueError:  # a module that was made without a file
        return ""
    if found is None or found.origin is None:
        return ""
    packages = Path(os.path.realpath(found.origin)).parents[1]
    names = [path.name for path in packages.glob(f"{module}-*.dist-info")]
    return names[0].removeprefix(f"{module}-").removesuffix(".dist-info") if names else ""


def examine_disks(paths: Iterable[str]) -> Iterator[Finding]:
    """Examine the free space of the disks that these paths lie on, each disk once."""
    seen = set()
    for path in paths:
        place = Path(os.path.realpath(path))  # a link leads to the disk of its target
        while not place.exists() and place != place.parent:
            place = place.parent
        while not os.path.ismount(place):
            place = place.parent
        found = os.statvfs(place)
        if place not in seen and found.f_blocks:  # else it is no disk, as /proc
            seen.add(place)
            yield disk(str(place), found)


def disk(path: str, found: os.statvfs_result) -> Finding:
    """Return what is free on one disk."""
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if found.f_flag & os.ST_RDONLY and not found.f_bfree:  # the root of the device image, which is always full
        return Finding("disk", f"{path}: {total / (1 << 30):.1f} GiB, read-only")
    text = f"{path}: {free / (1 << 30):.1f} of {total / (1 << 30):.1f} GiB free"
    if free < _LEAST_BYTES or free < total * _LEAST_SHARE:
        return Finding("disk", text, False, "make room: logs, uploads of models and updates fail on a full disk")
    if found.f_files and found.f_favail < found.f_files * _LEAST_SHARE:
        return Finding("disk", f"{text}, but {found.f_favail} free inodes", False, "remove small files")
    return Finding("disk", text, True)
