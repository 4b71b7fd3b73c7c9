"""The chain of roots from the factory's to the newest: T11."""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from pathlib import Path

import pytest

from ota.errors import FetchError, RolledBack, Untrusted, UsageError
from ota.trust.roots import MOST_ROOTS, factory_root
from tests.ota.simulator import Repository
from tests.ota.trust.device import MANIFEST, Device, refused


def _rotate_root(repository: Repository) -> None:
    repository.publish_root(*repository.rotate("root"))


@pytest.mark.fault("T11")
def test_a_device_that_slept_through_five_roots(repository: Repository, device: Device) -> None:
    """Each root had new keys, and so had every other role meanwhile."""
    device.run(repository).document(MANIFEST, 1000)
    for role in ("root", "timestamp", "snapshot", "targets", "root"):
        if role == "root":
            _rotate_root(repository)
        else:
            repository.rotate(role)
            repository.publish_root()
    for role in ("models-det", "engines", "rollout"):
        repository.rotate(role, by="targets")
    repository.publish()

    trust = device.run(repository)
    assert trust.document(MANIFEST, 1000) == b'{"release": 1}'
    assert trust.versions()["root"] == 6
    assert device.floors().values()["role/root"] == 6


@pytest.mark.fault("T11")
def test_a_gap_ends_the_chain(repository: Repository, device: Device) -> None:
    """A server that withholds a root holds the device at the one before, and no new key works there."""
    repository.publish_root()
    repository.rotate("timestamp")
    repository.publish_root()
    repository.publish()
    del repository.files["metadata/2.root.json"]

    refused(device, repository, Untrusted, "timestamp was signed by 0/1 keys")


@pytest.mark.fault("T11")
def test_no_version_may_be_skipped(repository: Repository, device: Device) -> None:
    repository.publish_root()
    repository.publish_root()
    repository.files["metadata/2.root.json"] = repository.files.pop("metadata/3.root.json")

    refused(device, repository, Untrusted, "Expected root version 2 instead got version 3")


@pytest.mark.fault("T11")
@pytest.mark.parametrize("signer", ["new keys only", "old keys only"])
def test_a_root_needs_the_keys_of_both(repository: Repository, device: Device, signer: str) -> None:
    old = repository.rotate("root")
    if signer == "old keys only":
        repository.signers["root"] = old
    repository.publish_root()

    refused(device, repository, Untrusted, "root was signed by 0/2 keys")


@pytest.mark.fault("T11")
def test_257_roots_take_two_runs(repository: Repository, device: Device) -> None:
    """A server cannot keep a device busy for ever, and no number of roots is too many."""
    for _ in range(MOST_ROOTS + 1):
        repository.publish_root()
    repository.rotate("timestamp")
    repository.publish_root()
    repository.publish()

    refused(device, repository, FetchError, "more than 256 new roots; this run got to 257, run it again")
    assert device.run(repository).versions()["root"] == MOST_ROOTS + 3


@pytest.mark.fault("T11")
def test_a_root_that_is_damaged_on_disk_comes_again(repository: Repository, device: Device) -> None:
    for _ in range(3):
        _rotate_root(repository)
    repository.publish()
    device.run(repository)
    (device.metadata / "root_history" / "3.root.json").write_bytes(b"{}")

    assert device.run(repository).versions()["root"] == 4


@pytest.mark.fault("T11")
def test_an_image_with_a_newer_factory_root(repository: Repository, device: Device) -> None:
    device.run(repository)
    for _ in range(2):
        _rotate_root(repository)
    repository.publish()
    device.root = repository.root(3)

    assert device.run(repository).versions()["root"] == 3


@pytest.mark.fault("T11")
@pytest.mark.parametrize("same_keys", [False, True])
@pytest.mark.parametrize("renewals", [0, 2])
def test_a_device_is_given_to_a_publisher_that_started_anew(
    repository: Repository, device: Device, same_keys: bool, renewals: int
) -> None:
    """Its versions begin at 1, also with the keys of the old one."""
    anew = repository.copy() if same_keys else Repository()
    anew.signed["root"].expires += timedelta(days=1)
    anew.write("root")
    anew.add(MANIFEST, b'{"release": 7}')
    anew.publish(raise_versions=False)
    for _ in range(renewals):
        _rotate_root(repository)
    repository.publish()
    repository.publish()
    device.run(repository).document(MANIFEST, 1000)
    device.root = anew.root(1)

    trust = device.run(anew)
    assert trust.document(MANIFEST, 1000) == b'{"release": 7}'
    assert device.floors().values()["role/root"] == 1
    assert [one.name for one in (device.metadata / "root_history").iterdir()] == ["1.root.json"]
    if not same_keys:
        refused(device, repository, Untrusted, "was signed by")
    _rotate_root(anew)
    assert device.run(anew).versions()["root"] == 2


@pytest.mark.fault("T11")
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_another_root_of_the_same_publisher_keeps_the_floors(
    repository: Repository, device: Device, before: int, after: int, lost: bool
) -> None:
    old = repository.copy()
    for _ in range(2):
        repository.publish_root()
    for version in (2, 3):
        old.files[f"metadata/{version}.root.json"] = repository.root(version)
    repository.publish()
    device.root = repository.root(before)
    device.run(repository)
    device.root = repository.root(after)
    if lost:
        device.lose_metadata()

    refused(device, old, RolledBack, "role/timestamp is|New timestamp version")
    assert device.run(repository).versions()["root"] == 3


@pytest.mark.fault("T11")
@pytest.mark.parametrize("renewals", [0, 1])
def test_the_same_root_in_other_bytes_keeps_the_floors(repository: Repository, device: Device, renewals: int) -> None:
    """Also while a mirror withholds the roots after it."""
    old = repository.copy()
    for _ in range(renewals):
        _rotate_root(repository)
    repository.publish()
    device.run(repository)
    device.root = json.dumps(json.loads(device.root), indent=2).encode() + b"\n"

    refused(device, old, RolledBack, "role/root is|role/timestamp is|New timestamp version")
    assert device.run(repository).versions()["root"] == 1 + renewals


@pytest.mark.fault("T11")
def test_a_root_that_is_withheld_is_no_other_publisher(
    repository: Repository, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after more roots than a floor has."""
    monkeypatch.setattr("ota.trust.client.MOST_ROOTS", 2)
    old = repository.copy()
    for _ in range(6):
        repository.publish_root()
    repository.publish()
    for _ in range(3):
        with contextlib.suppress(FetchError):
            device.run(repository)
    device.lose_metadata()

    refused(device, old, RolledBack, "role/root is 1, and this device has seen 7")


def test_a_missing_factory_root_says_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"root.json does not exist, .*: copy root.json from the publisher"):
        factory_root(tmp_path / "root.json")


@pytest.mark.parametrize("data", [b"", b"<html>", b'{"signed": {"_type": "targets", "version": 1}}', b"[1]"])
def test_documents_that_are_no_factory_root(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "root.json").write_bytes(data)
    with pytest.raises(UsageError, match=r"root\.json .*copy root\.json"):
        factory_root(tmp_path / "root.json")


def test_a_factory_root_that_is_none_for_the_library(repository: Repository, device: Device, tmp_path: Path) -> None:
    (tmp_path / "root.json").write_bytes(b'{"signed": {"_type": "root", "version": 1}}')
    device.root = factory_root(tmp_path / "root.json")

    refused(device, repository, Untrusted, "not trusted: Failed to deserialize")
