"""Room on the disk, before and after it was too small."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ota import files
from ota.errors import NoSpace, OtaError
from ota.fetch import disk_space
from ota.fetch.directory import DirectorySource
from ota.fetch.disk_space import MB, DiskSpace, has_grown, measure, reason_not_to_fit
from ota.layout import StateLayout
from tests.ota.clock import FakeClock

from .steps import blobs, entry_of, noise, repository

DATA = noise(100_000, 9)
GB = 1000 * MB


@pytest.fixture
def stick(tmp_path: Path) -> DirectorySource:
    folder = tmp_path / "stick"
    (folder / "metadata").mkdir(parents=True)
    for path, data in repository((DATA, 0)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(data, bytes)
        (folder / path).write_bytes(data)
    return DirectorySource(folder)


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    return StateLayout(tmp_path / "state")


def set_room(monkeypatch: pytest.MonkeyPatch, room: DiskSpace) -> None:
    def measure(layout: StateLayout, quota: int, reserve: int) -> DiskSpace:
        return dataclasses.replace(room, quota=quota, reserve=reserve)

    monkeypatch.setattr(disk_space, "measure", measure)


def test_files_that_fit() -> None:
    assert reason_not_to_fit(DiskSpace(free=int(1.1 * GB) + 256 * MB, inodes=65, reserve=256 * MB), GB, 1) == ""
    assert reason_not_to_fit(DiskSpace(free=2 * GB, used=GB, quota=2 * GB), GB, 1) == ""
    assert reason_not_to_fit(DiskSpace(free=0, inodes=0, used=9, quota=1, reserve=GB), 0, 0) == ""


@pytest.mark.fault("D1")
def test_the_error_of_a_small_disk_has_the_figures() -> None:
    found = reason_not_to_fit(DiskSpace(free=int(1.1 * GB), reserve=256 * MB), GB, 1)

    assert found == (
        "1000 MB are missing; with 10 % and RESERVE (256 MB) 1356 MB must be free, and 1100 MB are: "
        "free space on that disk ('edge-ota gc' removes what is not needed)"
    )


@pytest.mark.fault("D2")
def test_the_error_of_a_small_quota_has_the_figures() -> None:
    found = reason_not_to_fit(DiskSpace(free=9 * GB, used=3 * GB, quota=3 * GB + MB), int(1.5 * MB), 1)

    assert found.startswith("the releases here use 3000 MB, 1.5 MB are missing, and QUOTA allows 3001 MB: raise QUOTA")


@pytest.mark.fault("D3")
def test_a_disk_without_inodes_is_reported() -> None:
    assert "2 files are missing, and the disk has 65 inodes left, expected 66" in reason_not_to_fit(
        DiskSpace(GB, inodes=65), 1, 2
    )
    assert reason_not_to_fit(DiskSpace(GB, inodes=None), 1, 2) == ""


@pytest.mark.fault("D1")
@pytest.mark.parametrize(
    ("failed_at", "free", "missing", "again"),
    [
        (0, 10 * MB, 20 * MB, False),
        (0, 20 * MB, 20 * MB, True),
        (500 * MB, 501 * MB, GB, False),
        (500 * MB, 564 * MB, GB, True),
    ],
)
def test_another_try_waits_until_space_grew(failed_at: int, free: int, missing: int, again: bool) -> None:
    assert has_grown(failed_at, free, missing) is again


def test_used_bytes_count_each_file_once(layout: StateLayout) -> None:
    blob = layout.blob("ab" * 32)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(1000))
    release = layout.release("det", 17)
    release.mkdir(parents=True)
    os.link(blob, release / "model.onnx")
    (release / "copied").write_bytes(bytes(10))
    layout.partial.mkdir()
    (layout.partial / "x").write_bytes(bytes(100))
    layout.metadata.mkdir()
    (layout.metadata / "root.json").write_bytes(bytes(5000))

    assert measure(layout, quota=1, reserve=0).used == 1110
    assert measure(layout, quota=0, reserve=7).reserve == 7


def test_the_figures_are_those_of_the_disk(layout: StateLayout, tmp_path: Path) -> None:
    found, disk = measure(layout, 0, 0), os.statvfs(tmp_path)

    assert abs(found.free - disk.f_bavail * disk.f_frsize) < GB


@pytest.mark.fault("D1")
def test_nothing_is_fetched_where_it_does_not_fit(
    layout: StateLayout, stick: DirectorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_room(monkeypatch, DiskSpace(free=109_999))
    with pytest.raises(NoSpace, match=r"state: no space: 0.1 MB are missing"):
        blobs(layout.state_dir, [stick]).missing([entry_of(DATA)])
    set_room(monkeypatch, DiskSpace(free=110_000))
    assert blobs(layout.state_dir, [stick]).missing([entry_of(DATA)]) == len(DATA)


@pytest.mark.fault("D2")
def test_blobs_that_are_there_need_no_room(
    layout: StateLayout, stick: DirectorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_of(DATA)
    layout.partial.mkdir(parents=True)
    (layout.partial / entry.sha256).write_bytes(DATA[:60_000])
    set_room(monkeypatch, DiskSpace(free=44_000, used=60_000))
    assert blobs(layout.state_dir, [stick], quota=100_000).missing([entry]) == 40_000
    with pytest.raises(NoSpace, match="QUOTA"):
        blobs(layout.state_dir, [stick], quota=99_999).missing([entry])


@pytest.mark.fault("D2")
def test_a_quota_that_only_the_write_meets_is_not_tried_again_until_space_grew(
    layout: StateLayout, stick: DirectorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_of(DATA)
    set_room(monkeypatch, DiskSpace(free=GB))

    def full(operation: files.DiskOperation) -> None:
        if operation.kind == "write" and "partial" in operation.path:
            raise OSError(errno.EDQUOT, "Disk quota exceeded", operation.path)

    monkeypatch.setattr(files, "point", full)
    fetcher = blobs(layout.state_dir, [stick])
    assert fetcher.missing([entry]) == len(DATA)
    with pytest.raises(NoSpace, match="Disk quota exceeded"):
        fetcher.fetch([entry])
    monkeypatch.setattr(files, "point", lambda operation: None)

    with pytest.raises(NoSpace, match=r"took no more bytes when 1000 MB were free .* free 0.1 MB there"):
        blobs(layout.state_dir, [stick]).missing([entry])
    assert blobs(layout.state_dir, [stick], apply=True).missing([entry]) == len(DATA), "an operator asked"
    tomorrow = FakeClock(FakeClock.seconds + 25 * 3600)
    assert blobs(layout.state_dir, [stick], clock=tomorrow).missing([entry]) == len(DATA), "a day is over"
    set_room(monkeypatch, DiskSpace(free=GB + len(DATA)))
    assert blobs(layout.state_dir, [stick]).missing([entry]) == len(DATA)
    blobs(layout.state_dir, [stick]).fetch([entry])
    assert not layout.no_space.exists()


@pytest.mark.parametrize("record", [b"", b"{", b'{"free":-1}', b'{"free":"x"}', b"x" * 2000])
def test_a_record_that_is_torn_does_not_hold_up(
    layout: StateLayout, stick: DirectorySource, record: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.state_dir.mkdir()
    layout.no_space.write_bytes(record)
    set_room(monkeypatch, DiskSpace(free=GB))

    assert blobs(layout.state_dir, [stick]).missing([entry_of(DATA)]) == len(DATA)


def test_a_record_that_cannot_be_written_hides_no_error(
    layout: StateLayout, stick: DirectorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(operation: files.DiskOperation) -> Any:
        if operation.kind in ("write", "create"):
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)

    monkeypatch.setattr(files, "point", full)
    with pytest.raises(OtaError, match=r"partial/.*: No space left on device; free space"):
        blobs(layout.state_dir, [stick]).fetch([entry_of(DATA)])
