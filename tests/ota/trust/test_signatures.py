"""Rights of signers: missing, wrong, and too few signatures, and the use of each stolen key. T1, T9."""

from __future__ import annotations

import json
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner

from ota.errors import Expired, RolledBack, Untrusted
from tests.ota.simulator import DAY, NOW, Repository
from tests.ota.trust.device import MANIFEST, Device, refused

CODE = f"engines/det/{'a' * 64}"
ROLES = ["root", "timestamp", "snapshot", "targets", "models-det"]


def _name(repository: Repository, role: str) -> str:
    return (
        "metadata/timestamp.json" if role == "timestamp" else f"metadata/{repository.signed[role].version}.{role}.json"
    )


def _edit(repository: Repository, role: str, value: Any) -> None:
    """Change a role's file after it was signed, and sign snapshot and timestamp for it where they name its hash."""
    repository.files[_name(repository, role)] = json.dumps(value).encode()
    if role == "snapshot":
        repository.publish_timestamp()


@pytest.mark.fault("T1")
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("attack", ["absent", "foreign", "changed", "too few", "one key twice"])
def test_wrong_signatures(repository: Repository, device: Device, role: str, attack: str) -> None:
    device.run(repository)
    if role == "root":
        repository.signed["root"].version += 1
    repository.publish("models-det", "targets")
    if role == "root":
        repository.write("root")
    found = json.loads(repository.files[_name(repository, role)])
    if attack == "absent":
        found["signatures"] = []
    elif attack == "foreign":
        signers = [CryptoSigner.generate_ed25519() for _ in repository.signers[role]]
        found = json.loads(repository.sign(repository.signed[role], signers))
    elif attack == "changed":
        found["signed"]["x-changed"] = 1
    elif attack == "too few":
        threshold = {"root": 2, "targets": 2}.get(role, 1)
        found["signatures"] = found["signatures"][: threshold - 1]
    else:
        found["signatures"] = [found["signatures"][0]] * 3
        if role not in ("root", "targets"):  # one key is enough for the others
            found["signatures"][0]["sig"] = "00" * 64
    _edit(repository, role, found)

    refused(device, repository, Untrusted, "signed by|Multiple signatures|not trusted")
    repository.write("root")
    repository.publish("models-det", "targets")
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("T1")
def test_one_key_under_two_ids_counts_once(repository: Repository, device: Device) -> None:
    """A thief of one targets key lists the same key twice in a root of his own: the root needs the root's keys."""
    root = repository.signed["root"]
    thief = repository.signers["targets"][0]
    root.version += 1
    found = json.loads(repository.sign(root, [thief]))
    repository.files["metadata/2.root.json"] = json.dumps(found).encode()

    refused(device, repository, Untrusted, "root was signed by 0/2 keys")


@pytest.mark.fault("T1")
def test_metadata_of_another_role_is_refused(repository: Repository, device: Device) -> None:
    """A snapshot in the timestamp's place, signed by the timestamp's key."""
    forged = repository.sign(repository.signed["snapshot"], repository.signers["timestamp"])
    repository.files["metadata/timestamp.json"] = forged

    refused(device, repository, Untrusted, "Expected 'timestamp', got 'snapshot'")


@pytest.mark.fault("T9")
def test_a_timestamp_key_freezes_until_the_snapshot_expires_and_no_longer(
    repository: Repository, device: Device
) -> None:
    device.run(repository)
    repository.add(MANIFEST, b'{"release": 2}')
    frozen = repository.copy()
    repository.publish()
    frozen.signed["timestamp"].expires = repository.signed["root"].expires
    frozen.publish_timestamp()

    assert device.run(frozen, NOW + 13 * DAY).document(MANIFEST, 1000) == b'{"release": 1}'
    refused(device, frozen, Expired, "snapshot.json is expired", NOW + 15 * DAY)


@pytest.mark.fault("T9")
def test_a_timestamp_key_makes_no_snapshot(repository: Repository, device: Device) -> None:
    repository.signers["snapshot"] = repository.signers["timestamp"]
    repository.publish()

    refused(device, repository, Untrusted, "snapshot was signed by 0/1 keys")


@pytest.mark.fault("T9")
def test_timestamp_and_snapshot_keys_roll_nothing_back(repository: Repository, device: Device) -> None:
    """They may pair any signed metadata, but not below what the device has verified."""
    old = {role: repository.signed[role].version for role in ("targets", "models-det")}
    repository.add(MANIFEST, b'{"release": 2}')
    repository.publish()
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 2}'
    device.lose_metadata()

    for role, version in old.items():
        attack = repository.copy()
        attack.signed[role].version = version
        attack.publish_snapshot()
        refused(device, attack, RolledBack, f"role/{role} is {version}, and this device has seen {version + 1}")
        device.lose_metadata()


@pytest.mark.fault("T9")
def test_a_models_key_signs_nothing_for_other_families(repository: Repository, device: Device) -> None:
    """Paths of other roles in its own metadata are never looked at."""
    repository.delegate("models-ocr", ["bundles/ocr/*"], terminating=True)
    stolen = {"bundles/ocr/ocr.1.json": b"1", "rollout/plant-a.json": b"2", "devices/d1.json": b"3", CODE: b"4"}
    for path, data in stolen.items():
        repository.add(path, data, role="models-det")
    repository.publish()
    trust = device.run(repository)

    assert [path for path in stolen if trust.target(path)] == []


@pytest.mark.fault("T9", "U6")
def test_code_comes_from_the_role_engines_only(repository: Repository, device: Device) -> None:
    repository.add(CODE, b"plan", role="models-det")
    repository.publish()
    assert device.run(repository).target(CODE) is None

    repository.add(CODE, b"plan", role="engines")
    repository.publish()
    found = device.run(repository).target(CODE)
    assert found is not None
    assert found.size == 4


@pytest.mark.fault("T9")
@pytest.mark.parametrize("role", ["engines", "targets", "root"])
def test_one_key_of_a_threshold_is_good_for_nothing(repository: Repository, device: Device, role: str) -> None:
    device.run(repository)
    repository.signers[role] = repository.signers[role][:1]
    repository.add(CODE, b"plan", role="engines")
    if role == "root":
        repository.publish_root()
    repository.publish()

    with pytest.raises(Untrusted, match=f"{role} was signed by 1/2 keys"):
        device.run(repository).target(CODE)


@pytest.mark.fault("T9")
def test_a_revoked_models_key_is_refused(repository: Repository, device: Device) -> None:
    device.run(repository).document(MANIFEST, 1000)
    stolen = repository.rotate("models-det", by="targets")
    repository.publish("targets", "models-det")
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'

    attack = repository.copy()
    attack.signers["models-det"] = stolen
    attack.add(MANIFEST, b"evil")
    attack.publish("models-det")
    refused(device, attack, Untrusted, "models-det was signed by 0/1 keys")


@pytest.mark.fault("T9", "N9")
def test_a_file_server_without_keys_changes_no_byte(repository: Repository, device: Device) -> None:
    for path, data in list(repository.files.items()):
        if path.startswith(("metadata/2.models-det", "targets/bundles/det")):
            repository.files[path] = data.replace(b'"length":14', b'"length":15').replace(b": 1", b": 7")

            refused(device, repository, Untrusted, "not the one that was signed|signed by 0/1 keys")
            repository.files[path] = data
            device.lose_metadata()
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'
