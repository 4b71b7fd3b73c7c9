"""The data partition on a booted image: whatever its state, the device comes up, serves, and says what is wrong.

One machine is restarted from test to test, because a boot takes minutes in an emulator. A test cuts the power, changes
the disk, and boots; the next one changes it back before its own boot, and so finds the data that were there before.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from image import qemu
from tests.ota.publish.publisher import PASSPHRASE
from tests.system.disk import Disk, Hardware
from tests.system.image import site
from tests.system.image.esp import Esp, Partition, partitions
from tests.system.image.site import Site
from tests.system.machine import Machine, wait_until
from tests.system.service import Service

SERIAL = ("-smbios", "type=1,serial=PF3XK2TN")
OTHER = ("-smbios", "type=1,serial=PF9ZZ1QQ")
MARK = "/var/lib/edge-device/mark"
MIB = 1 << 20
#: prints the serial number of the disk below the root, its hashes, the data, and the boot partition
_SERIALS = """\
ls /boot/EFI/Linux >/dev/null
for part in /sys/class/block/dm-0/slaves/* $(findmnt -rno SOURCE /var) $(findmnt -rno SOURCE -t vfat /boot); do
    cat /sys/class/block/$(basename $(readlink -f $part))/../serial
    echo
done
"""
#: seconds after a boot until the device is idle
_SETTLED = 180.0
#: of the fleet's publisher, and seconds until the first run of edge-ota has installed it
RELEASED, _FIRST_UPDATE = "simple_released", 900.0


def _nothing() -> None:
    """Change nothing."""


class Device:
    """A machine that boots the image, and its data partition."""

    def __init__(self, image: Path, gib: int = 14) -> None:
        self.disk = Disk(image, hardware=Hardware(gib=gib, more=SERIAL))
        self.machine = Machine(self.disk)
        self._back: Callable[[], None] = _nothing

    def reboot(self, change: Callable[[], None] = _nothing, back: Callable[[], None] = _nothing) -> list[str]:
        """Cut the power, change the disk, and boot. Return the codes of the faults of the data partition.

        Args:
            back: takes the change back before the next boot
        """
        self.disk.cut()
        self._back()
        self._back = back
        change()
        self.machine.start()
        return self.faults()

    def faults(self) -> list[str]:
        """Return the codes of the faults of the data partition and of the disk."""
        return [code for code in self.codes() if code.startswith(("data", "disk", "partitions", "factory", "second"))]

    def codes(self) -> list[str]:
        codes = {one["code"]: one for one in self._documents()}
        print(codes, flush=True)
        return sorted(codes)

    def serials(self) -> set[str]:
        """Return the serial numbers of the disks that the device uses: one, if all is well."""
        return set(self.machine.run(_SERIALS).split("\n")[:-1])

    def _documents(self) -> list[dict[str, str]]:
        lines = self.machine.run("cat /run/edge-device/faults/*.json 2>/dev/null || true").splitlines()
        return [json.loads(line) for line in lines]

    def serves(self) -> bool:
        """Return whether the server answers, asked from outside."""
        host, port = self.disk.address(8000)
        command = ["curl", "-sf", "-m", "60", f"http://{host}:{port}/v2/health/live"]
        return wait_until(lambda: subprocess.run(command, check=False).returncode == 0, 600, 1)

    def var(self) -> str:
        """Return the type of the file system of /var."""
        return self.machine.run("findmnt -no FSTYPE /var").strip()

    def written(self, partition: str = "vda6") -> int:
        """Return the bytes that were written to a partition since the boot (proc_diskstats(5))."""
        return int(self.machine.run(f"awk '$3 == \"{partition}\" {{ print $10 }}' /proc/diskstats")) * 512

    @property
    def data(self) -> Partition:
        return next(one for one in partitions(self.disk.disk) if one.label == "edge-data")

    def overwrite(self, first: int, size: int) -> None:
        """Write noise to the data partition."""
        noise = random.Random(18)
        with self.disk.disk.open("r+b") as file:
            file.seek(self.data.start + first)
            for _ in range(size // MIB):
                file.write(noise.randbytes(MIB))

    def edit(self, name: str, content: str) -> None:
        """Replace a file of the data partition."""
        new = self.disk.folder / "new"
        new.write_text(content)
        commands = self.disk.folder / "commands"
        commands.write_text(f"rm /lib/edge-device/{name}\nwrite {new} /lib/edge-device/{name}\n")
        place = f"{self.disk.disk}?offset={self.data.start}"
        subprocess.run(["e2fsck", "-p", place], check=False, capture_output=True)
        subprocess.run(["debugfs", "-w", "-f", commands, place], check=True, capture_output=True)


@pytest.fixture(scope="module")
def used(image: Path) -> Iterator[Device]:
    """Yield a device that was started once, and has a file of its own."""
    device = Device(image)
    try:
        device.machine.start()
        device.machine.run(f"echo mine > {MARK}; sync")
        yield device
    finally:
        device.disk.stop()


def test_first_boot_makes_the_partitions_and_serves(used: Device) -> None:
    assert used.faults() == []
    assert used.var() == "ext4"
    labels = [one.label for one in partitions(used.disk.disk)]
    assert labels[0] == "EDGE-SERVE"
    assert labels[3:] == ["_empty", "_empty", "edge-data"]
    assert used.data.start + used.data.size > (14 << 30) - 2 * MIB
    assert used.serves()


def test_identity_and_settings_stay_on_a_larger_disk(used: Device) -> None:
    def grow() -> None:
        with used.disk.disk.open("r+b") as file:
            file.truncate(18 << 30)

    used.machine.run("echo EDGE_SERVE_LOG_VERBOSE=0 > /etc/edge-serve/conf.d/90-test.conf; sync")
    machine_id = used.machine.run("cat /etc/machine-id")
    assert used.reboot(grow) == []
    assert used.machine.run("cat /etc/machine-id") == machine_id
    assert used.machine.run("journalctl --list-boots --no-pager -q | grep -c ' UTC'").strip() == "2"
    assert used.machine.run("cat /etc/edge-serve/conf.d/90-test.conf") == "EDGE_SERVE_LOG_VERBOSE=0\n"
    assert int(used.machine.run("df --output=size -B1M /var | tail -n 1")) > 7 * 1024
    assert used.machine.run(f"cat {MARK}") == "mine\n"


def test_full_data_are_reported_and_the_server_comes_up(used: Device) -> None:
    used.machine.run("fallocate -l $(df --output=avail -B1 /var | tail -n 1) /var/log/fill; sync")
    assert used.reboot() == ["data-full"]
    assert used.serves()
    used.machine.run("rm /var/log/fill; sync; systemctl start edge-data.service")
    assert used.faults() == []


def test_data_of_another_device_are_not_used(used: Device) -> None:
    assert used.reboot(lambda: used.disk.change(more=OTHER), lambda: used.disk.change(more=SERIAL)) == ["data-foreign"]
    assert used.var() == "tmpfs"
    assert used.machine.run("cat /run/edge-device/data/lib/edge-device/mark") == "mine\n"
    assert used.serves()


def test_data_of_a_newer_system_are_not_used(used: Device) -> None:
    assert used.reboot(lambda: used.edit("schema", "7\n"), lambda: used.edit("schema", "1\n")) == ["data-newer"]
    assert used.var() == "tmpfs"
    assert used.serves()


def test_a_damaged_superblock_is_repaired(used: Device) -> None:
    assert used.reboot(lambda: used.overwrite(0, MIB)) == ["data-repaired"]
    assert used.machine.run(f"cat {MARK}") == "mine\n"
    assert used.serves()


def test_data_beyond_repair_are_left_alone_until_a_reset_is_asked_for(used: Device) -> None:
    assert used.reboot(lambda: used.overwrite(0, 1024 * MIB)) == ["data-damaged"]
    assert used.var() == "tmpfs"
    assert used.serves()
    assert used.reboot(lambda: Esp(used.disk.disk).write("factory-reset", b"plant-3\r\n")) == []
    assert used.var() == "ext4"
    names = Esp(used.disk.disk).names()
    assert "factory-reset.done" in names
    assert "factory-reset" not in names


def test_factory_reset_needs_the_name_of_the_device(used: Device) -> None:
    name = used.machine.run(f"echo mine > {MARK}; sync; cat /var/lib/edge-device/name").strip().encode()
    assert used.reboot(lambda: Esp(used.disk.disk).write("factory-reset", name + b"4")) == ["factory-reset-refused"]
    assert used.machine.run(f"cat {MARK}") == "mine\n"
    assert used.reboot(lambda: Esp(used.disk.disk).write("factory-reset", name)) == []
    assert used.machine.try_run(f"cat {MARK}").status
    assert used.serves()


def test_a_missing_data_partition_is_made_again(used: Device) -> None:
    used.machine.run("sfdisk --quiet --force --no-reread --delete /dev/vda 6; sync")
    assert used.reboot() == []
    assert used.var() == "ext4"
    assert used.serves()


def test_a_disk_that_is_too_small_serves_from_memory(image: Path) -> None:
    small = Device(image, gib=10)
    try:
        small.machine.start()
        assert small.faults() == ["disk-too-small"]
        assert [one.label for one in partitions(small.disk.disk)][3:] == []
        assert small.serves()
    finally:
        small.disk.stop()


@pytest.mark.parametrize("cut", range(5))
def test_a_power_cut_in_the_first_boot(image: Path, cut: int) -> None:
    device = Device(image)
    seconds = random.Random(cut).uniform(5, 90)
    try:
        device.disk.start()
        wait_until(device.disk.panicked, seconds, 1)
        print(f"cut after {seconds:.1f} s: {device.disk.since_start()[-200:]!r}", flush=True)
        device.disk.cut()

        device.machine.start()
        assert device.faults() == []
        assert device.var() == "ext4"
        assert [one.label for one in partitions(device.disk.disk)][3:] == ["_empty", "_empty", "edge-data"]
        assert device.serves()
    finally:
        device.disk.stop()


@pytest.mark.parametrize(
    ("booted", "from_stick"), [(False, False), (True, False), (True, True)], ids=["new", "copy", "started-copy"]
)
def test_of_two_disks_with_the_same_image_only_the_started_one_is_used(
    used: Device, image: Path, tmp_path: Path, booted: bool, from_stick: bool
) -> None:
    """The other one is a stick from which a device will be installed, or a copy of the device's disk, byte for byte."""
    stick = tmp_path / "stick.raw"

    def plug_in() -> None:
        if booted:
            subprocess.run(["cp", "--sparse=always", used.disk.disk, stick], check=True)
        else:
            qemu.new_disk(image, stick, 14)
        device = f"virtio-blk-pci,drive=stick,serial=stick{',bootindex=0' if from_stick else ''}"
        words = ("-drive", f"if=none,id=stick,format=raw,file={stick}", "-device", device)
        used.disk.change(more=(*SERIAL, *words))

    used.reboot()
    used.machine.run(f"echo mine > {MARK}; sync")
    assert used.reboot(plug_in, lambda: used.disk.change(more=SERIAL)) == ["second-disk"]
    assert used.machine.run(f"cat {MARK}") == "mine\n"
    assert used.serials() == {"stick" if from_stick else ""}
    assert "boot-partition" not in used.codes()
    assert used.machine.run("findmnt -no OPTIONS -t vfat /boot | cut -d , -f 1") == "rw\n"
    assert used.serves()


def test_ten_idle_minutes_of_a_provisioned_device_write_little(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a device that has its models, and asks for updates by the timer of edge-ota."""
    if why := site.why_not():
        pytest.skip(why)
    monkeypatch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
    owner, device = Site(tmp_path), Device(image)
    owner.publish(RELEASED, 1)
    owner.provision(device.disk.disk)
    try:
        with owner.served():
            device.machine.start()
            assert device.serves()
            service = Service(device.machine)
            assert wait_until(lambda: service.infers(RELEASED), _FIRST_UPDATE, 2), owner.requests()[-2000:]
            time.sleep(_SETTLED)
            before, asked = device.written(), len(owner.requests())
            boot = device.written("vda1")
            time.sleep(600)
            assert device.written("vda1") == boot, "the boot partition is written by an idle device"
            written, asked = device.written() - before, len(owner.requests()) - asked
    finally:
        device.disk.stop()
    print(f"{written / 1e6:.2f} MB were written to the data partition in 10 idle minutes", flush=True)
    print(f"the device asked for updates meanwhile: {asked > 0}")
    assert written < 5e6
