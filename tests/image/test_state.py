"""The script that mounts the data partition in the initrd: it runs here on folders in place of disks.

A partition is a folder of `dev/`, and mounting one puts a link in the place of the folder. `mount`, `e2fsck`,
`systemd-repart`, and what else needs a real disk are small programs that record how they were called.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from image.device.data.place import DataPlace, read_place

SCRIPT = Path(__file__).parents[2] / "image/device/initrd/edge-state"
GIB = 1024**3
UUID = "4C4C4544-0042-3510-8054-B7C04F4D3533"

PROGRAMS = {
    "mount": """
        case "$*" in *--bind*|*tmpfs*) exit ;; esac
        while [ $# -gt 2 ]; do shift; done
        [ -d "$1" ] && [ ! -e "$1/BROKEN" ] || exit 32
        rmdir "$2" && ln -s "$1" "$2" """,
    "umount": '[ -L "$1" ] && rm "$1" && mkdir "$1"',
    "mountpoint": "echo 253:0",
    "partx": """
        for part in "$EDGE_SYS"/devices/vda/*/; do
            read -r number <"$part/partition" && read -r event <"$part/uevent" && echo "$number ${event#PARTNAME=}"
        done """,
    "e2fsck": """
        for device; do :; done
        [ -e "$device/BROKEN" ] || exit 0
        case "$*" in *-p*) exit 4 ;; esac
        [ ! -e "$device/LOST" ] || exit 8
        [ ! -e "$device/JOURNAL" ] || { rm "$device/JOURNAL"; echo "unable to set superblock flags"; exit 12; }
        rm "$device/BROKEN"; exit 1 """,
    "systemd-repart": """
        [ "$(cat $EDGE_SYS/devices/vda/size)" -gt 23437500 ] || { echo "Can't fit requested partitions"; exit 1; }
        part=$EDGE_SYS/devices/vda/vda6
        case "$*" in *--factory-reset=yes*) rm -rf "$EDGE_DEV/vda6" ;; esac
        mkdir -p "$part" "$EDGE_DEV/vda6"
        echo PARTNAME=edge-data >"$part/uevent"; echo 6 >"$part/partition"; echo 18000000 >"$part/start"
        echo $(($(cat "$EDGE_SYS/devices/vda/size") - 18000000 - 2048)) >"$part/size" """,
    "systemd-growfs": "",
    "blockdev": "",
    "modprobe": "",
    "sync": "",
    "udevadm": "",
}


@dataclass
class Machine:
    """A machine in the initrd: its root is mounted, on a disk of 16 GiB that was never started from."""

    folder: Path

    def __post_init__(self) -> None:
        for name in ("root/var", "root/etc/edge-serve/conf.d", "root/etc/edge-ota", "run", "lib", "bin", "dev/vda1"):
            (self.folder / name).mkdir(parents=True)
        for name, code in PROGRAMS.items():
            self.program(name, code)
        self.write("sys/devices/vda/size", 16 * GIB // 512)
        for number, label in ((1, "EDGE-SERVE"), (2, "edge_7"), (3, "edge_7")):
            self.write(f"sys/devices/vda/vda{number}/partition", number)
            self.write(f"sys/devices/vda/vda{number}/uevent", f"PARTNAME={label}")
        self.write("sys/devices/vda/vda1/dev", "254:1")
        self.write("udev/b254:1", "")
        slaves = self.folder / "sys/devices/dm-0/slaves"
        slaves.mkdir(parents=True)
        (slaves / "vda2").symlink_to("../../vda/vda2")
        self.link("sys/dev/block/253:0", "sys/devices/dm-0")
        self.machine_number(UUID)

    def write(self, name: str, content: object) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")

    def link(self, name: str, target: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.folder / target)

    def program(self, name: str, code: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"$EDGE_RUN/../calls"\n{code}\n')
        path.chmod(0o755)

    def machine_number(self, uuid: str) -> None:
        self.write("sys/class/dmi/id/product_uuid", uuid)
        self.write("sys/class/dmi/id/product_serial", "To Be Filled By O.E.M.")

    def boot(self) -> list[str]:
        """Run the script. Return the codes of the faults."""
        for mounted in (self.folder / "root/var", self.folder / "run/data"):
            if mounted.is_symlink():
                mounted.unlink()
                mounted.mkdir()
        (self.folder / "calls").write_text("")
        for path in (self.folder / "run").glob("faults/*"):
            path.unlink()
        places = {
            f"EDGE_{name.upper()}": str(self.folder / name) for name in ("root", "run", "sys", "dev", "lib", "udev")
        }
        places["PATH"] = f"{self.folder}/bin:{os.environ['PATH']}"
        done = subprocess.run(["sh", SCRIPT], env=places, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return sorted(self.faults())

    def faults(self) -> dict[str, dict[str, object]]:
        return {path.stem: json.loads(path.read_text()) for path in (self.folder / "run/faults").glob("*.json")}

    def calls(self, program: str) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{program} ")]

    def place(self) -> DataPlace | None:
        return read_place(self.folder / "run")

    @property
    def data(self) -> Path:
        """The data partition."""
        return self.folder / "dev/vda6"

    @property
    def state(self) -> Path:
        return self.data / "lib/edge-device"

    @property
    def in_memory(self) -> bool:
        return any("tmpfs" in call for call in self.calls("mount"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def started(machine: Machine) -> Machine:
    """A machine that was started once, and has a file of its own."""
    assert machine.boot() == []
    (machine.data / "model").write_text("mine")
    (machine.state / "name").write_text("plant-3\n")
    return machine


def test_first_start_makes_the_partitions_and_the_machine_id(machine: Machine) -> None:
    assert machine.boot() == []
    assert machine.place() == DataPlace(True, "")
    assert len(machine.calls("systemd-repart")) == 1
    machine_id = (machine.state / "machine-id").read_text()
    assert len(machine_id) == 33
    assert int(machine_id, 16)
    assert (machine.state / "owner").read_text() == f"PRODUCT_UUID {UUID}\n"
    assert (machine.state / "etc/edge-serve/conf.d").is_dir()
    binds = [call.split("/")[-1] for call in machine.calls("mount") if "--bind" in call]
    assert binds == ["edge-serve", "edge-ota", "machine-id"]


def test_second_start_changes_nothing(started: Machine) -> None:
    before = {path: path.stat().st_mtime_ns for path in started.data.rglob("*")}
    assert started.boot() == []
    assert {path: path.stat().st_mtime_ns for path in started.data.rglob("*")} == before
    assert started.calls("systemd-repart") == []


def test_the_boot_partition_is_left_to_the_system_once_udev_has_looked_at_it(started: Machine) -> None:
    assert started.boot() == []
    assert started.calls("udevadm") == []
    (started.folder / "udev/b254:1").unlink()
    assert started.boot() == []
    assert started.calls("udevadm") == ["settle --timeout=30"]


def test_a_larger_disk_grows_the_data_partition(started: Machine) -> None:
    started.write("sys/devices/vda/size", 32 * GIB // 512)
    assert started.boot() == []
    assert "factory-reset" not in started.calls("systemd-repart")[0]
    assert len(started.calls("systemd-growfs")) == 1
    assert (started.data / "model").read_text() == "mine"


def test_a_disk_that_is_too_small_serves_from_memory_and_names_both_sizes(machine: Machine) -> None:
    machine.write("sys/devices/vda/size", 8 * GIB // 512)
    assert machine.boot() == ["disk-too-small"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", str(machine.faults()["disk-too-small"]["since"]))
    assert "vda has 8589 MB, and the image needs 12000 MB" in str(machine.faults()["disk-too-small"]["text"])
    assert machine.in_memory
    assert machine.place() == DataPlace(False, "disk-too-small")


def test_damage_is_repaired_and_reported(started: Machine) -> None:
    (started.data / "BROKEN").touch()
    assert started.boot() == ["data-repaired"]
    assert [call.split()[-2] for call in started.calls("e2fsck")] == ["-p", "-y"]
    assert not started.in_memory
    assert started.boot() == []


def test_damage_that_takes_e2fsck_two_runs_is_repaired(started: Machine) -> None:
    for name in ("BROKEN", "JOURNAL"):
        (started.data / name).touch()
    assert started.boot() == ["data-repaired"]
    assert [call.split()[-2] for call in started.calls("e2fsck")] == ["-p", "-y", "-y"]


def test_an_unrepairable_file_system_is_left_unchanged_and_replaced_by_memory(started: Machine) -> None:
    for name in ("BROKEN", "LOST"):
        (started.data / name).touch()
    assert started.boot() == ["data-damaged"]
    assert started.in_memory
    assert started.place() == DataPlace(False, "data-damaged")
    assert (started.data / "model").exists()
    assert "factory-reset" in str(started.faults()["data-damaged"]["help"])


def test_a_repaired_file_system_that_the_kernel_refuses_is_reported_as_damaged(started: Machine) -> None:
    (started.data / "BROKEN").touch()
    started.program("mount", 'case "$*" in *noatime*) exit 32 ;; esac' + PROGRAMS["mount"])
    assert started.boot() == ["data-damaged"]


@pytest.mark.fault("X2")
def test_a_partition_of_another_device_is_not_used(started: Machine) -> None:
    started.machine_number("11111111-2222-3333-4444-555555555555")
    assert started.boot() == ["data-foreign"]
    assert started.in_memory
    assert started.place() == DataPlace(False, "data-foreign")
    assert not started.calls("e2fsck")
    assert (started.folder / "run/data/model").read_text() == "mine"
    assert any("ro,noload" in call and call.endswith("/run/data") for call in started.calls("mount"))
    assert [call.split()[0] for call in started.calls("blockdev")] == ["--setro", "--setrw", "--setro"]


def test_the_own_partition_can_be_written_after_it_was_looked_at(started: Machine) -> None:
    assert started.boot() == []
    assert [call.split()[0] for call in started.calls("blockdev")] == ["--setro", "--setrw"]


@pytest.mark.parametrize("uuid", ["Default string", "00000000-0000-0000-0000-000000000000", "Not Specified", ""])
def test_a_machine_without_hardware_numbers_uses_any_partition(started: Machine, uuid: str) -> None:
    started.machine_number(uuid)
    assert started.boot() == []


def test_a_machine_with_one_number_left_is_still_the_same(started: Machine) -> None:
    started.write("sys/class/dmi/id/board_serial", "BSN12345678")
    (started.state / "owner").write_text(f"PRODUCT_UUID {UUID}\nBOARD_SERIAL OTHER987\n")
    assert started.boot() == []


def test_a_partition_of_a_newer_system_is_not_used(started: Machine) -> None:
    (started.state / "schema").write_text("2\n")
    assert started.boot() == ["data-newer"]
    assert started.in_memory
    assert not started.calls("e2fsck")


def test_a_full_partition_is_emptied_of_caches_and_reported(started: Machine) -> None:
    (started.data / "cache/edge-serve/kept").mkdir(parents=True)
    started.program("stat", "echo 100 4096 50000")
    assert started.boot() == ["data-full"]
    assert not (started.data / "cache/edge-serve/kept").exists()
    assert (started.data / "cache/edge-serve").exists()
    assert (started.data / "model").exists()
    assert not started.in_memory


@pytest.mark.parametrize("content", ["plant-3", "\ufeffplant-3\r\n", " plant-3 \nmore"])
def test_factory_reset_erases_the_data_once(started: Machine, content: str) -> None:
    started.write("dev/vda1/factory-reset", content)
    machine_id = (started.state / "machine-id").read_text()
    assert started.boot() == []
    assert started.place() == DataPlace(True, "")
    assert not (started.data / "model").exists()
    assert (started.state / "machine-id").read_text() != machine_id
    assert [path.name for path in (started.folder / "dev/vda1").iterdir()] == ["factory-reset.done"]
    calls = (started.folder / "calls").read_text()
    assert calls.index("rw,sync") < calls.index("--factory-reset=yes")
    (started.data / "model").write_text("new")
    assert started.boot() == []
    assert (started.data / "model").exists()


@pytest.mark.parametrize("content", ["plant-4", ""])
def test_factory_reset_for_another_device_is_refused(started: Machine, content: str) -> None:
    started.write("dev/vda1/factory-reset", content)
    assert started.boot() == ["factory-reset-refused"]
    assert (started.data / "model").exists()
    assert (started.folder / "dev/vda1/factory-reset").exists()


def test_a_factory_reset_with_a_suffix_that_an_editor_added_is_named(started: Machine) -> None:
    started.write("dev/vda1/factory-reset.txt", "plant-3")
    assert started.boot() == ["factory-reset-refused"]
    assert "'factory-reset.txt'" in str(started.faults()["factory-reset-refused"]["text"])
    assert (started.data / "model").exists()
    (started.folder / "dev/vda1/factory-reset.txt").rename(started.folder / "dev/vda1/factory-reset")
    started.boot()
    assert not (started.data / "model").exists()


def test_factory_reset_of_damaged_data_takes_any_name(started: Machine) -> None:
    for name in ("BROKEN", "LOST"):
        (started.data / name).touch()
    started.write("dev/vda1/factory-reset", "plant-3")
    assert started.boot() == []
    assert not (started.data / "LOST").exists()


def plug_in(machine: Machine, *labels: str) -> None:
    """Add a disk with partitions of these labels."""
    for number, label in enumerate(labels, 1):
        machine.write(f"sys/devices/sdb/sdb{number}/uevent", f"PARTNAME={label}")
        machine.link(f"sys/class/block/sdb{number}", f"sys/devices/sdb/sdb{number}")
    for part in (machine.folder / "sys/devices/vda").glob("vda*"):
        machine.link(f"sys/class/block/{part.name}", f"sys/devices/vda/{part.name}")


STICK = ("EDGE-SERVE", "edge_7", "edge_7")


def test_a_second_disk_with_data_is_reported_and_not_used(started: Machine) -> None:
    plug_in(started, *STICK, "edge-data")
    assert started.boot() == ["second-disk"]
    fault = started.faults()["second-disk"]
    assert "The disk sdb has a data partition of this image too" in str(fault["text"])
    assert "Erase none before you know" in str(fault["help"])
    assert not any("sdb" in call for call in started.calls("mount"))
    assert not started.in_memory


@pytest.mark.parametrize(
    "labels", [STICK, *(pytest.param(one, marks=pytest.mark.slow) for one in (("EDGE-SERVE", "_"), ("esp", "edge_12")))]
)
def test_a_stick_that_was_never_started_from_is_reported(started: Machine, labels: tuple[str, ...]) -> None:
    plug_in(started, *labels)
    assert started.boot() == ["second-disk"]
    fault = started.faults()["second-disk"]
    assert "The disk sdb has a system of this image too, and no data; the device runs from vda" in str(fault["text"])
    assert "remove sdb" in str(fault["help"])


def test_a_disk_of_another_system_is_no_second_disk(started: Machine) -> None:
    plug_in(started, "EFI System Partition", "esp", "root", "edge", "edge_b")
    assert started.boot() == []


def test_a_stick_whose_root_runs_is_not_set_up_while_another_disk_has_data(machine: Machine) -> None:
    plug_in(machine, *STICK, "edge-data")
    machine.write("dev/vda1/factory-reset", "any")

    assert machine.boot() == ["second-disk"]

    fault = machine.faults()["second-disk"]
    assert "runs from the disk vda, which has no data, and there are data of this image on sdb" in str(fault["text"])
    assert "To keep the data, remove vda" in str(fault["help"])
    assert machine.calls("systemd-repart") == []
    assert machine.in_memory
    assert machine.place() == DataPlace(False, "second-disk")
    assert (machine.folder / "dev/vda1/factory-reset").exists()


def test_two_disks_without_data_are_set_up_and_reported(machine: Machine) -> None:
    plug_in(machine, *STICK)
    assert machine.boot() == ["second-disk"]
    assert len(machine.calls("systemd-repart")) == 1
    assert not machine.in_memory


def test_a_choice_between_equal_disks_is_reported(started: Machine) -> None:
    plug_in(started, *STICK, "edge-data")
    started.write("run/undecided", "")
    assert started.boot() == ["second-disk"]
    assert str(started.faults()["second-disk"]["text"]).endswith("Nothing tells which of them the firmware started.")


def test_a_boot_partition_that_cannot_be_read_is_reported(started: Machine) -> None:
    (started.folder / "dev/vda1").rmdir()
    assert started.boot() == ["boot-partition"]
    assert not started.in_memory


def test_an_unknown_disk_of_the_root_serves_from_memory(machine: Machine) -> None:
    (machine.folder / "sys/dev/block/253:0").unlink()
    assert machine.boot() == ["data-missing"]
    assert machine.in_memory
    assert machine.place() == DataPlace(False, "data-missing")


@pytest.mark.parametrize("refused", ["schema", "owner", "machine-id"])
def test_a_partition_that_takes_no_identity_still_has_the_settings(machine: Machine, refused: str) -> None:
    machine.program("sync", f'case "$*" in */{refused}.new) exit 1 ;; esac')
    assert machine.boot() == ["data-incomplete"]
    bound = [call.split()[-2] for call in machine.calls("mount") if "--bind" in call]
    kept = machine.folder / "root/var/lib/edge-device/etc"
    assert bound[:2] == [str(kept / name) for name in ("edge-serve", "edge-ota")]


def test_a_partition_that_takes_no_settings_has_them_in_memory(machine: Machine) -> None:
    machine.program("cp", 'case "$*" in */var/*) exit 1 ;; esac; exec /bin/cp "$@"')
    assert machine.boot() == ["data-incomplete"]
    bound = [call.split()[-2] for call in machine.calls("mount") if "--bind" in call]
    assert bound[:2] == [str(machine.folder / "run/etc" / name) for name in ("edge-serve", "edge-ota")]
    assert (machine.folder / "run/etc/edge-serve/conf.d").is_dir()
    assert bound[2].endswith("machine-id")
