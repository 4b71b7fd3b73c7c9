"""Boot entries and the record of versions: slots.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from image.device import decide
from image.device.slots import BootEntry, Failure, Slots, read_entry, read_slots
from tests.image.machine import Machine, read_json


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("edge_7.efi", BootEntry("edge_7.efi", 7, None)),
        ("edge_7+3.efi", BootEntry("edge_7+3.efi", 7, 3)),
        ("edge_7+3-0.efi", BootEntry("edge_7+3-0.efi", 7, 3)),
        ("edge_12+0-3.efi", BootEntry("edge_12+0-3.efi", 12, 0)),
    ],
)
def test_the_name_of_an_entry_has_its_version_and_tries(name: str, entry: BootEntry) -> None:
    assert read_entry(name) == entry
    assert entry.usable is (entry.left != 0)


@pytest.mark.parametrize("name", ["edge_.efi", "edge_1", "other_1.efi", "edge_1+.efi", "edge_1+3-.efi", ".#edge_1.efi"])
def test_other_files_are_no_entries(name: str) -> None:
    assert read_entry(name) is None


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    slots = Slots((3, 5), {4: "it failed"}, 6, 3, data_lasted=False)
    machine = Machine(tmp_path, [], slots=slots)

    assert machine.boot.load() == slots
    assert read_json(machine.boot.record) == {
        "schema": 1, "confirmed": [3, 5], "bad": {"4": "it failed"}, "pending": 6, "previous": 3,
        "data_lasted": False,
    }  # fmt: skip


def test_a_record_of_an_older_image_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [])
    machine.boot.record.write_text('{"schema": 1, "confirmed": [3], "bad": {}, "pending": 6, "previous": 3}')

    assert machine.boot.load() == Slots((3,), {}, 6, 3, data_lasted=True)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 2}', '{"schema": 1}', "[" * 9999])
def test_a_damaged_record_is_read_from_the_boot_partition(tmp_path: Path, text: str) -> None:
    machine = Machine(tmp_path, [], slots=Slots((1,), {4: "it failed"}))
    machine.boot.record.write_text(text)

    assert read_slots(text.encode()) is None
    assert machine.boot.load() == Slots((1,), {4: "it failed"})


def test_a_lost_data_partition_does_not_make_a_version_good_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [], slots=Slots((1,), {4: "it failed"}))
    machine.boot.record.write_text(Slots((1,)).text())

    assert machine.boot.load().bad == {4: "it failed"}


def test_the_record_keeps_the_highest_bad_versions(tmp_path: Path) -> None:
    slots = Slots()
    for version in range(100):
        slots = slots.with_bad(version, "x" * 1000)
    Machine(tmp_path, [], slots=slots)

    assert sorted(slots.bad) == list(range(68, 100))
    assert read_slots(slots.text().encode()) == slots


def test_a_condemned_entry_has_no_tries_and_its_reason_is_kept(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ["edge_1.efi", "edge_2+2-1.efi"], 2)

    machine.boot.condemn(Failure(2, "health", 'no answer: "quoted"'))

    assert machine.names() == ["edge_1.efi", "edge_2+0.efi"]
    assert machine.boot.read_failure() == Failure(2, "health", 'no answer: "quoted"')


def test_two_names_of_one_version_become_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ["edge_2+2-1.efi", "edge_2+1-2.efi", "edge_1.efi"], 2)

    machine.boot.set_tries(2, 5)

    assert machine.names() == ["edge_1.efi", "edge_2+5.efi"]


@pytest.mark.parametrize("empty", ["edge_2+4-1.efi", "edge_2+5.efi"])
def test_the_whole_kernel_of_two_names_is_kept(tmp_path: Path, empty: str) -> None:
    machine = Machine(tmp_path, ["edge_2+4-1.efi", "edge_2+5.efi"], 2)
    (machine.boot.entries_directory / empty).write_bytes(b"")

    machine.boot.set_tries(2, 5)

    assert (machine.boot.entries_directory / "edge_2+5.efi").read_text().startswith("kernel")


def test_an_empty_kernel_is_no_system_that_waits_for_a_restart(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ["edge_2+5.efi", "edge_3+3-0.efi"], 2, Slots((2,), pending=3))
    (machine.boot.entries_directory / "edge_3+3-0.efi").write_bytes(b"")

    assert not decide.waits_for_restart(machine.boot.entries(), machine.boot.load(), 2, 3)


def test_a_device_without_a_boot_partition_has_no_entries(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [], 2)
    machine.boot.entries_directory.rmdir()

    assert machine.boot.entries() == ()
    assert machine.boot.load() == Slots()


def test_a_system_that_is_no_image_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [])
    (tmp_path / "etc/os-release").write_text("ID=debian\n")

    with pytest.raises(ValueError, match="this is not the device image"):
        machine.boot.running()
