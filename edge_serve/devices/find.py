"""Runs the probe and reads what it printed. A machine without a sign of a driver starts no process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_serve.devices import probe
from edge_serve.devices.device import Gpu, Gpus
from edge_serve.devices.probe import LIBRARY

#: how long the driver may take, seconds: without nvidia-persistenced it initialises each card on first use
PROBE_SECONDS = 30.0

#: device files of a driver for GPUs: of a card, of a Jetson (two generations), of Windows below WSL
_NODES = ("dev/nvidiactl", "dev/nvhost-gpu", "dev/nvgpu", "dev/dxg")

#: CUresult (cuda.h) -> the fix
_ADVICE = {
    0: f"install NVIDIA's driver, which brings {LIBRARY}; in a container, give it the driver (--gpus all)",
    34: "remove the stub of the CUDA toolkit (.../lib/stubs) from LD_LIBRARY_PATH",
    46: "another program has the GPU for itself: see nvidia-smi, compute mode",
    100: "CUDA_VISIBLE_DEVICES may hide the GPU; compare with nvidia-smi -L",
    101: "CUDA_VISIBLE_DEVICES names a GPU that is not there; compare with nvidia-smi -L",
    802: "start nvidia-fabricmanager, and try again",
    803: "the driver was replaced under the running kernel: restart the machine",
    804: "remove CUDA's compatibility package (libcuda of /usr/local/cuda/compat), or install a newer driver",
    999: "look at: dmesg | grep -i nvrm; nvidia-modprobe -u -c 0; and be in the group video",
}


def find_devices(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Gpus:
    """Return the GPUs that CUDA programs of this process's children see. Takes up to `PROBE_SECONDS`: in a thread.

    Args:
        root: the root directory; another one in tests.
        environ: CUDA_VISIBLE_DEVICES and LD_LIBRARY_PATH count.
    """
    if not _hinted(root, environ):
        return Gpus()
    command = [sys.executable, "-I", "-S", probe.__file__]  # no module of the working directory
    try:
        done = subprocess.run(command, env=dict(environ), capture_output=True, timeout=PROBE_SECONDS, text=True)
    except subprocess.TimeoutExpired:
        return _none(f"the CUDA driver did not answer within {PROBE_SECONDS:g} s", _ADVICE[999])
    except OSError as error:
        return _none(f"the CUDA driver could not be asked: {error}", "")
    if done.returncode:
        return _none(f"the process that asked the CUDA driver {_ending(done.returncode)}", _ADVICE[999])
    try:
        return _read(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError) as error:
        return _none(f"the CUDA driver gave an answer that cannot be read: {error}", _ADVICE[999])


def _hinted(root: Path, environ: Mapping[str, str]) -> bool:
    """Return whether anything hints at a driver: its device files, or its library where LD_LIBRARY_PATH points."""
    folders = [Path(one) for one in environ.get("LD_LIBRARY_PATH", "").split(":") if one]
    return any((root / node).exists() for node in _NODES) or any((one / LIBRARY).exists() for one in folders)


def _read(document: dict[str, Any]) -> Gpus:
    if "error" in document:
        return _none(f"CUDA does not work: {document['error']}", _ADVICE.get(document["code"], ""))
    devices = tuple(
        Gpu(**{**one, "capability": (int(one["capability"][0]), int(one["capability"][1]))})
        for one in document["devices"]
    )
    major, minor = document["cuda"]
    if not devices:
        return Gpus((), (major, minor), "the CUDA driver has no device", _ADVICE[100])
    return Gpus(devices, (major, minor))


def _none(reason: str, advice: str) -> Gpus:
    return Gpus(reason=reason, advice=advice)


def _ending(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
