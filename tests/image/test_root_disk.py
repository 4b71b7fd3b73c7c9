"""edge-disk: the root comes from the disk that the firmware started, also if a copy of that disk is there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "image/device/initrd/edge-disk"
HASH = "0123456789abcdef0123456789abcdef" + "fedcba9876543210fedcba9876543210"
ESP = "ee000000-0000-0000-0000-000000000001"
TABLE = {1: ESP, 2: "01234567-89ab-cdef-0123-456789abcdef", 3: "fedcba98-7654-3210-fedc-ba9876543210"}
LOADER = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
#: at the start the boot loader renamed edge_7+5.efi
COUNTED, BEFORE = "edge_7+4-1.efi", "edge_7+5.efi"

PROGRAMS = {
    "mount": 'while [ $# -gt 2 ]; do shift; done; [ -d "$1" ] && rmdir "$2" && ln -s "$1" "$2"',
    "umount": 'rm "$1" && mkdir "$1"',
    "partx": 'for disk; do :; done; cat "$disk.table"',
    "sleep": '[ ! -e "$EDGE_RUN/../late" ] || mv "$EDGE_RUN/../late" "$EDGE_SYS/block/vdb"',
    "udevadm": "",
    "systemd-veritysetup": "",
}


class Computer:
    """A machine in the initrd with disks; the boot loader has set its variables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sys/block", "dev", "bin", "efivars", "run"):
            (folder / name).mkdir(parents=True)
        for name, code in PROGRAMS.items():
            (folder / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"$EDGE_RUN/../calls"\n{code}\n')
            (folder / "bin" / name).chmod(0o755)
        (folder / "cmdline").write_text(f"console=tty0 roothash={HASH} panic=5\n")
        self.variable("LoaderDevicePartUUID", ESP.upper())
        self.variable("LoaderBootCountPath", f"\\EFI\\Linux\\{COUNTED}")

    def variable(self, name: str, text: str) -> None:
        (self.folder / f"efivars/{name}-{LOADER}").write_bytes(b"\6\0\0\0" + f"{text}\0".encode("utf-16-le"))

    def add_disk(self, name: str, entry: str, place: str, table: dict[int, str] = TABLE) -> None:
        """Add a disk whose boot partition has this entry, at a place of the machine's buses."""
        entries = self.folder / f"dev/{name}1/EFI/Linux"
        entries.mkdir(parents=True)
        (entries / entry).touch()
        device = self.folder / f"sys/devices/{place}/{name}"
        for number in table:
            (device / f"{name}{number}").mkdir(parents=True)
            (device / f"{name}{number}/partition").write_text(f"{number}\n")
        (self.folder / f"sys/block/{name}").symlink_to(device)
        lines = [f"{number:>2} {uuid}\n" for number, uuid in table.items()]
        (self.folder / f"dev/{name}.table").write_text("".join(lines))

    def boot(self) -> str:
        """Run the script. Return the partitions of the root that it attached, without their folder; "" = none."""
        names = ("run", "sys", "dev", "cmdline", "efivars")
        places = {f"EDGE_{name.upper()}": str(self.folder / name) for name in names}
        places["PATH"] = f"{self.folder}/bin:{os.environ['PATH']}"
        done = subprocess.run(["sh", SCRIPT], env=places, capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
        attached = [call.split() for call in self.calls("systemd-veritysetup")]
        assert (done.returncode == 0) is bool(attached)
        for words in attached:
            assert (words[:2], words[4:]) == (["attach", "root"], [HASH])
        return " ".join(Path(word).name for words in attached for word in words[2:4])

    def calls(self, program: str) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{program} ")]

    @property
    def undecided(self) -> bool:
        return (self.folder / "run/undecided").exists()


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


def test_the_only_disk_is_used_without_a_wait(computer: Computer) -> None:
    computer.add_disk("nvme0n1", COUNTED, "pci0")
    assert computer.boot() == "nvme0n12 nvme0n13"
    assert computer.calls("sleep") == computer.calls("udevadm") == []
    assert not computer.undecided


@pytest.mark.parametrize("own", ["vda", "vdb"])
def test_of_two_copies_the_one_is_used_whose_entry_was_counted(computer: Computer, own: str) -> None:
    for name in ("vda", "vdb"):
        computer.add_disk(name, COUNTED if name == own else BEFORE, name)
    assert computer.boot() == f"{own}2 {own}3"
    assert not computer.undecided
    assert all(" -o ro " in f" {call} " for call in computer.calls("mount"))


def test_the_disk_is_waited_for_while_a_copy_is_there(computer: Computer) -> None:
    computer.add_disk("vda", BEFORE, "pci0")
    computer.add_disk("vdb", COUNTED, "pci1")
    (computer.folder / "sys/block/vdb").rename(computer.folder / "late")
    assert computer.boot() == "vdb2 vdb3"
    assert len(computer.calls("sleep")) == 1


@pytest.mark.parametrize("entry", [COUNTED, BEFORE])
def test_of_two_equal_disks_the_first_one_in_the_machine_is_used_and_it_is_said(computer: Computer, entry: str) -> None:
    """Both have the counted entry if a copy was turned off in just such a start."""
    computer.add_disk("sda", entry, "pci1")
    computer.add_disk("sdb", entry, "pci0")
    assert computer.boot() == "sdb2 sdb3"
    assert computer.undecided


def test_an_entry_that_is_not_counted_needs_no_wait(computer: Computer) -> None:
    computer.add_disk("sda", "edge_7.efi", "pci0")
    (computer.folder / f"efivars/LoaderBootCountPath-{LOADER}").unlink()
    assert computer.boot() == "sda2 sda3"
    assert computer.calls("sleep") == []


def test_a_disk_without_a_count_is_used_if_it_is_the_only_one(computer: Computer) -> None:
    """The firmware's write may have been lost."""
    computer.add_disk("sda", BEFORE, "pci0")
    assert computer.boot() == "sda2 sda3"
    assert not computer.undecided


def test_a_disk_with_another_system_is_not_used(computer: Computer) -> None:
    computer.add_disk("sda", COUNTED, "pci0", {1: ESP, 2: "aa000000-0000-0000-0000-000000000002", 3: TABLE[3]})
    assert computer.boot() == ""
    (computer.folder / "calls").unlink()
    computer.add_disk("sdb", BEFORE, "pci1")
    assert computer.boot() == "sdb2 sdb3"


def test_devices_without_partitions_are_not_read(computer: Computer) -> None:
    (computer.folder / "sys/devices/virtual/loop0").mkdir(parents=True)
    (computer.folder / "sys/block/loop0").symlink_to(computer.folder / "sys/devices/virtual/loop0")
    computer.add_disk("vda", COUNTED, "pci0")
    assert computer.boot() == "vda2 vda3"
    assert len(computer.calls("partx")) == 1
