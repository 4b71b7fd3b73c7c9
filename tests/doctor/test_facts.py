"""The facts by which releases are matched to a device, on machines that tests make up."""

from __future__ import annotations

import platform
import sys
import types
from pathlib import Path

import pytest

from edge_serve.doctor.facts import find_facts
from tests.doctor.test_gpu import CLOSED, TEGRA, root_with

DPKG = "Package: a\nVersion: 1\n\nPackage: nvidia-jetpack\nStatus: install ok installed\nVersion: 6.2+b77\n\n"


def test_a_pc_without_a_gpu_has_no_facts_of_one(tmp_path: Path) -> None:
    found = find_facts(tmp_path)
    assert (found["arch"], found["kind"]) == (platform.machine(), "pc")
    assert int(found["memory_bytes"]) > 1 << 30
    assert not found.keys() & {"driver", "sm", "gpu", "l4t", "jetpack", "tensorrt"}
    assert all(found.values())


def test_a_jetson_has_its_release_and_its_jetpack(tmp_path: Path) -> None:
    found = find_facts(root_with(tmp_path, etc__nv_tegra_release=TEGRA, var__lib__dpkg__status=DPKG))
    assert (found["kind"], found["l4t"], found["jetpack"]) == ("jetson", "36.4.3", "6.2")


def test_gpus_are_asked_for_their_compute_capability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = types.ModuleType("pynvml")
    for name, value in {
        "NVMLError": RuntimeError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetCudaComputeCapability": lambda number: (8, 7 + 2 * number),
        "nvmlDeviceGetName": lambda number: f"GPU, number {number}",
        "nvmlDeviceGetMemoryInfo": lambda number: types.SimpleNamespace(total=(2 - number) << 30),
    }.items():
        setattr(nvml, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = find_facts(root_with(tmp_path, proc__driver__nvidia__version=CLOSED))
    assert (found["sm"], found["driver"]) == ("8.7,8.9", "555.42.02")
    assert (found["gpu"], found["gpu_memory_bytes"]) == ("GPU  number 0,GPU  number 1", str(1 << 30))

    setattr(nvml, "nvmlInit", lambda: (_ for _ in ()).throw(RuntimeError("no driver")))  # noqa: B010 (a module)
    assert "sm" not in find_facts(tmp_path)
