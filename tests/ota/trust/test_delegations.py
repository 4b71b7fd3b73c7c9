"""Which role may list what, and graphs that an attacker drew: T3, T10, T12, T13."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from securesystemslib.formats import encode_canonical

from ota import files
from ota.documents.manifest import read_manifest
from ota.documents.names import code_target, device_target, floor_target, manifest_target, rollout_target
from ota.errors import NotInRepository, RolledBack, Untrusted
from ota.trust import floors
from ota.trust.roles import role_of
from tests.ota.simulator import Repository
from tests.ota.trust.device import MANIFEST, Device

CODE = code_target("det", "a" * 64)


def test_each_target_path_has_one_role() -> None:
    assert role_of(manifest_target("det", "person", 3)) == "models-det"
    assert role_of(floor_target("det")) == "models-det"
    assert role_of(CODE) == "engines"
    assert role_of(rollout_target("plant-a")) == role_of(device_target("d1")) == "rollout"
    assert role_of("system/orin/7.json") == "system"
    assert [role_of(path) for path in ("", "engines", "other/x", "/engines/x")] == [None] * 4


def _to_a_models_role(repository: Repository) -> None:
    repository.delegate("models-det", ["bundles/det/*", "engines/*/*"], terminating=True)


def _to_a_role_before_engines(repository: Repository) -> None:
    repository.delegate("aaa", ["*/*/*"])
    roles = repository.signed["targets"].delegations.roles
    roles |= {name: roles.pop(name) for name in [one for one in roles if one != "aaa"]}


def _listed_by_targets(repository: Repository) -> None:
    repository.add(CODE, b"evil", role="targets")


@pytest.mark.fault("T12", "T9")
@pytest.mark.parametrize("mistake", [_to_a_models_role, _to_a_role_before_engines, _listed_by_targets])
def test_a_mistaken_delegation_does_not_let_code_in(
    repository: Repository, device: Device, mistake: Callable[[Repository], None]
) -> None:
    """The device knows which role may list which path: overlapping patterns of the targets role are refused."""
    mistake(repository)
    repository.add(CODE, b"evil", role="models-det")
    repository.publish()

    with pytest.raises(Untrusted, match=r"may be listed by engines only, and the targets role lets .* list it"):
        device.run(repository).target(CODE)


@pytest.mark.fault("T12")
def test_a_terminating_role_ends_the_search(repository: Repository, device: Device) -> None:
    """models-det may delegate below itself; roles after it are not asked for its paths."""
    repository.delegate("det-team", ["bundles/det/*"], by="models-det")
    repository.add("bundles/det/team.1.json", b"{}", role="det-team")
    repository.add("bundles/det/late.1.json", b"{}", role="rollout")
    repository.publish()
    trust = device.run(repository)

    assert trust.document("bundles/det/team.1.json", 100) == b"{}"
    assert trust.target("bundles/det/late.1.json") is None
    assert trust.versions()["det-team"] == 2


@pytest.mark.fault("T12")
def test_delegations_in_a_circle_end(repository: Repository, device: Device) -> None:
    repository.delegate("det-a", ["bundles/det/*"], by="models-det")
    repository.delegate("det-b", ["bundles/det/*"], by="det-a")
    repository.delegate("models-det", ["bundles/det/*"], by="det-b")
    repository.publish()

    assert device.run(repository).target("bundles/det/nowhere.1.json") is None
    assert len([path for path in repository.fetched if "models-det" in path]) == 1


@pytest.mark.fault("T12")
def test_a_tree_of_delegations_has_a_limit(repository: Repository, device: Device) -> None:
    for number in range(50):
        repository.delegate(f"det-{number}", ["bundles/det/*"], by="models-det")
    repository.publish()

    assert device.run(repository).target("bundles/det/nowhere.1.json") is None
    assert len([path for path in repository.fetched if ".det-" in path]) < 40


@pytest.mark.fault("T12", "K3")
@pytest.mark.parametrize("role", ["x\u0001", "\u202eevil"])
def test_a_role_whose_name_cannot_be_stored_costs_no_floor(repository: Repository, device: Device, role: str) -> None:
    """The holder of a models key made both copies of the floors unreadable with it, and the next run had none."""
    device.run(repository).document(MANIFEST, 1000)
    known = device.floors().values()
    repository.delegate(role, ["bundles/det/*"], by="models-det")
    repository.publish()
    repository.files[f"metadata/2.{quote(role, '')}.json"] = repository.files.pop(f"metadata/2.{role}.json")

    trust = device.run(repository)
    with pytest.raises(Untrusted, match=r"role/.* has characters that no name has: revoke the key"):
        trust.target("bundles/det/other.1.json")
    assert trust.document(MANIFEST, 1000) == b'{"release": 1}'
    stored = device.floors()
    assert stored.warnings == []
    assert stored.values().keys() == known.keys()


@pytest.mark.fault("T12", "K3")
@pytest.mark.parametrize("limit", ["number", "bytes"])
def test_a_device_full_of_floors_accepts_new_roles_after_the_thief_is_revoked(
    repository: Repository, device: Device, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """The holder of a models key delegated to other roles until the device stored no further floor."""
    device.run(repository).document(MANIFEST, 1000)
    if limit == "number":
        monkeypatch.setattr(floors, "MOST_FLOORS", 160)
    else:
        monkeypatch.setattr(files, "MOST_DOCUMENT", 8 * 4000)
    own = repository.signed["models-det"].delegations.roles
    refusal = ""
    for number in range(200):
        repository.delegate(f"det-{number}", ["bundles/det/*"], by="models-det")
        repository.publish()
        trust = device.run(repository)
        try:
            trust.target("bundles/det/nowhere.1.json")
        except Untrusted as error:
            refusal = error.message
        del own[f"det-{number}"], repository.signed[f"det-{number}"]
        if refusal:
            break
    assert "gets no version floor, because this device has " in refusal

    repository.rotate("models-det", by="targets")
    repository.delegate("models-new", ["bundles/new/*"])
    new, fleet = manifest_target("new", "new", 1), rollout_target("plant-b")
    repository.add_document(new, {})
    repository.add_document(fleet, {})
    repository.add_key("timestamp")
    repository.publish_root()
    repository.publish()
    trust = device.run(repository)
    for name, path in {"counter/det": MANIFEST, "counter/new": new, "serial/plant-b": fleet}.items():
        trust.document(path, 1000)
        trust.raise_floor(name, path, 7)
    known = device.floors().values()
    assert {"role/models-new", "counter/det", "counter/new", "serial/plant-b", "role/det-0"} <= known.keys()
    assert known["role/models-det"] == repository.signed["models-det"].version


@pytest.mark.fault("T12")
def test_a_role_from_two_delegators_must_satisfy_each(repository: Repository, device: Device) -> None:
    """`engines` delegated again by models-det, with a key of the attacker: his file under that name does not verify."""
    attacker = repository.copy()
    attacker.delegate("models-det", ["bundles/det/*"], terminating=True)
    del attacker.signed["engines"]
    attacker.delegate("engines", ["bundles/det/*", "engines/*/*"], by="models-det")
    attacker.signed["engines"].version = 2
    attacker.signers["engines"] = attacker.signers["engines"][-3:]
    attacker.add(CODE, b"evil", role="engines")
    attacker.publish()

    with pytest.raises(Untrusted, match="engines was signed by 0/2 keys"):
        device.run(attacker).target(CODE)


@pytest.mark.fault("T12", "T9")
@pytest.mark.parametrize("evil_first", [False, True])
def test_a_models_key_and_the_file_server_do_not_replace_engines(
    repository: Repository, device: Device, evil_first: bool
) -> None:
    """The library keeps one metadata for each role name, not for each delegation, and would answer from the last one.

    models-det delegates `engines` to a key of the thief, and the server gives his file for the second request.
    """
    thief = repository.copy()
    thief.delegate("models-det", ["bundles/det/*"], terminating=True)
    del thief.signed["engines"]
    thief.delegate("engines", ["bundles/det/*"], by="models-det")
    thief.signed["engines"].version = repository.signed["engines"].version
    thief.signers["engines"] = thief.signers["engines"][-3:]
    thief.add(CODE, b"evil", role="engines")
    forged = thief.write("engines")
    repository.signed["models-det"] = thief.signed["models-det"]
    repository.publish("models-det")
    name = f"metadata/{repository.signed['engines'].version}.engines.json"
    honest = repository.files[name]
    trust = device.run(repository)

    def look_up(served: bytes, path: str) -> object:
        repository.files[name] = served
        return trust.target(path)

    calls = [(honest, CODE), (forged, floor_target("det")), (forged, CODE), (honest, CODE)]
    found = []
    for served, path in calls[1:] if evil_first else calls:
        try:
            found.append(look_up(served, path))
        except Untrusted:
            found.append(None)
    assert found == [None] * len(found)
    assert device.run(repository).target(CODE) is None


@pytest.mark.fault("T3")
def test_a_role_without_a_delegation_is_not_fetched(repository: Repository, device: Device) -> None:
    repository.delegate("extra", ["extra/*"])
    del repository.signed["targets"].delegations.roles["extra"]
    repository.publish()

    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'
    assert not [path for path in repository.fetched if "extra" in path]


@pytest.mark.fault("T3")
@pytest.mark.parametrize(
    "more",
    [{"dependencies": ["bundles/evil/evil.1.json"]}, {"files": [{"path": "x", "sha256": "0" * 64, "bytes": 1}]}],
)
def test_a_manifest_with_more_than_it_may_have(repository: Repository, device: Device, more: dict[str, object]) -> None:
    manifest = _manifest() | more
    repository.add_document(MANIFEST, manifest)
    repository.publish()
    found = device.run(repository).document(MANIFEST, 10_000)

    with pytest.raises(Untrusted, match=f"unknown member '{next(iter(more))}'"):
        read_manifest(found, "det", 1)


@pytest.mark.fault("T10")
@pytest.mark.parametrize(("bundle", "release"), [("other", 1), ("det", 2)])
def test_a_manifest_under_another_name(repository: Repository, device: Device, bundle: str, release: int) -> None:
    """Well signed, in its family, and still not what was asked for."""
    path = manifest_target("det", bundle, release)
    repository.add_document(path, _manifest())
    repository.publish()
    found = device.run(repository).document(path, 10_000)

    with pytest.raises(Untrusted, match="is that of det 1: the repository has it under a wrong name"):
        read_manifest(found, bundle, release)


@pytest.mark.fault("T10")
def test_the_file_of_another_target(repository: Repository, device: Device) -> None:
    """A file server gives the file of one manifest for another."""
    repository.add("bundles/det/other.1.json", b'{"release": 9}')
    repository.publish()
    one, other = sorted(path for path in repository.files if path.startswith("targets/bundles/det/"))
    repository.files[one], repository.files[other] = repository.files[other], repository.files[one]

    with pytest.raises(Untrusted, match="not the one that was signed"):
        device.run(repository).document(MANIFEST, 1000)


@pytest.mark.fault("T13")
@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "bundles/det/../../x.json",
        "bundles/det/%2e%2e%2fx.json",
        "/etc/passwd",
        "bundles/det/\u202ex.json",
        "bundles/det/" + "n" * 300 + ".json",
        "bundles/det/a\x00b.json",
        "",
    ],
)
def test_a_hostile_target_path_writes_only_inside_the_state_folder(
    repository: Repository, device: Device, path: str
) -> None:
    """Documents are cached under a hash of their path; no part of the path gets to the disk."""
    repository.add(path, b"{}", role="models-det" if path.startswith("bundles/") else "targets")
    repository.publish()
    trust = device.run(repository)
    if trust.target(path):
        trust.document(path, 100)

    outside = [one for one in device.metadata.parent.rglob("*") if device.metadata not in one.parents and one.is_file()]
    assert sorted(outside) == sorted(device.places)
    assert all(len(one.name) == 64 for one in (device.metadata / "targets").glob("*"))


@pytest.mark.fault("T13")
@pytest.mark.parametrize("role", ["../../evil", "a/b", "%2e%2e%2fevil", "..", "root_history/1.root"])
def test_a_hostile_role_name_writes_only_inside_the_state_folder(
    repository: Repository, device: Device, role: str
) -> None:
    repository.delegate(role, ["bundles/det/*"], by="models-det")
    repository.add("bundles/det/x.1.json", b"{}", role=role)
    repository.publish()
    repository.files[f"metadata/2.{quote(role, '')}.json"] = repository.files.pop(f"metadata/2.{role}.json")
    factory = device.root

    assert device.run(repository).document("bundles/det/x.1.json", 100) == b"{}"
    outside = [one for one in device.metadata.parent.rglob("*") if device.metadata not in one.parents and one.is_file()]
    assert sorted(outside) == sorted(device.places)
    assert (device.metadata / "root_history" / "1.root.json").read_bytes() == factory


@pytest.mark.fault("T13")
@pytest.mark.parametrize("role", ["root", "timestamp", "snapshot", "targets"])
def test_a_delegated_role_may_not_have_the_name_of_a_top_level_role(
    repository: Repository, device: Device, role: str
) -> None:
    repository.delegate("det-x", ["bundles/det/*"], by="models-det")
    delegated = json.loads(repository.sign(repository.signed["models-det"], []))["signed"]
    delegated["delegations"]["roles"][0]["name"] = role
    signed = _signed(repository, "models-det", delegated)
    repository.publish()
    repository.files["metadata/3.models-det.json"] = signed
    repository.signed["models-det"].version = 3

    with pytest.raises(Untrusted, match="not trusted"):
        device.run(repository).target(MANIFEST)
    assert device.run(repository).versions()[role] >= 1


def test_a_serial_does_not_go_back_until_its_keys_are_rotated(repository: Repository, device: Device) -> None:
    """The agent's own counters: a rollout's serial, a family's lowest release counter."""
    path = rollout_target("plant-a")
    repository.add_document(path, {"serial": 9})
    repository.publish()
    trust = device.run(repository)
    with pytest.raises(Untrusted, match="ask for the document first"):
        trust.raise_floor("serial/plant-a", path, 9)
    trust.document(path, 100)
    trust.raise_floor("serial/plant-a", path, 9)

    assert device.floors().floor("serial/plant-a") == 9
    with pytest.raises(RolledBack, match="serial/plant-a is 8, and this device has seen 9"):
        trust.raise_floor("serial/plant-a", path, 8)

    repository.rotate("rollout", by="targets")
    repository.publish()
    trust = device.run(repository)
    trust.document(path, 100)
    trust.raise_floor("serial/plant-a", path, 1)
    assert device.floors().floor("serial/plant-a") == 1


def test_a_target_without_sha256_is_refused(repository: Repository, device: Device) -> None:
    target = repository.signed["models-det"].targets[MANIFEST]
    target.hashes = {"sha512": "0" * 128}
    repository.publish()

    with pytest.raises(Untrusted, match="listed without a SHA-256"):
        device.run(repository).target(MANIFEST)
    with pytest.raises(NotInRepository):
        device.run(repository).document("rollout/none.json", 10)


def _manifest() -> dict[str, object]:
    return {
        "schema": 1,
        "bundle": "det",
        "family": "det",
        "release": 1,
        "release_counter": 1,
        "models": {"det": {"files": [{"path": "config.pbtxt", "sha256": "0" * 64, "bytes": 1}]}},
        "variants": [{"id": "onnx", "kind": "onnx", "priority": 1}],
    }


def _signed(repository: Repository, role: str, value: dict[str, object]) -> bytes:
    """Sign a role's content that tuf.api would not let be made."""
    value = value | {"version": 3}
    signer = repository.signers[role][0]
    data = encode_canonical(value)
    assert data is not None
    signature = signer.sign(data.encode())
    return json.dumps({"signatures": [signature.to_dict()], "signed": value}).encode()
