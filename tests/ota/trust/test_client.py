"""`Trust` with an honest repository: what it fetches, returns, and leaves on disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ota import files
from ota.errors import AlreadyRunning, FetchError, NoSpace, NotInRepository, RolledBack, StoreError, Untrusted
from tests.ota.simulator import DAY, NOW, Repository
from tests.ota.trust.device import MANIFEST, Device, refused


def test_a_refresh_fetches_each_role_once_and_verifies_documents(repository: Repository, device: Device) -> None:
    trust = device.run(repository)

    assert repository.fetched == [
        "metadata/2.root.json",
        "metadata/timestamp.json",
        "metadata/2.snapshot.json",
        "metadata/2.targets.json",
    ]
    assert trust.document(MANIFEST, 1000) == b'{"release": 1}'
    assert trust.versions() == {"root": 1, "timestamp": 2, "snapshot": 2, "targets": 2, "models-det": 2}
    assert trust.expires()["timestamp"] == NOW + 3 * DAY
    assert trust.is_refreshed()
    assert repository.fetched[4] == "metadata/2.models-det.json"
    assert len(repository.fetched) == 6


def test_a_second_run_fetches_root_and_timestamp_only(repository: Repository, device: Device) -> None:
    device.run(repository).document(MANIFEST, 1000)
    repository.fetched.clear()

    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'
    assert repository.fetched == ["metadata/2.root.json", "metadata/timestamp.json"]


def test_a_damaged_cached_document_is_fetched_again(repository: Repository, device: Device) -> None:
    device.run(repository).document(MANIFEST, 1000)
    (cached,) = (device.metadata / "targets").iterdir()
    cached.write_bytes(b'{"release": 2}')

    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'
    assert cached.read_bytes() == b'{"release": 1}'


def test_documents_that_are_not_asked_for_leave_the_cache(repository: Repository, device: Device) -> None:
    for number in range(70):
        repository.add(f"rollout/f{number}.json", b"{}")
    repository.publish()
    trust = device.run(repository)
    for number in range(70):
        trust.document(f"rollout/f{number}.json", 100)

    assert len(list((device.metadata / "targets").iterdir())) == 64


def test_a_document_that_is_not_listed_is_not_found(repository: Repository, device: Device) -> None:
    trust = device.run(repository)

    assert trust.target("bundles/det/det.2.json") is None
    with pytest.raises(NotInRepository, match=r"does not list bundles/det/det.2.json"):
        trust.document("bundles/det/det.2.json", 1000)
    with pytest.raises(Untrusted, match="14 bytes, expected at most 10"):
        trust.document(MANIFEST, 10)


def test_a_listed_document_that_a_mirror_lacks_is_no_document_that_is_not_listed(
    repository: Repository, device: Device
) -> None:
    trust = device.run(repository)
    (path,) = (one for one in repository.files if one.endswith(".det.1.json"))
    content = repository.files.pop(path)
    with pytest.raises(FetchError, match=r"but signed metadata lists it: copy the whole repository again") as caught:
        trust.document(MANIFEST, 1000)
    assert not isinstance(caught.value, NotInRepository)
    repository.files[path] = content
    assert trust.document(MANIFEST, 1000) == b'{"release": 1}'


def test_the_files_of_a_refresh_are_synced(
    repository: Repository, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def note(one: files.DiskOperation) -> None:
        if one.kind == "fsync":
            synced.append(Path(one.path).name)

    monkeypatch.setattr(files, "point", note)
    device.run(repository)

    assert {"1.root.json", "timestamp.json", "snapshot.json", "targets.json", "metadata", "root_history"} <= set(synced)


def test_a_second_process_has_to_wait(repository: Repository, device: Device) -> None:
    device.run(repository)
    with open(device.metadata / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AlreadyRunning, match="another edge-ota is working"):
            device.run(repository)


@pytest.mark.fault("C6")
@pytest.mark.parametrize("damage", [b"", b'{"signed": {', b"\x00" * 300])
@pytest.mark.parametrize("name", ["1.root.json", "timestamp.json", "snapshot.json", "targets.json", "models-det.json"])
def test_torn_local_metadata_heals(repository: Repository, device: Device, name: str, damage: bytes) -> None:
    device.run(repository).document(MANIFEST, 1000)
    (path,) = device.metadata.rglob(name)
    path.write_bytes(damage)

    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'
    assert json.loads(path.read_bytes())["signed"]


def test_files_of_a_killed_process_are_removed(repository: Repository, device: Device) -> None:
    device.run(repository)
    (device.metadata / "tmpabc123").write_bytes(b"half")
    device.run(repository)

    assert not (device.metadata / "tmpabc123").exists()


@pytest.mark.fault("D1")
def test_a_metadata_directory_that_cannot_be_written_is_a_disk_error(repository: Repository, device: Device) -> None:
    device.run(repository)
    (device.metadata / "timestamp.json").unlink()
    (device.metadata / "timestamp.json").mkdir()

    with pytest.raises(StoreError, match=r"timestamp\.json"):
        device.run(repository)


def test_a_refresh_can_be_repeated(repository: Repository, device: Device) -> None:
    trust = device.run(repository)
    repository.publish("rollout")
    trust.refresh()

    assert trust.versions()["snapshot"] == 3


def test_two_clients_of_one_time_see_their_own_state(repository: Repository, device: Device) -> None:
    """A published state of the repository stays whole: consistent snapshots keep the files of each."""
    old = device.run(repository)
    repository.add(MANIFEST, b'{"release": 9}')
    repository.publish("models-det")

    assert old.document(MANIFEST, 1000) == b'{"release": 1}'
    assert device.run(repository, NOW).document(MANIFEST, 1000) == b'{"release": 9}'


@pytest.mark.fault("D1")
def test_a_full_disk_is_no_space(repository: Repository, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path, None, target)

    device.run(repository)
    repository.publish()
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", full)
        with pytest.raises(NoSpace, match=r"root\.json: No space left on device; free space"):
            device.run(repository)
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("C1")
def test_a_crash_at_any_operation_of_a_refresh(
    repository: Repository, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each the next run succeeds, and nothing that was seen before the crash is taken back."""
    before = repository.copy()
    repository.add(MANIFEST, b'{"release": 2}')
    repository.publish()
    for number in range(100):
        shutil.rmtree(device.metadata.parent)
        device.metadata.parent.mkdir()
        device.run(before).document(MANIFEST, 1000)
        left = itertools.count(-number)

        def crash(operation: files.DiskOperation, left: Iterator[int] = left) -> None:
            if next(left) >= 0:
                raise _PowerCut

        with monkeypatch.context() as cut, contextlib.suppress(_PowerCut):
            cut.setattr(files, "point", crash)
            device.run(repository).document(MANIFEST, 1000)
            break
        assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 2}'
        refused(device, before, RolledBack, "old state")
    assert 15 < number < 99


class _PowerCut(BaseException):
    """The process ends here."""
