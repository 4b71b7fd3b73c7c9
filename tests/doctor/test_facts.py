"""The facts by which releases are matched to a device, on machines that tests make up."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from edge_serve.doctor.facts import find_facts
from edge_serve.doctor.gpu import examine_devices
from tests.devices import stand_in
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


def test_gpus_are_those_of_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stand_in.build(tmp_path)
    for name, value in stand_in.environ(folder, devices=2, capability="8.9", memory=2 << 30).items():
        monkeypatch.setenv(name, value)
    found = find_facts(root_with(tmp_path, proc__driver__nvidia__version=CLOSED))
    assert (found["sm"], found["driver"]) == ("8.9,8.9", "555.42.02")
    assert (found["gpu"], found["gpu_memory_bytes"]) == ("Stand-in GPU 0,Stand-in GPU 1", str(2 << 30))
    assert [one.text for one in examine_devices(tmp_path)][1].startswith(
        "GPU 1: Stand-in GPU 1, compute capability 8.9"
    )

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "sm" not in find_facts(tmp_path)
    (finding,) = examine_devices(tmp_path)
    assert finding.good is False
    assert "CUDA_VISIBLE_DEVICES" in finding.advice
