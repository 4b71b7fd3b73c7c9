"""edge-root-failed: leaves a slot where there is no Python. It must decide as fall_back() of health.py does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from image.device import decide
from image.device.slots import Failure
from tests.image.machine import Machine

SCRIPT = Path(__file__).parents[2] / "image/device/initrd/edge-root-failed"
#: version -> the root hash in its kernel
HASHES = {1: "1" * 64, 2: "2" * 64}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with programs that record how they are called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("systemctl", "mount", "umount", "modprobe", "sync"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n')
        (folder / name).chmod(0o755)
    (folder / "systemctl").write_text(
        f"#!/bin/sh\n[ $1 = list-units ] && echo 'systemd-veritysetup@root.service loaded \"failed\"' ||"
        f' echo "systemctl $*" >>{tmp_path}/calls\n'
    )
    return folder


def run(machine: Machine, programs: Path, running: int, kind: str, counted: str = "") -> str:
    """Run the script under a version and return the calls of programs.

    Args:
        counted: name in which the boot loader counted this start
    """
    root = machine.root
    for entry in machine.boot.entries():
        file = machine.boot.entries_directory / entry.name
        file.write_bytes(b"\0kernel\0roothash=" + HASHES[entry.version].encode() + b" quiet\0")
    (root / "cmdline").write_text(f"quiet roothash={HASHES[running]} panic=5\n")
    (root / "efivars").mkdir()
    path = f"\\EFI\\Linux\\{counted}" if counted else ""
    for name, text in (("DevicePartUUID", "EE000000-0000-0000-0000-000000000001"), ("BootCountPath", path)):
        if text:
            variable = b"\6\0\0\0" + f"{text}\0".encode("utf-16-le")
            (root / f"efivars/Loader{name}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f").write_bytes(variable)
    if kind == "root" and not (root / "sys").exists():
        (root / "run").mkdir()
        (root / "run/esp-of-the-boot-loader").symlink_to(machine.boot.esp)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin", "EDGE_RUN": str(root / "run"), "EDGE_ESP": str(machine.boot.esp),
        "EDGE_CMDLINE": str(root / "cmdline"), "EDGE_EFIVARS": str(root / "efivars"), "EDGE_RETRY_SECONDS": "0",
        "EDGE_DEV": str(root / "dev") if (root / "sys").exists() else "/dev", "EDGE_SYS": str(root / "sys"),
        "EDGE_STOPPED": str(root / "stopped"),
    }  # fmt: skip
    subprocess.run(["/bin/sh", str(SCRIPT), kind], env=environment, check=True, timeout=30, capture_output=True)
    calls = programs.parent / "calls"
    return calls.read_text() if calls.exists() else ""


def test_the_slot_is_left_for_the_other_one(tmp_path: Path, programs: Path) -> None:
    machine = Machine(tmp_path / "device", ["edge_1+5.efi", "edge_2+2-1.efi"])

    calls = run(machine, programs, 2, "root")

    assert machine.names() == ["edge_1+5.efi", "edge_2+0.efi"]
    assert "mount -t vfat -o rw,sync /dev/disk/by-partuuid/ee000000-0000-0000-0000-000000000001 " in calls
    assert calls.endswith("systemctl reboot --force\n")
    assert machine.boot.read_failure() == Failure(
        2, "root", "its root cannot be used: systemd-veritysetup@root.service "
    )


def test_an_empty_kernel_is_no_other_system(tmp_path: Path, programs: Path) -> None:
    machine = Machine(tmp_path / "device", ["edge_1+5.efi", "edge_2+2-1.efi"])
    (machine.boot.entries_directory / "edge_1+5.efi").write_bytes(b"")

    run(machine, programs, 2, "root")

    assert machine.names() == ["edge_1+5.efi", "edge_2+2-1.efi"]


def test_the_only_system_stays_and_says_so(tmp_path: Path, programs: Path) -> None:
    machine = Machine(tmp_path / "device", ["edge_1+0-3.efi", "edge_2+2-1.efi"])

    calls = run(machine, programs, 2, "disk")

    assert machine.names() == ["edge_1+0-3.efi", "edge_2+2-1.efi"]
    assert "reboot" not in calls
    fault = json.loads((machine.root / "run/faults/system-unhealthy.json").read_text())
    assert sorted(fault) == ["code", "help", "since", "text"]
    assert "there is no other system to start" in fault["text"]


def test_the_verdict_of_the_health_gate_stays(tmp_path: Path, programs: Path) -> None:
    machine = Machine(tmp_path / "device", ["edge_2+2-1.efi"])
    faults = machine.root / "run/faults"
    faults.mkdir(parents=True)
    (faults / "system-unhealthy.json").write_text('{"text": "models are not ready: cam"}')

    run(machine, programs, 2, "disk")

    assert "cam" in (faults / "system-unhealthy.json").read_text()


def test_a_root_without_another_system_is_tried_again_later(tmp_path: Path, programs: Path) -> None:
    machine = Machine(tmp_path / "device", ["edge_2+2-1.efi"])

    assert run(machine, programs, 2, "root").endswith("systemctl reboot --force\n")
    assert machine.names() == ["edge_2+2-1.efi"]


def test_a_boot_partition_that_cannot_be_written_causes_no_restart(tmp_path: Path, programs: Path) -> None:
    machine = Machine(tmp_path / "device", ["edge_1+5.efi", "edge_2+2-1.efi"])
    (programs / "mv").write_text('#!/bin/sh\ncase $* in *.efi*) exit 1 ;; esac\nexec /bin/mv "$@"\n')
    (programs / "mv").chmod(0o755)

    assert "reboot" not in run(machine, programs, 2, "disk")


def test_a_slot_that_the_health_gate_condemned_is_left_with_its_reason(tmp_path: Path, programs: Path) -> None:
    machine = Machine(tmp_path / "device", ["edge_1+5.efi", "edge_2+2-1.efi"], 2)
    machine.boot.condemn(Failure(2, "health", "no answer"))

    calls = run(machine, programs, 2, "disk")

    assert calls.endswith("systemctl reboot --force\n")
    assert machine.names() == ["edge_1+5.efi", "edge_2+0.efi"]
    assert machine.boot.read_failure() == Failure(2, "health", "no answer")


def two_disks(machine: Machine, programs: Path, *names: str) -> Path:
    """Add a second disk with boot entries of these names. Return the folder of its boot partition."""
    dev, root = machine.root / "dev", machine.root
    (dev / "sdb1/EFI/Linux").mkdir(parents=True)
    for name in names:
        (dev / "sdb1/EFI/Linux" / name).write_text(f"roothash={HASHES[int(name[5])]} quiet")
    (dev / "vda1").symlink_to(machine.boot.esp)
    for name, label in (("vda1", "EDGE-SERVE"), ("vda2", "edge_2"), ("sdb1", "EDGE-SERVE")):
        (root / "sys/class/block" / name).mkdir(parents=True)
        (root / "sys/class/block" / name / "uevent").write_text(f"DEVNAME={name}\nPARTNAME={label}\n")
    mount = "while [ $# -gt 2 ]; do shift; done\n[ -d $1 ] && rmdir $2 && ln -s $1 $2"
    for name, code in (("mount", mount), ("umount", "rm $1 && mkdir $1")):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{programs.parent}/calls\n{code}\n')
    return dev / "sdb1/EFI/Linux"


def test_the_slot_of_the_disk_with_this_system_is_left(tmp_path: Path, programs: Path) -> None:
    machine = Machine(tmp_path / "device", ["edge_1+5.efi", "edge_2+2-1.efi"])
    other = two_disks(machine, programs, "edge_1+5.efi")

    calls = run(machine, programs, 2, "root")

    assert machine.names() == ["edge_1+5.efi", "edge_2+0.efi"]
    assert [path.name for path in other.iterdir()] == ["edge_1+5.efi"]
    assert "by-partuuid" not in calls
    assert calls.endswith("systemctl reboot --force\n")


def test_two_disks_with_this_system_are_left_as_they_are(tmp_path: Path, programs: Path) -> None:
    machine = Machine(tmp_path / "device", ["edge_1+5.efi", "edge_2+2-1.efi"])
    other = two_disks(machine, programs, "edge_1+5.efi", "edge_2+2-1.efi")

    calls = run(machine, programs, 2, "root")

    assert machine.names() == sorted(path.name for path in other.iterdir()) == ["edge_1+5.efi", "edge_2+2-1.efi"]
    assert "rw" not in calls
    assert calls.endswith("systemctl reboot --force\n"), "after a while, because one may be removed"


def test_of_two_disks_with_this_system_the_slot_of_the_counted_one_is_left(tmp_path: Path, programs: Path) -> None:
    machine = Machine(tmp_path / "device", ["edge_1+5.efi", "edge_2+2-1.efi"])
    other = two_disks(machine, programs, "edge_1+5.efi", "edge_2+3.efi")

    calls = run(machine, programs, 2, "root", "edge_2+2-1.efi")

    assert machine.names() == ["edge_1+5.efi", "edge_2+0.efi"]
    assert sorted(path.name for path in other.iterdir()) == ["edge_1+5.efi", "edge_2+3.efi"]
    assert calls.endswith("systemctl reboot --force\n")


@pytest.mark.parametrize("other", ["", "+5", "+1-2", "+0", "+0-3"])
def test_the_script_decides_as_the_health_gate_does(tmp_path: Path, programs: Path, other: str) -> None:
    machine = Machine(tmp_path / "device", [f"edge_1{other}.efi", "edge_2.efi"])
    leaves = bool(decide.others(machine.boot.entries(), 2))

    run(machine, programs, 2, "disk")

    assert ("edge_2+0.efi" in machine.names()) is (machine.root / "stopped").exists() is leaves
