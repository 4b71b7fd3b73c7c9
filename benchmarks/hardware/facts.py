"""The machine, its GPU, and the installed packages, without anything that names the device or its owner."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.hardware.outcome import Skipped
from benchmarks.report import Row, machine
from edge_serve.devices.find import find_devices

PACKAGES = (
    "numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-cu12", "tensorrt-cu13", "cuda-bindings", "pycuda",
    "nvidia-ml-py", "torch",
)  # fmt: skip
#: file -> what it tells: the board, and the release of JetPack
FILES = {"board": "/proc/device-tree/model", "jetson": "/etc/nv_tegra_release", "system": "/etc/os-release"}


def collect() -> dict[str, Any]:
    """Return the facts. Left out: host name, addresses, serial numbers, UUIDs, paths."""
    gpus = find_devices()
    return {
        "machine": machine(),
        "gpus": [str(one) for one in gpus.found],
        "gpu_problem": " ".join(filter(None, (gpus.reason, gpus.advice))),
        "cuda_of_driver": ".".join(map(str, gpus.cuda)),
        "driver": _driver(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        **{name: text for name, path in FILES.items() if (text := _first_line(path))},
    }


def boot() -> Row:
    """Return what systemd measured of the last start of the machine.

    Raises:
        Skipped: there is no systemd, or the start is not over.
    """
    try:
        done = subprocess.run(["systemd-analyze", "time"], capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        raise Skipped("there is no systemd") from None
    if done.returncode:
        raise Skipped(f"systemd-analyze: {(done.stderr or done.stdout).strip()[-300:]}")
    return {"boot": done.stdout.splitlines()[0]}


def _driver() -> str:
    found = re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", _first_line("/proc/driver/nvidia/version"))
    return found[1] if found else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().rstrip("\0").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""
