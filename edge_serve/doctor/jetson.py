"""A Jetson: JetPack's packages, the slots of its boot loader, the power mode, and the groups that may use the GPU.

The facts are NVIDIA's programs' own: `run` calls them with a time limit, and tests replace it by recordings.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from edge_serve.doctor.finding import Finding
from edge_serve.doctor.gpu import find_machine, package_version, read

#: groups of the service (systemd/edge-serve.service.d/10-nvidia.conf)
_GROUPS = ("video", "render")
#: devices of the GPU: JetPack 6 has the first ones, JetPack 7 those of NVIDIA's driver for PCs too
_DEVICES = (
    "dev/nvmap", "dev/nvhost-gpu", "dev/nvhost-ctrl-gpu", "dev/nvgpu/igpu0/ctrl", "dev/nvidia0", "dev/nvidiactl",
    "dev/dri/renderD128",
)  # fmt: skip
_LIMIT_SECONDS = 10.0

#: a command -> its output; "" = it is not there, or it failed
Run = Callable[[Sequence[str]], str]


def run_program(command: Sequence[str]) -> str:
    """Return the output of a program; "" = it is not there, failed, or took too long."""
    environ = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_SECONDS, env=environ
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def examine_jetson(root: Path = Path("/"), run: Run = run_program) -> Iterator[Finding]:
    """Examine a Jetson; there are no findings on other machines."""
    if find_machine(root).kind != "jetson":
        return
    yield from _packages(root)
    yield from _slots(run)
    yield _power(run)
    yield from _groups(root)


def _packages(root: Path) -> Iterator[Finding]:
    jetpack = package_version(root, "nvidia-jetpack")
    if jetpack:
        yield Finding("jetson", f"JetPack {jetpack}", True)
    else:
        text = "the package nvidia-jetpack is not installed: CUDA and TensorRT may be missing"
        yield Finding("jetson", text, None, "apt-get install nvidia-jetpack")
    module = package_version(root, "python3-libnvinfer")
    if not module:
        yield Finding("jetson", "TensorRT's module for Python is missing", None, "apt-get install python3-libnvinfer")
    elif find_spec("tensorrt") is None:
        text = f"TensorRT {module} is installed, but this environment does not reach it"
        yield Finding("jetson", text, False, "install edge-serve's package, or: python3 -m venv --system-site-packages")
    else:
        yield Finding("jetson", f"TensorRT {module} is reached from this environment", True)


def _slots(run: Run) -> Iterator[Finding]:
    """Examine the two copies of the boot loader, and of the root if it has two."""
    loader = run(["nvbootctrl", "dump-slots-info"])
    if not loader:
        yield Finding("jetson", "the slots of the boot loader could not be read (nvbootctrl)", None, "try it as root")
        return
    yield _slot("boot loader", loader)
    system = run(["nvbootctrl", "-t", "rootfs", "dump-slots-info"])
    if "num_slots: 2" in system:
        yield _slot("root", system)
    else:
        text = "root has one slot: an update of Jetson Linux that fails has no way back"
        yield Finding("jetson", text, None, "flash with ROOTFS_AB=1 for two (docs/jetson.md)")


def _slot(name: str, text: str) -> Finding:
    current, active = (_word(rf"{kind} \w+ slot: (\w)", text) for kind in ("Current", "Active"))
    states = re.findall(r"^slot: (\d+),.*status: (.+?)\s*$", text, re.MULTILINE)
    bad = [f"{'AB'[int(number) % 2]} is {state}" for number, state in states if state != "normal"]
    if not current or not active or not states:
        return Finding("jetson", f"the slots of the {name} are unknown: found {text.strip()[:80]!r}")
    head = f"{name}: slot {current}"
    if bad:
        advice = "the next failed start has no way back: update or flash that slot (docs/jetson.md)"
        return Finding("jetson", f"{head}; slot {', slot '.join(bad)}", False, advice)
    if current != active:
        return Finding("jetson", f"{head}; the next start uses slot {active}")
    return Finding("jetson", head, True)


def _power(run: Run) -> Finding:
    mode = _word(r"NV Power Mode: *(\S+)", run(["nvpmodel", "-q"]))
    if not mode:
        return Finding("jetson", "the power mode could not be read (nvpmodel)", None, "try it as root")
    advice = "" if mode.startswith("MAXN") else "a higher mode is faster: nvpmodel -p --verbose lists them"
    return Finding("jetson", f"power mode {mode}", None, advice)


def _groups(root: Path) -> Iterator[Finding]:
    """Examine whether the service and this user may open the GPU's devices."""
    names = {}
    for line in read(root / "etc/group").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdigit():
            names[int(fields[2])] = fields[0]
    missing = [group for group in _GROUPS if group not in names.values()]
    if missing:
        text = f"the group {' and the group '.join(missing)} is missing: systemd does not start edge-serve without it"
        yield Finding("jetson", text, False, f"groupadd --system {missing[0]}")
    devices = [root / name for name in _DEVICES if (root / name).exists()]
    foreign = [path for path in devices if not _open_to_service(path, names)]
    for path in foreign:
        name, group = path.relative_to(root), names.get(path.stat().st_gid, str(path.stat().st_gid))
        advice = f'a rule for udev: KERNEL=="{path.name}", GROUP="video", MODE="0660"'
        yield Finding("jetson", f"/{name} (group {group}) is closed to the service, whose groups are video and render",
                      False, advice)  # fmt: skip
    if devices and not foreign and not missing:
        yield Finding("jetson", "the GPU's devices are open to the groups video and render", True)
    if any(not os.access(path, os.R_OK | os.W_OK) for path in devices):
        yield Finding("jetson", "this user may not use the GPU", None, "usermod -aG video,render <user>; log in again")


def _open_to_service(path: Path, names: dict[int, str]) -> bool:
    status = path.stat()
    by_group = status.st_mode & 0o060 == 0o060 and names.get(status.st_gid) in _GROUPS
    return by_group or status.st_mode & 0o006 == 0o006


def _word(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""
