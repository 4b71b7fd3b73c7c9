"""States that go back, jump ahead, or are mixed: T4, T7, T8, K3."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ota.errors import Expired, RolledBack, Untrusted
from tests.ota.simulator import DAY, Repository
from tests.ota.trust.device import MANIFEST, Device, refused

#: higher than a version gets by itself, and what a JSON number holds exactly
FAR = 2**53 - 10


def _seen(repository: Repository, device: Device) -> Repository:
    """Let the device see two states; the first is returned."""
    device.run(repository).document(MANIFEST, 1000)
    old = repository.copy()
    repository.add(MANIFEST, b'{"release": 2}')
    repository.publish()
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 2}'
    return old


@pytest.mark.fault("T8")
@pytest.mark.parametrize(
    "lost",
    [
        (),
        ("timestamp.json",),
        ("timestamp.json", "snapshot.json"),
        ("snapshot.json", "targets.json", "models-det.json"),
        ("all",),
    ],
)
def test_an_old_state_is_refused_if_any_local_file_is_lost(
    repository: Repository, device: Device, lost: tuple[str, ...]
) -> None:
    old = _seen(repository, device)
    if lost:
        device.lose_metadata(*(() if lost == ("all",) else lost))

    refused(
        device,
        old,
        RolledBack,
        "old state: (role/timestamp is 2, and this device has seen 3|New timestamp version 2|Expected)",
    )
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 2}'


def _timestamp_goes_back(attack: Repository) -> None:
    attack.signed["timestamp"].version -= 2
    attack.publish_timestamp()


def _snapshot_goes_back(attack: Repository) -> None:
    attack.signed["snapshot"].version -= 1
    attack.publish_timestamp()


def _targets_go_back(attack: Repository) -> None:
    attack.signed["targets"].version -= 1
    attack.publish_snapshot()


def _models_go_back(attack: Repository) -> None:
    attack.signed["models-det"].version -= 1
    attack.publish_snapshot()


@pytest.mark.fault("T8")
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("attack", [_timestamp_goes_back, _snapshot_goes_back, _targets_go_back, _models_go_back])
def test_no_role_is_rolled_back(
    repository: Repository, device: Device, attack: Callable[[Repository], None], lost: bool
) -> None:
    """Each with the stolen keys that it takes, and also after all local metadata was lost."""
    _seen(repository, device)
    if lost:
        device.lose_metadata()
    attacked = repository.copy()
    attack(attacked)

    refused(device, attacked, RolledBack, "old state")


@pytest.mark.fault("T8", "T11")
def test_a_root_that_is_lost_and_withheld_is_missed(repository: Repository, device: Device) -> None:
    """The newest root has new root keys. Nothing else tells that there was one: the keys of the others stayed."""
    repository.publish_root(*repository.rotate("root"))
    repository.publish()
    assert device.run(repository).versions()["root"] == 2
    device.lose_metadata()
    del repository.files["metadata/2.root.json"]
    repository.publish()

    refused(device, repository, RolledBack, "role/root is 1, and this device has seen 2")


@pytest.mark.fault("T8", "K3")
@pytest.mark.parametrize("restored", [0, 1])
def test_a_backup_of_one_place_lowers_nothing(repository: Repository, device: Device, restored: int) -> None:
    """The metadata and one place of the floors come from an old backup of one partition."""
    device.run(repository).document(MANIFEST, 1000)
    backup = device.places[restored].read_bytes()
    old = _seen(repository, device)
    device.places[restored].write_bytes(backup)
    device.lose_metadata()

    refused(device, old, RolledBack, "role/timestamp is 2, and this device has seen 3")
    device.run(repository)
    assert device.places[0].read_bytes() == device.places[1].read_bytes()


@pytest.mark.fault("K3")
@pytest.mark.parametrize("damage", [None, b"", b'{"floors": {', b"\x00" * 500])
@pytest.mark.parametrize("place", [0, 1])
def test_one_lost_or_torn_place_is_written_again(
    repository: Repository, device: Device, place: int, damage: bytes | None
) -> None:
    old = _seen(repository, device)
    whole = device.places[place].read_bytes()
    if damage is None:
        device.places[place].unlink()
    else:
        device.places[place].write_bytes(damage)
    device.lose_metadata()

    refused(device, old, RolledBack, "role/timestamp is 2")
    assert bool(device.floors().warnings) == (damage is not None)
    device.run(repository)
    assert device.places[place].read_bytes() == whole
    assert device.floors().lost == 0


@pytest.mark.fault("K3")
def test_the_loss_of_both_copies_is_reported_and_metadata_protects(repository: Repository, device: Device) -> None:
    old = _seen(repository, device)
    device.lose_floors()

    refused(device, old, RolledBack, "New timestamp version 2")
    device.run(repository).document(MANIFEST, 1000)
    assert device.floors().lost > 0
    device.lose_metadata()
    refused(device, old, RolledBack, "role/timestamp is 2, and this device has seen 3")


@pytest.mark.fault("K3")
def test_a_new_device_has_lost_nothing(repository: Repository, device: Device) -> None:
    device.run(repository)

    assert device.floors().lost == 0


@pytest.mark.fault("T8")
def test_a_restored_copy_of_everything_is_not_noticed(repository: Repository, device: Device, tmp_path: Path) -> None:
    """The docs say so. The reports show it: the versions of such a device go back."""
    device.run(repository).document(MANIFEST, 1000)
    shutil.copytree(device.metadata.parent, tmp_path / "image")
    old = _seen(repository, device)
    copied = Device(tmp_path / "image", device.root)

    assert copied.run(old).document(MANIFEST, 1000) == b'{"release": 1}'
    assert copied.run(repository).document(MANIFEST, 1000) == b'{"release": 2}'


@pytest.mark.fault("T4")
@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets", "models-det", "rollout"])
def test_a_fast_forward_ends_with_a_rotation_of_the_keys(repository: Repository, device: Device, role: str) -> None:
    """A thief of the keys of a role set its version far ahead; new keys begin again at a low version."""
    repository.add("rollout/a.json", b"{}")
    repository.publish()
    honest = repository.copy()
    repository.signed[role].version = FAR
    {"timestamp": repository.publish_timestamp, "snapshot": repository.publish_snapshot}.get(
        role, lambda: repository.publish(role)
    )()
    trust = device.run(repository)
    for path in (MANIFEST, "rollout/a.json"):
        trust.document(path, 1000)
    assert device.floors().values()[f"role/{role}"] >= FAR

    _rotated(honest, role)
    trust = device.run(honest)
    for path in (MANIFEST, "rollout/a.json"):
        trust.document(path, 1000)
    assert device.floors().values()[f"role/{role}"] < 100


def _rotated(honest: Repository, role: str) -> None:
    """Publish new keys for the role, and, as its versions stand there, for snapshot and timestamp."""
    by = "root" if role in ("timestamp", "snapshot", "targets") else "targets"
    if by == "targets":
        honest.rotate(role, by="targets")
    for one in {"timestamp", "snapshot", *([role] if by == "root" else [])}:
        honest.rotate(one)
    honest.publish_root()
    honest.publish()


@pytest.mark.fault("T4")
def test_new_snapshot_keys_end_the_floor_of_targets(repository: Repository, device: Device) -> None:
    """As TUF has it (5.3.11). Its own conformance suite asks for it, too."""
    low = repository.signed["targets"].version
    repository.signed["targets"].version = FAR
    repository.publish("targets")
    device.run(repository)
    repository.rotate("snapshot")
    repository.publish_root()
    repository.signed["targets"].version = low
    repository.write("targets")
    repository.publish_snapshot()

    assert device.run(repository).versions()["targets"] == low
    assert device.floors().values()["role/targets"] == low


@pytest.mark.fault("T4")
def test_a_rotation_drops_no_other_floor(repository: Repository, device: Device) -> None:
    """New online keys do not let an old models-det back in, which its own keys have signed."""
    _seen(repository, device)
    for role in ("timestamp", "snapshot"):
        repository.rotate(role)
    repository.publish_root()
    attack = repository.copy()
    attack.signed["models-det"].version = 2
    attack.publish_snapshot()
    device.lose_metadata()

    refused(device, attack, RolledBack, "role/models-det is 2, and this device has seen 3")


@pytest.mark.fault("T4")
def test_a_key_that_is_added_drops_no_floor(repository: Repository, device: Device) -> None:
    """The old key still suffices, so that old metadata still verifies."""
    old = _seen(repository, device)
    device.lose_metadata()
    old.add_key("timestamp")
    old.publish_root()
    old.publish_snapshot(raise_version=False)

    refused(device, old, RolledBack, "role/timestamp is 2, and this device has seen 3")


@pytest.mark.fault("T4", "T14")
def test_a_version_beyond_all_numbers_is_not_taken(repository: Repository, device: Device) -> None:
    repository.signed["timestamp"].version = 2**63
    repository.write("timestamp")

    refused(device, repository, Untrusted, "version 9223372036854775808, expected a number of at most 9007199254740992")
    repository.signed["timestamp"].version = 5
    repository.write("timestamp")
    device.run(repository)


@pytest.mark.fault("T4")
def test_an_issued_time_far_ahead_is_a_lie(repository: Repository, device: Device) -> None:
    """Else a stolen timestamp key could set the clock floor so far ahead that nothing is fresh again."""
    repository.signed["timestamp"].unrecognized_fields["x-issued"] = "2099-01-01T00:00:00Z"
    repository.publish_timestamp()

    refused(device, repository, Untrusted, "issued at 2099-01-01T00:00:00Z, when root has expired")
    assert device.floors().issued == 0


@pytest.mark.fault("T4")
@pytest.mark.parametrize("is_copy_old", [False, True])
def test_an_issued_time_ahead_ends_with_the_keys_of_the_timestamp(
    repository: Repository, device: Device, is_copy_old: bool
) -> None:
    """A stolen key can set it ahead by the life of the snapshot, when all timestamps of the new keys have expired."""
    honest = repository.copy()
    ahead = repository.now + 13 * DAY
    repository.signed["timestamp"].expires = repository.signed["snapshot"].expires
    repository.signed["timestamp"].unrecognized_fields["x-issued"] = "2026-11-14T00:00:00Z"
    repository.publish_timestamp()
    device.run(repository)
    assert device.floors().issued == ahead
    backup = device.places[1].read_bytes()
    honest.signed["timestamp"].version = 10
    honest.publish_timestamp()
    refused(device, honest, Expired, "timestamp.json is expired")

    honest.rotate("timestamp")
    honest.publish_root()
    honest.publish_timestamp()
    trust = device.run(honest)
    assert trust.document(MANIFEST, 1000) == b'{"release": 1}'
    assert device.floors().issued == honest.now
    assert trust.expires()["timestamp"] == honest.now + 3 * DAY
    if is_copy_old:
        device.places[1].write_bytes(backup)
        device.run(honest)
        assert device.floors().issued == honest.now


@pytest.mark.fault("T7")
@pytest.mark.parametrize("role", ["snapshot", "targets", "models-det"])
def test_files_of_two_states_do_not_mix(repository: Repository, device: Device, role: str) -> None:
    """A file server gives an old, well-signed file under the new name."""
    old = repository.files[f"metadata/2.{role}.json"]
    repository.add(MANIFEST, b'{"release": 2}')
    repository.publish()
    repository.files[f"metadata/3.{role}.json"] = old

    refused(device, repository, Untrusted, "not the one that was signed|does not fit together")


@pytest.mark.fault("T7")
def test_a_snapshot_must_list_what_the_last_one_listed(repository: Repository, device: Device) -> None:
    device.run(repository)
    del repository.signed["snapshot"].meta["engines.json"]
    repository.signed["snapshot"].version += 1
    repository.write("snapshot")
    repository.publish_timestamp()

    refused(device, repository, Untrusted, "missing info for 'engines.json'")
