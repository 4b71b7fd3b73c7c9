"""`edge-serve doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_serve.workers import landlock


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        good: True = fine, False = needs doing, None = for information.
        advice: what to do about it.
    """

    topic: str
    text: str
    good: bool | None = None
    advice: str = ""


#: backend -> (module that it needs, distributions that bring it, how to get it)
_BACKENDS = {
    "python": ("numpy", ("numpy",), ""),
    "onnxruntime": ("onnxruntime", ("onnxruntime-gpu", "onnxruntime"), "pip install onnxruntime"),
    "tensorrt": ("tensorrt", ("tensorrt",), "not offered yet; export the model to ONNX and serve it with onnxruntime"),
}


def examine(ports: tuple[int, ...] = (8000, 8001, 8002)) -> Iterator[Finding]:
    """Look around; changes nothing."""
    yield from _machine()
    yield from _backends()
    yield from _gpu()
    yield from _limits()
    yield from _sandbox()
    for port in ports:
        yield _port(port)


def report(findings: Iterator[Finding]) -> tuple[str, bool]:
    """The findings as text, and whether none of them needs doing."""
    lines, good = [], True
    for finding in findings:
        mark = {True: "ok", False: "!!", None: "--"}[finding.good]
        lines.append(f"{mark}  {finding.topic:<12} {finding.text}")
        if finding.advice:
            lines.append(f"{'':16} -> {finding.advice}")
        good = good and finding.good is not False
    return "\n".join(lines), good


def _machine() -> Iterator[Finding]:
    version = platform.python_version()
    supported = (3, 10) <= sys.version_info[:2] <= (3, 13)
    yield Finding("python", f"{version} at {sys.executable}", supported, "" if supported else "use Python 3.10 to 3.13")
    yield Finding(
        "machine", f"{platform.machine()}, {os.cpu_count()} cores, {_memory()} of memory, {platform.release()}"
    )
    memfd = hasattr(os, "memfd_create")
    yield Finding(
        "tensors",
        "memfd available" if memfd else "memfd_create is missing",
        memfd,
        "" if memfd else "a Linux kernel >= 3.17",
    )


def _sandbox() -> Iterator[Finding]:
    version = landlock.version()
    if version >= landlock.WITH_SCOPES:
        yield Finding("sandbox", f"Landlock {version}: models are kept from the server's files and processes", True)
    elif version >= landlock.OLDEST:
        yield Finding(
            "sandbox", f"Landlock {version}: models are kept from the server's files, and may send it signals"
        )
    else:
        text = (
            f"Landlock {version}, {landlock.OLDEST} is needed: models can read the server's keys and each other's files"
        )
        yield Finding("sandbox", text, None, "a Linux kernel >= 6.12 with CONFIG_SECURITY_LANDLOCK (docs/security.md)")


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{total / (1 << 30):.1f} GiB"


def _backends() -> Iterator[Finding]:
    for name, (module, distributions, advice) in _BACKENDS.items():
        there = importlib.util.find_spec(module) is not None
        versions = [f"{dist} {_version(dist)}" for dist in distributions if _version(dist)]
        text = f"{name}: {', '.join(versions) or 'available'}" if there else f"{name}: not installed"
        yield Finding("backend", text, True if there else None, "" if there else advice)
    if _version("onnxruntime") and _version("onnxruntime-gpu"):
        yield Finding(
            "backend",
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other",
            False,
            "pip uninstall both, then install the one you want",
        )


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _gpu() -> Iterator[Finding]:
    driver = Path("/proc/driver/nvidia/version")
    tegra = Path("/etc/nv_tegra_release")
    found = next((path for path in (driver, tegra) if path.exists()), None)
    if found is not None:
        yield Finding("gpu", found.read_text(errors="replace").partition("\n")[0], True)
    else:
        tool = " (nvidia-smi is there: is the driver loaded?)" if shutil.which("nvidia-smi") else ""
        yield Finding("gpu", f"no NVIDIA driver found; models run on the CPU{tool}")


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard >= 4096 or hard == resource.RLIM_INFINITY
    yield Finding(
        "limits",
        f"open files: {soft}, can be raised to {hard}",
        enough,
        "" if enough else "LimitNOFILE=65536 in the unit",
    )


def _port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Finding(
                "port",
                f"{port}: {error.strerror}",
                False,
                f"stop what listens there, or choose another port than {port}",
            )
    return Finding("port", f"{port}: free", True)
