"""The facts of a device by which releases are matched to it: `facts` of `edge-serve doctor --json`."""

from __future__ import annotations

import platform
from pathlib import Path

from edge_serve import __version__
from edge_serve.devices.find import find_devices
from edge_serve.doctor.gpu import find_machine, package_version
from edge_serve.doctor.machine import installed, memory_bytes

#: fact -> the packages that have its version
_LIBRARIES = {"onnxruntime": ("onnxruntime", "onnxruntime-gpu"), "tensorrt": ("tensorrt", "tensorrt-lean")}


def find_facts(root: Path = Path("/")) -> dict[str, str]:
    """Return what is known of this device; a fact that is unknown is absent.

    Args:
        root: stands in for / in tests.
    """
    machine = find_machine(root)
    found = {
        "arch": platform.machine(),
        "kind": machine.kind,
        "edge_serve": __version__,
        "python": platform.python_version(),
        "memory_bytes": str(memory_bytes()),
        "driver": machine.driver,
        "l4t": machine.linux,
        "jetpack": package_version(root, "nvidia-jetpack") if machine.linux else "",
        **_gpus(root),
    }
    for name, packages in _LIBRARIES.items():
        found[name] = next(filter(None, map(installed, packages)), "")
    return {name: value for name, value in found.items() if value}


def _gpus(root: Path) -> dict[str, str]:
    """Return names, compute capabilities (`8.7`), and memory of the GPUs; several are joined by commas."""
    devices = find_devices(root).found
    if not devices:
        return {}
    return {
        "gpu": ",".join(device.name.replace(",", " ") for device in devices),
        "sm": ",".join("{}.{}".format(*device.capability) for device in devices),
        "gpu_memory_bytes": str(min(device.memory_bytes for device in devices)),
    }
