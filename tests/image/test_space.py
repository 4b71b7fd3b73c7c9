"""The look at the data partition while the system runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from image.device import report
from image.device.data import space

SCRIPT = Path(space.__file__).parents[1] / "initrd/edge-state"
MIB = 1024 * 1024


def found(mib: int = 900, files: int = 50_000, flags: int = 0) -> os.statvfs_result:
    """Return what a file system says of itself: blocks of 1 MiB."""
    return os.statvfs_result((MIB, MIB, 2000, mib, mib, 90_000, files, files, flags, 255))


@pytest.mark.parametrize(
    ("state", "codes"),
    [
        (found(), []),
        (found(mib=63), ["data-full"]),
        (found(files=999), ["data-full"]),
        (found(flags=os.ST_RDONLY), ["data-read-only"]),
    ],
)
def test_faults_come_and_go_with_their_cause(tmp_path: Path, state: os.statvfs_result, codes: list[str]) -> None:
    space.look(state, tmp_path)
    assert [one["code"] for one in report.faults(tmp_path)] == codes
    space.look(found(), tmp_path)
    assert report.faults(tmp_path) == []


def test_the_fault_that_the_initrd_reported_ends_when_there_is_space(tmp_path: Path) -> None:
    report.report("data-full", "The data partition is full.", run=tmp_path)
    space.look(found(), tmp_path)
    assert report.faults(tmp_path) == []


def test_the_initrd_has_the_same_limits() -> None:
    script = SCRIPT.read_text()
    assert f"LEAST_FREE={space.LEAST_BYTES // 1024}\n" in script
    assert f"LEAST_FILES={space.LEAST_FILES}\n" in script
