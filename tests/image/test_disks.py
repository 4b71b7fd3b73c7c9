"""Which disks `make flash` refuses, and how it describes the others, on machines that tests make up."""

from __future__ import annotations

from pathlib import Path

import pytest

from image.disks import check, contents, find_disk
from image.errors import ImageError
from image.flash import LEAST
from tests.image.machines import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine that runs from sda, and has a USB stick sdb."""
    machine = Machine(tmp_path)
    system = machine.disk("sda", 512, vendor="ATA", model="Samsung SSD 870")
    machine.partition(system, "sda1")
    machine.partition(system, "sda2", 500)
    machine.mount("sda2", "/")
    machine.disk("sdb", 32, bus="pci0000:00/0000:00:14.0/usb2/2-1", vendor="SanDisk", model="Ultra Fit")
    return machine


def refused(machine: Machine, device: str) -> str:
    with pytest.raises(ImageError) as caught:
        check(find_disk(device, machine.root), LEAST)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_usb_stick_is_accepted_and_named_by_its_maker(machine: Machine) -> None:
    disk = find_disk("/dev/sdb", machine.root)

    check(disk, LEAST)
    assert str(disk) == "/dev/sdb, 32.0 GB, SanDisk Ultra Fit, USB"


def test_a_disk_is_found_by_its_id(machine: Machine) -> None:
    links = machine.root / "dev/disk/by-id"
    links.mkdir(parents=True)
    (links / "usb-SanDisk").symlink_to("../../sdb")

    assert find_disk("/dev/disk/by-id/usb-SanDisk", machine.root).name == "sdb"


def test_the_disk_of_the_running_system_is_refused(machine: Machine) -> None:
    assert "the disk of the running system" in refused(machine, "/dev/sda")


def test_the_disk_of_a_running_system_on_encrypted_volumes_is_refused(machine: Machine) -> None:
    disk = machine.disk("nvme0n1", 1000, model="WD Black")
    machine.partition(disk, "nvme0n1p3", 900)
    machine.mapped("dm-0", "nvme0n1p3")
    machine.mapped("dm-1", "dm-0")
    (machine.root / "proc/self/mountinfo").write_text("")
    machine.mount("dm-1", "/")

    assert "the disk of the running system" in refused(machine, "/dev/nvme0n1")


def test_a_disk_with_an_anonymous_device_number_is_found_by_its_source(machine: Machine) -> None:
    disk = machine.disk("vda", 32)
    machine.partition(disk, "vda1")
    machine.mount("vda1", "/srv", number="0:31")

    assert "/dev/vda1 at /srv" in refused(machine, "/dev/vda")


def test_a_mounted_disk_is_refused_with_the_command_that_unmounts_it(machine: Machine) -> None:
    machine.mount("sdb", "/media/my\\040stick")

    assert refused(machine, "/dev/sdb").endswith("is mounted (/dev/sdb at /media/my stick): umount '/media/my stick'")


def test_a_disk_in_a_volume_group_is_refused(machine: Machine) -> None:
    disk = machine.disk("sdc")
    machine.partition(disk, "sdc1")
    machine.mapped("dm-0", "sdc1")

    assert "in use by dm-0" in refused(machine, "/dev/sdc")


def test_a_disk_with_swap_is_refused(machine: Machine) -> None:
    (machine.root / "proc/swaps").write_text("Filename Type Size Used Priority\n/dev/sdb partition 1 0 -2\n")

    assert "in use by swap on /dev/sdb" in refused(machine, "/dev/sdb")


def test_a_partition_is_refused_with_the_name_of_its_disk(machine: Machine) -> None:
    assert refused(machine, "/dev/sda1") == "/dev/sda1 is a partition, expected the whole disk: DEVICE=/dev/sda"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("loop3", "a loop device"),
        ("dm-0", "the device mapper"),
        ("md127", "a RAID"),
        ("zram0", "memory"),
        ("sr0", "an optical drive"),
        ("mmcblk0boot0", "a boot area of an eMMC"),
        ("nbd1", "a disk of the network"),
        ("fd0", "an unknown kind"),
    ],
)
def test_devices_that_are_no_disks_are_refused(machine: Machine, name: str, kind: str) -> None:
    machine.disk(name)

    message = refused(machine, f"/dev/{name}")
    assert kind in message
    assert "disks here: /dev/sda, 512.0 GB, ATA Samsung SSD 870 (the running system); /dev/sdb, 32.0 GB" in message


@pytest.mark.parametrize("device", ["/dev/sdx", "sdb.img", "/home/sdb", "/dev", "/dev/null"])
def test_names_of_no_device_are_refused_with_the_disks_of_the_machine(machine: Machine, device: str) -> None:
    (machine.root / "home").mkdir()
    (machine.root / "home/sdb").touch()

    assert "is no disk of this machine; disks here: /dev/sda" in refused(machine, device)


def test_a_disk_that_is_not_named_is_asked_for(machine: Machine) -> None:
    assert refused(machine, "").startswith("name a disk: make flash DEVICE=/dev/sdX; disks here: /dev/sda")


@pytest.mark.parametrize("name", ["sdc", "vdb", "xvda", "nvme0n1", "mmcblk0"])
def test_a_disk_that_is_too_small_is_refused(machine: Machine, name: str) -> None:
    machine.disk(name, 11.9)

    assert "too small: an image needs 12.0 GB" in refused(machine, f"/dev/{name}")


def test_a_reader_without_a_card_is_refused(machine: Machine) -> None:
    machine.disk("sdc", 0)

    assert refused(machine, "/dev/sdc") == "/dev/sdc has no medium: insert the card"


def test_a_write_protected_card_is_refused(machine: Machine) -> None:
    (machine.disk("mmcblk0", 32, name="SD32G") / "ro").write_text("1\n")

    assert "/dev/mmcblk0, 32.0 GB, SD32G is write-protected" in refused(machine, "/dev/mmcblk0")


def test_the_contents_of_a_disk_are_shown_before_it_is_overwritten(machine: Machine) -> None:
    stick = machine.root / "sys/devices/pci0000:00/0000:00:14.0/usb2/2-1/block/sdb"
    for number in (1, 2, 10):
        machine.partition(stick, f"sdb{number}")
    facts = {
        "/dev/sdb1": {"TYPE": "vfat", "LABEL": "EDGE-SERVE", "PART_ENTRY_NAME": "EDGE-SERVE"},
        "/dev/sdb2": {"TYPE": "erofs", "PART_ENTRY_NAME": "edge_7"},
        "/dev/sdb10": {"TYPE": "ext4", "LABEL": "edge-data", "PART_ENTRY_NAME": "edge-data"},
    }

    assert list(contents(find_disk("/dev/sdb", machine.root), lambda paths: facts)) == [
        "/dev/sdb1: 1.0 GB, vfat 'EDGE-SERVE' 'EDGE-SERVE'",
        "/dev/sdb2: 1.0 GB, erofs 'edge_7'",
        "/dev/sdb10: 1.0 GB, ext4 'edge-data' 'edge-data'",
        "an edge-serve system is on it (version 7, and the data of a device)",
    ]


def test_a_stick_with_the_image_of_another_system_is_shown_as_such(machine: Machine) -> None:
    facts = {"/dev/sdb": {"TYPE": "iso9660", "LABEL": "Debian 13.1.0 amd64 1"}}

    assert list(contents(find_disk("/dev/sdb", machine.root), lambda paths: facts)) == [
        "/dev/sdb: iso9660 'Debian 13.1.0 amd64 1'"
    ]


def test_an_empty_disk_is_shown_as_such(machine: Machine) -> None:
    stick = find_disk("/dev/sdb", machine.root)
    assert list(contents(stick, lambda paths: {})) == ["no partitions, and no known file system"]
    table = {"/dev/sdb": {"PTTYPE": "gpt"}}
    assert list(contents(stick, lambda paths: table)) == ["a partition table (gpt) without partitions"]
