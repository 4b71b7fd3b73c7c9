"""The NVIDIA GPU: which machine this is (WSL, Jetson, PC), its driver, and the device files.

Everything is read from files below `root`, which stands in for / in tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from edge_serve.devices.find import find_devices
from edge_serve.doctor.finding import Finding
from edge_serve.records import frozen

_NVIDIA = "0x10de"
#: release of Jetson Linux (L4T) -> JetPack; the longest prefix counts
_JETPACKS = {
    "32": "JetPack 4", "35": "JetPack 5", "36": "JetPack 6", "36.3": "JetPack 6.0", "36.4": "JetPack 6.1 or 6.2",
    "38": "JetPack 7", "39": "JetPack 7",
}  # fmt: skip
#: CUDA's major version -> oldest driver for it (CUDA Toolkit release notes, minor version compatibility)
OLDEST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}


@frozen
class GpuMachine:
    """The kind of machine and its NVIDIA driver.

    Attributes:
        kind: `wsl`, `jetson` or `pc`.
        driver: version of the NVIDIA driver; "" = none was found, or it has none of its own.
        gpu: there is an NVIDIA GPU, with or without a driver.
        linux: the release of Jetson Linux, `36.4.3`; "" = it is no Jetson, or it does not say.
    """

    kind: str
    text: str
    driver: str = ""
    gpu: bool = False
    linux: str = ""


def find_machine(root: Path = Path("/")) -> GpuMachine:
    """Return what the machine is."""
    kernel = read(root / "proc/version")
    tegra = read(root / "etc/nv_tegra_release")  # begins with `# R36 (release), REVISION: 4.3, ...`
    driver = driver_version(read(root / "proc/driver/nvidia/version"))
    if tegra or (root / "dev/nvhost-gpu").exists():
        found = re.match(r"# R(\d+) \(release\), REVISION: ([\d.]+)", tegra)
        linux = f"{found[1]}.{found[2]}" if found else ""
        return GpuMachine("jetson", _board(root, linux), driver, gpu=True, linux=linux)
    if "microsoft" in kernel.lower():
        generation = 2 if "WSL2" in kernel or (root / "dev/dxg").exists() else 1
        gpu = (root / "usr/lib/wsl/lib/libcuda.so.1").exists()
        return GpuMachine("wsl", f"WSL {generation} (Windows)", driver, gpu)
    return GpuMachine("pc", "a PC or server", driver, gpu=bool(driver) or _has_card(root))


def driver_version(text: str) -> str:
    """Return the version in /proc/driver/nvidia/version, `555.42.02`; "" = there is none."""
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\b", text, re.MULTILINE)
    return found[1] if found else ""


def _board(root: Path, linux: str) -> str:
    """Describe a Jetson by its board and its release of Jetson Linux."""
    board = read(root / "proc/device-tree/model").rstrip("\0\n ") or "NVIDIA Jetson"
    if not linux:
        return board
    jetpack = max((one for one in _JETPACKS if f"{linux}.".startswith(f"{one}.")), key=len, default="")
    return f"{board}, Jetson Linux {linux}" + (f" ({_JETPACKS[jetpack]})" if jetpack else "")


def _has_card(root: Path) -> bool:
    """Whether a display controller of NVIDIA is on the PCI bus."""
    return any(
        read(vendor).strip() == _NVIDIA and read(vendor.with_name("class")).startswith("0x03")
        for vendor in (root / "sys/bus/pci/devices").glob("*/vendor")
    )


def examine_gpu(root: Path = Path("/")) -> Iterator[Finding]:
    """Examine the machine, its driver and the device files."""
    machine = find_machine(root)
    yield {"wsl": _wsl, "jetson": _jetson, "pc": _pc}[machine.kind](machine)
    if machine.driver and machine.kind == "pc":
        yield from _devices(root)
        if find_spec("pynvml") is None:
            text = "nvidia-ml-py is not installed: no metrics nv_gpu_* and no GPU in the status"
            advice = "pip install nvidia-ml-py (or edge-serve with the extra [nvml]), and restart"
            yield Finding("gpu", text, None, advice)


def examine_devices(root: Path = Path("/")) -> Iterator[Finding]:
    """Examine what the CUDA driver says of its devices, as the server does at its start."""
    devices = find_devices(root)
    for device in devices.found:
        yield Finding("gpu", str(device), True)
    if devices.reason:
        yield Finding("gpu", devices.reason, False, devices.advice)


def _pc(machine: GpuMachine) -> Finding:
    if machine.driver:
        return Finding("gpu", f"NVIDIA driver {machine.driver}", True)
    if machine.gpu:
        advice = "install the distribution's NVIDIA driver, restart, and look at: modprobe nvidia; dmesg | grep -i nvrm"
        return Finding("gpu", "an NVIDIA card without a driver; models run on the CPU", None, advice)
    return Finding("gpu", "no NVIDIA GPU found; models run on the CPU")


def _jetson(machine: GpuMachine) -> Finding:
    return Finding("gpu", machine.text + (f", driver {machine.driver}" if machine.driver else ""), True)


def _wsl(machine: GpuMachine) -> Finding:
    if machine.gpu:
        text = f"{machine.text}: the GPU is reached through the driver of Windows (/usr/lib/wsl/lib/libcuda.so.1)"
        return Finding("gpu", text, True)
    if machine.text.startswith("WSL 1"):
        return Finding("gpu", f"{machine.text} has no GPU; models run on the CPU", None, "wsl --set-version <name> 2")
    text = f"{machine.text}: no libcuda.so.1 from Windows; models run on the CPU"
    advice = "for a GPU: install NVIDIA's driver in Windows, none in Linux, then wsl --shutdown"
    return Finding("gpu", text, None, advice)


def _devices(root: Path) -> Iterator[Finding]:
    """Find device files that CUDA opens and that are missing or closed to this user."""
    for name in ("dev/nvidia0", "dev/nvidiactl", "dev/nvidia-uvm"):
        path = root / name
        if not path.exists():
            advice = "nvidia-modprobe -u -c 0, or start nvidia-persistenced"
            yield Finding("gpu", f"/{name} is missing", False, advice)
        elif not os.access(path, os.R_OK | os.W_OK):
            advice = "be in the group video (usermod -aG video <user>)"
            yield Finding("gpu", f"/{name} may not be opened", False, advice)


def package_version(root: Path, package: str) -> str:
    """Return the version of a package of the distribution, without its revision; "" = it is not installed."""
    text = read(root / "var/lib/dpkg/status", limit=1 << 26)  # megabytes on a Jetson
    found = re.search(rf"^Package: {re.escape(package)}\n(?:.+\n)*", text, re.MULTILINE)
    if found is None or "\nStatus: install ok installed\n" not in found[0]:
        return ""
    version = re.search(r"^Version: (?:\d+:)?(\d[\d.]*)", found[0], re.MULTILINE)
    return version[1] if version else ""


def read(path: Path, limit: int = 1 << 16) -> str:
    """Return the text of a small file; "" = it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""
