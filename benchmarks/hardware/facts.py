"""The machine, its GPU, and the installed packages, without anything that names the device or its owner."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from benchmarks.hardware.outcome import Skipped
from benchmarks.report import Row, machine, package_version
from edge_serve.devices.find import find_devices
from edge_serve.doctor.gpu import driver_version

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
        "driver": driver_version(_first_line("/proc/driver/nvidia/version")),
        "packages": {name: version for name in PACKAGES if (version := package_version(name))},
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


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().rstrip("\0").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""
