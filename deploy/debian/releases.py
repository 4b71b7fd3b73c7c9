"""The releases of Debian and Ubuntu: the properties that the package depends on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploy.program import Target


@dataclass(frozen=True, slots=True)
class Release:
    """One release of Debian or Ubuntu.

    Attributes:
        tag: goes into the package's version; a later release's sorts after it, so upgrading the system upgrades this.
        python: its python3
        systemd: version, which decides about drop-ins
        glibc: the minor number of glibc 2
        wheels: wheels besides EXTRAS. cuda-bindings are for the TensorRT of JetPack 6 (jammy) and 7 (noble): those of
            CUDA 12 run on the drivers of both
        tested: `make test-system` and `make test-vm` boot it; the others have guards only (docs/service.md)
    """

    tag: str
    python: str
    systemd: int
    glibc: int
    tested: bool
    wheels: tuple[str, ...] = ()


#: release of the image with NVIDIA's driver, and wheels of CUDA 12, which its driver 550 serves: the package for a GPU
GPU_RELEASE = "trixie"
GPU_WHEELS = ("onnxruntime-gpu[cuda,cudnn]<1.27", "cuda-bindings>=12.9.1,<13")

_JETPACK = ("cuda-bindings>=12.9.1,<13",)

RELEASES = {
    "bookworm": Release("deb12", "3.11", 252, 36, tested=True),
    "trixie": Release("deb13", "3.13", 257, 41, tested=True),
    "jammy": Release("ubuntu22.04", "3.10", 249, 35, tested=False, wheels=_JETPACK),
    "noble": Release("ubuntu24.04", "3.12", 255, 39, tested=False, wheels=_JETPACK),
}

#: dpkg's name of a processor -> the kernel's name
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def target(release: Release, arch: str, gpu: bool = False) -> Target:
    """Return the target of the program in the package."""
    return Target(release.python, MACHINES[arch], release.glibc, f"/usr/bin/python{release.python}", gpu)


def this_release(os_release: Path = Path("/etc/os-release")) -> str | None:
    """Return the release that this machine runs; None if it is not in the table."""
    lines = os_release.read_text().splitlines() if os_release.exists() else []
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    name = fields.get("VERSION_CODENAME", "").strip('"')
    return name if name in RELEASES else None
