"""A Jetson's packages, slots, power mode, and groups, from outputs that were recorded on devices of other people."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from edge_serve.doctor import jetson, machine
from edge_serve.doctor.finding import Finding
from edge_serve.doctor.gpu import package_version
from edge_serve.doctor.jetson import examine_jetson, run_program
from edge_serve.doctor.libraries import examine_libraries
from tests.doctor.test_gpu import TEGRA, root_with

#: nvbootctrl of JetPack 6 (Jetson Linux 36.4.7), from a public report
LOADER = """\
Current version: 36.4.7
Capsule update status: 0
Current bootloader slot: B
Active bootloader slot: B
num_slots: 2
slot: 0,             status: normal
slot: 1,             status: normal
"""
#: the form that NVIDIA's guide shows for a root with two slots
ROOT = """\
Current rootfs slot: A
Active rootfs slot: A
num_slots: 2
slot: 0,             retry_count: 3,             status: normal
slot: 1,             retry_count: 3,             status: normal
"""
#: nvpmodel of JetPack 6, and of JetPack 4 with the warnings before it
POWER, OLD_POWER = "NV Power Mode: MAXN\n0\n", "NVPM WARN: fan mode is not set!\nNV Power Mode: MODE_15W_6CORE\n2\n"

DPKG = """\
Package: nvidia-jetpack
Status: install ok installed
Architecture: arm64
Version: 6.2.1+b38
Depends: nvidia-jetpack-runtime (= 6.2.1+b38)

Package: python3-libnvinfer
Status: install ok installed
Version: 10.3.0.30-1+cuda12.5

"""


class Programs:
    """Recorded programs; those without a recording are not there."""

    def __init__(self, loader: str = LOADER, system: str = ROOT, power: str = POWER) -> None:
        self.outputs = {
            ("nvbootctrl", "dump-slots-info"): loader,
            ("nvbootctrl", "-t", "rootfs", "dump-slots-info"): system,
            ("nvpmodel", "-q"): power,
        }

    def __call__(self, command: Sequence[str]) -> str:
        return self.outputs[tuple(command)]


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    """An Orin whose devices belong to the group video, which is the group of this process."""
    group = f"root:x:{os.getgid() + 1}:\nvideo:x:{os.getgid()}:\nrender:x:9999:edge-serve\nbroken\n"
    root = root_with(tmp_path, etc__nv_tegra_release=TEGRA, etc__group=group, var__lib__dpkg__status=DPKG,
                     dev__nvmap="")  # fmt: skip
    (root / "dev/nvmap").chmod(0o660)
    return root


def found(root: Path, programs: Programs | None = None) -> list[Finding]:
    return list(examine_jetson(root, programs or Programs()))


def line(root: Path, word: str, programs: Programs | None = None) -> Finding:
    (finding,) = [one for one in found(root, programs) if word in one.text]
    return finding


def test_other_machines_have_no_findings_of_a_jetson(tmp_path: Path) -> None:
    assert found(tmp_path) == []


def test_a_jetson_without_faults(orin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetson, "find_spec", lambda name: object())

    assert [(one.text, one.good) for one in found(orin)] == [
        ("JetPack 6.2.1", True),
        ("TensorRT 10.3.0.30 is reached from this environment", True),
        ("boot loader: slot B", True),
        ("root: slot A", True),
        ("power mode MAXN", None),
        ("the GPU's devices are open to the groups video and render", True),
    ]


def test_a_tensorrt_that_is_not_reached_is_a_fault(orin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetson, "find_spec", lambda name: None)

    finding = line(orin, "TensorRT")
    assert (finding.text, finding.good) == (
        "TensorRT 10.3.0.30 is installed, but this environment does not reach it",
        False,
    )
    assert "--system-site-packages" in finding.advice


def test_the_advice_for_onnx_models_on_a_jetson_is_a_plan(orin: Path) -> None:
    (finding,) = examine_libraries(orin, (), {})
    assert finding.text == "onnxruntime-gpu is not installed: ONNX models run on the CPU"
    assert "edge-serve build" in finding.advice


def test_missing_packages_are_named_with_the_command_that_installs_them(orin: Path) -> None:
    (orin / "var/lib/dpkg/status").write_text(DPKG.replace("install ok installed", "deinstall ok config-files"))

    assert [one.advice for one in found(orin)[:2]] == [
        "apt-get install nvidia-jetpack",
        "apt-get install python3-libnvinfer",
    ]


def test_packages_are_found_in_a_list_of_megabytes(tmp_path: Path) -> None:
    others = "".join(f"Package: lib{n}\nStatus: install ok installed\nVersion: 1:{n}.0-1\n\n" for n in range(5000))
    root_with(tmp_path, var__lib__dpkg__status=others + DPKG + others)

    assert len(others) > 200_000
    assert package_version(tmp_path, "nvidia-jetpack") == "6.2.1"
    assert package_version(tmp_path, "lib4999") == "4999.0"
    assert package_version(tmp_path, "nvidia") == ""


@pytest.mark.parametrize(
    ("loader", "text", "good"),
    [
        (LOADER.replace("Active bootloader slot: B", "Active bootloader slot: A"), "the next start uses slot A", None),
        (LOADER.replace("normal", "unbootable", 1), "slot B; slot A is unbootable", False),
        ("", "could not be read (nvbootctrl)", None),
        ("Error: no EFI variables", "unknown: found 'Error: no EFI variables'", None),
    ],
)  # fmt: skip
def test_slots_of_the_boot_loader(orin: Path, loader: str, text: str, good: bool | None) -> None:
    finding = line(orin, "boot loader", Programs(loader))
    assert text in finding.text
    assert finding.good is good


@pytest.mark.parametrize("system", ["", "num_slots: 1\n", "Rootfs A/B is not enabled\n"])
def test_a_root_with_one_slot_is_reported(orin: Path, system: str) -> None:
    finding = line(orin, "root has one slot", Programs(system=system))
    assert (finding.good, "ROOTFS_AB=1" in finding.advice) == (None, True)


def test_the_power_mode_comes_with_the_way_to_a_higher_one(orin: Path) -> None:
    assert line(orin, "power mode", Programs(power=OLD_POWER)).text == "power mode MODE_15W_6CORE"
    assert "nvpmodel -p --verbose" in line(orin, "power mode", Programs(power=OLD_POWER)).advice
    assert "could not be read" in line(orin, "power mode", Programs(power="")).text


def test_a_group_that_is_missing_is_a_fault(orin: Path) -> None:
    (orin / "etc/group").write_text(f"video:x:{os.getgid()}:\n")

    finding = line(orin, "the group render is missing")
    assert (finding.good, finding.advice) == (False, "groupadd --system render")


def test_a_device_of_another_group_is_a_fault(orin: Path) -> None:
    (orin / "etc/group").write_text(f"video:x:9998:\nrender:x:9999:\nstaff:x:{os.getgid()}:\n")

    assert line(orin, "/dev/nvmap (group staff) is closed to the service").good is False
    (orin / "dev/nvmap").chmod(0o666)
    assert line(orin, "the GPU's devices are open").good is True


def test_programs_that_are_missing_or_fail_give_no_output(tmp_path: Path) -> None:
    assert run_program([sys.executable, "-c", "print('MAXN')"]) == "MAXN\n"
    assert run_program([sys.executable, "-c", "print('MAXN'); exit(1)"]) == ""
    assert run_program([str(tmp_path / "nvpmodel"), "-q"]) == ""


def test_the_version_of_a_linked_module_is_that_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, program = tmp_path / "dist-packages", tmp_path / "site-packages"
    (system / "nvinfer_here").mkdir(parents=True)
    (system / "nvinfer_here/__init__.py").touch()
    (system / "nvinfer_here-10.3.0.dist-info").mkdir()
    program.mkdir()
    (program / "nvinfer_here").symlink_to(system / "nvinfer_here")
    (program / "nvinfer_gone").symlink_to(system / "nvinfer_gone")
    monkeypatch.syspath_prepend(program)

    assert machine.installed("nvinfer_here") == "10.3.0"
    assert machine.installed("nvinfer_gone") == ""
