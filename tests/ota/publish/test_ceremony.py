"""Keys on other machines: files go there and back as on a USB stick; wrong and old files are refused."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tuf.api.metadata import Metadata, Root, TargetFile, Targets

from ota import files
from ota.documents.names import manifest_target
from ota.publish.description import describe
from ota.publish.keys import generate
from tests.ota.publish.publisher import Publisher, device, one_sentence

PEOPLE = ("alice", "bob", "carol", "dave", "eve")


@pytest.fixture
def team(publisher: Publisher) -> Publisher:
    """A publisher whose keys of root and targets are with five people; nothing is published yet."""
    flags: list[str] = []
    for person in PEOPLE:
        publisher.run("key", person, "--out", f"at-{person}", "--key-type", "p256" if person == "bob" else "ed25519")
        flags += ["--public-key", f"root=at-{person}/{person}.pub.json"]
    for person in PEOPLE[:3]:
        flags += ["--public-key", f"targets=at-{person}/{person}.pub.json"]
    publisher.init("--family", "det", *flags, preset="team")
    return publisher


def sign(team: Publisher, person: str, request: str = "request.json", *flags: object, status: int = 0) -> str:
    """Let a person sign on a machine of its own; the file with signatures."""
    stick = team.base / f"at-{person}" / "stick"
    stick.mkdir(exist_ok=True)
    shutil.copy(team.base / request, stick)
    key = team.base / f"at-{person}" / f"{person}.pem"
    team.run("sign", stick / request, "--key", key, *flags, "--yes", status=status)
    return str(stick / f"{Path(request).stem}.{person}.sig.json")


def ceremony(team: Publisher, *people: str) -> str:
    """Request, sign, and collect; what `collect` said."""
    team.do("request", "--out", "request.json")
    return team.do("collect", *(sign(team, person) for person in people))


def test_the_first_publication_takes_a_threshold_of_people(team: Publisher) -> None:
    assert "  root: 3 more of " in team.out
    assert not (team.repository / "metadata").exists()
    assert "has published nothing yet" in team.refused("refresh")
    said = ceremony(team, "alice", "dave")
    assert "root: 1 more of " in said
    assert "targets: 1 more of " in said
    said = team.do("collect", sign(team, "bob"))
    assert said.startswith("published")
    team.release(1)
    assert device(team, "dev", time.time()).target(manifest_target("det", "det", 1)) is not None
    assert "no change waits" in team.refused("collect")


def test_the_signer_sees_in_words_what_changes(team: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.run("key", "mallory", "--out", "at-mallory")
    team.do("rotate", "root", "--remove", "eve", "--add", "at-mallory/mallory.pub.json", "--threshold", 2)
    team.do("request", "--out", "request.json")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    team.run("sign", "request.json", "--key", "at-alice/alice.pem", status=1)
    assert "nothing was signed" in team.err
    words = team.out
    assert "root: from version 1 to version 2" in words
    assert "root gets the key mallory" in words
    assert "root LOSES the key eve" in words
    assert "root needs 2 of 5 keys (was 3)" in words
    assert not list(team.base.glob("*.sig.json"))


def test_the_words_come_from_the_metadata_and_not_from_the_publisher(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("family", "det2")
    team.do("request", "--out", "request.json")
    request = json.loads((team.base / "request.json").read_text())
    request["names"] = dict.fromkeys(request["names"], "\x1b[2Jharmless")
    (team.base / "request.json").write_text(json.dumps(request))
    sign(team, "alice")
    assert "models-det2 may sign bundles/det2/*" in team.out
    assert "\x1b" not in team.out


def changed(text: str, path: tuple[str | int, ...], value: object) -> str:
    """Return a request with one member replaced."""
    request = json.loads(text)
    place: Any = request
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return json.dumps(request)


HIDDEN: list[tuple[tuple[str | int, ...], object, str]] = [
    (("consistent_snapshot",), False, "consistent_snapshot becomes false"),
    (("x-note",), "hello", 'x-note becomes "hello"'),
    (("delegations", "roles", 0, "terminating"), False, "terminating becomes false"),
    (("delegations", "roles", 0, "paths"), ["*/*"], "may sign */*"),
    (("delegations", "roles", 0, "threshold"), 9, "needs 9 of"),
    (("delegations", "roles", 0, "keyids"), [], "LOSES the key"),
    (("targets", "bundles/det/x.json"), {"length": 7, "hashes": {"sha256": "ab" * 32}}, "bundles/det/x.json is listed"),
]


@pytest.mark.parametrize(("path", "value", "words"), HIDDEN)
def test_nothing_that_changes_is_hidden_from_the_signer(
    team: Publisher, path: tuple[str | int, ...], value: object, words: str
) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("renew", "root", "targets")
    team.do("request", "--out", "request.json")
    assert team.out.count("  nothing else changes\n") == 2
    role = "root" if path[0] in ("consistent_snapshot", "x-note") else "targets"
    text = (team.base / "request.json").read_text()
    (team.base / "request.json").write_text(changed(text, ("change", role, "signed", *path), value))
    sign(team, "alice")
    assert words in team.out


def test_a_key_that_hides_behind_the_id_of_another(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("renew", "root")
    team.do("request", "--out", "request.json")
    text = (team.base / "request.json").read_text()
    keyid = next(iter(json.loads(text)["change"]["root"]["signed"]["keys"]))
    for place in (("change", "root"), ("roots", 0)):
        evil = changed(text, (*place, "signed", "keys", keyid, "keyval"), {"public": "ab" * 32})
        (team.base / "request.json").write_text(evil)
        sign(team, "alice", status=4)
        assert "do not sign" in one_sentence(team.err)


def test_the_signer_is_reminded_of_other_signatures(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("family", "seg")
    team.do("request", "--out", "request.json")
    sign(team, "alice")
    assert "NOTE" not in team.out
    sign(team, "alice")
    assert "NOTE" not in team.out
    old = (team.base / "request.json").read_text()
    team.do("request", "--discard")
    team.do("family", "pose")
    ceremony(team, "alice", "bob")
    team.do("request", status=2)
    sign(team, "carol", "request.json")
    (team.base / "request.json").write_text(old)
    sign(team, "alice", status=0)
    assert "NOTE: this key has signed another version 2 of targets before" in team.out
    team.do("family", "face")
    ceremony(team, "alice", "bob")
    (team.base / "request.json").write_text(old)
    sign(team, "alice")
    assert "NOTE: this key has signed or seen targets 3 before, which is later" in team.out


def hide_thief(team: Publisher) -> str:
    """Put a thief's key into the published root of a request and into its change, so that they do not differ by it."""
    team.do("renew", "root")
    team.do("request", "--out", "request.json")
    request = json.loads((team.base / "request.json").read_text())
    thief = generate("ed25519")
    for made in (request["roots"][-1], request["change"]["root"]):
        metadata = Metadata[Root].from_dict(json.loads(json.dumps(made)))
        for role in metadata.signed.roles.values():
            role.threshold = 1
        for name in metadata.signed.roles:
            metadata.signed.add_key(thief.public_key, name)
        metadata.signatures.clear()
        metadata.sign(thief)
        made.update(metadata.to_dict())
    (team.base / "request.json").write_text(json.dumps(request))
    return str(thief.public_key.keyid[:16])


def test_a_made_up_published_root_is_refused(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    hide_thief(team)
    file = sign(team, "alice", status=4)
    assert "does not go on from root 1, which this key knows" in one_sentence(team.err)
    assert json.loads(Path(file).read_text())["signatures"][0]["version"] == 1


def test_roots_are_walked_from_one_that_the_key_knows(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("renew", "root")
    ceremony(team, "alice", "bob", "dave")
    team.do("renew", "root")
    team.do("request", "--out", "request.json")
    sign(team, "carol")  # has signed root 1 only
    assert "NOTE" not in team.out
    assert "nothing else changes" in team.out
    request = json.loads((team.base / "request.json").read_text())
    del request["roots"][0]
    (team.base / "request.json").write_text(json.dumps(request))
    sign(team, "carol")  # remembers root 2, which was published then
    assert "NOTE" not in team.out


def test_a_key_without_memory_sees_everything_or_trusts_a_root(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("renew", "root")
    team.do("request", "--out", "request.json")
    sign(team, "eve", "request.json", "--root", team.dir / "root.json")
    assert "nothing else changes" in team.out
    sign(team, "dave")
    assert "NOTE: this key does not know the published root 1" in team.out
    assert "root: version 2" in team.out
    assert "root gets the key alice" in team.out
    assert "root needs 3 of 5 keys" in team.out
    sign(team, "dave")
    assert "NOTE" not in team.out, "the published root is in the memory now"
    (team.base / "at-dave" / "dave.signed.json").unlink()
    team.do("request", "--discard")
    thief = hide_thief(team)
    sign(team, "dave")
    assert f"root gets the key without a name ({thief})" in team.out
    (team.base / "at-dave" / "dave.signed.json").unlink()
    sign(team, "dave", "request.json", "--root", team.dir / "root.json", status=4)
    assert "does not go on from root 1" in one_sentence(team.err)


def test_a_root_that_a_key_remembers_was_shown_in_full(team: Publisher) -> None:
    """A made-up root beside a harmless change of targets would be trusted with the next request."""
    ceremony(team, "alice", "bob", "carol")
    (team.base / "at-alice" / "alice.signed.json").unlink()
    thief = hide_thief(team)
    request = json.loads((team.base / "request.json").read_text())
    del request["change"]["root"]
    team.do("request", "--discard")
    team.do("family", "seg")
    team.do("request", "--out", "request.json")
    harmless = json.loads((team.base / "request.json").read_text())
    (team.base / "request.json").write_text(json.dumps({**harmless, "roots": request["roots"]}))
    sign(team, "alice")
    assert "the published root: version 1, valid until " in team.out
    assert f"root gets the key without a name ({thief})" in team.out


def test_a_difference_from_other_targets_than_the_key_has_signed_is_no_difference(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("family", "seg")
    team.do("request", "--out", "request.json")
    sign(team, "alice")
    team.do("request", "--discard")
    team.do("family", "pose")
    ceremony(team, "bob", "carol")
    team.do("renew", "targets")
    team.do("request", "--out", "request.json")
    sign(team, "alice")
    assert "NOTE: the published targets 2 is not the one that this key has signed" in team.out
    assert "models-pose may sign bundles/pose/*" in team.out


def test_a_request_that_was_never_published_is_not_signed(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("family", "seg")
    team.do("request", "--out", "request.json")
    text = (team.base / "request.json").read_text()

    def refused(path: tuple[str | int, ...], value: object) -> str:
        (team.base / "request.json").write_text(changed(text, path, value))
        sign(team, "alice", status=4)
        return one_sentence(team.err)

    assert "do not sign" in refused(("published", "targets", "signatures"), [])
    assert "do not sign" in refused(("published", "nothing"), {**json.loads(text)["published"]["targets"]})
    assert "do not sign" in refused(("roots", 0, "signed", "version"), 9)
    assert "from version 1 to 9" in refused(("change", "targets", "signed", "version"), 9)
    assert "is damaged" in refused(("change", "targets"), {"signed": 1})
    (team.base / "request.json").write_text("{")
    sign(team, "alice", status=4)
    assert "is not JSON" in one_sentence(team.err)


def test_wrong_and_old_files_are_refused(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("family", "seg")
    team.do("request", "--out", "request.json")
    old = sign(team, "alice")
    assert "no 'edge-ota signatures': it is 'edge-ota signing request'" in team.refused("collect", "request.json")
    assert "does not exist" in team.refused("collect", "nothing.json")
    sign(team, "dave", status=2)
    assert "may sign nothing here" in one_sentence(team.err)
    team.do("request", "--discard")
    team.do("family", "pose")
    assert "of another change, perhaps an older one" in team.refused("collect", old)
    team.do("request", "--out", "request.json")
    good = Path(sign(team, "bob"))
    broken = json.loads(good.read_text())
    broken["signatures"][0]["sig"] = "00" * 64
    (team.base / "broken.json").write_text(json.dumps(broken))
    assert "wrong signature for targets" in team.refused("collect", "broken.json", status=4)
    assert "1 more" in team.do("collect", good)
    assert "1 more" in team.do("collect", good, good)
    assert team.do("collect", sign(team, "carol")).startswith("published")


def test_releases_go_on_while_a_change_waits(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("rotate", "models-det")
    assert "waits for signatures" in team.out
    team.release(1)
    assert "a change of targets waits" in team.refused("family", "pose", status=1)
    assert "a change of targets waits" in team.refused("renew", "root", status=1)
    assert ceremony(team, "alice", "carol").startswith("published")
    team.release(2)
    team.do("verify")
    trust = device(team, "dev", time.time())
    assert trust.target(manifest_target("det", "det", 1)) is not None
    assert trust.target(manifest_target("det", "det", 2)) is not None


class PowerCut(BaseException):
    """Ends a publication."""


def test_a_collection_that_is_interrupted_leaves_no_waiting_change(
    team: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ceremony(team, "alice", "bob", "carol")
    team.do("rotate", "models-det")

    def cut(operation: files.DiskOperation) -> None:
        if operation.kind == "unlink" and operation.path.endswith("pending.json"):
            raise PowerCut

    with monkeypatch.context() as patched:
        patched.setattr(files, "point", cut)
        with pytest.raises(PowerCut):
            ceremony(team, "alice", "bob")
    assert (team.dir / "pending.json").exists()
    team.do("rotate", "engines")
    assert "note: the change of targets that waited is published; the command was interrupted\n" in team.err
    assert "targets: 2 more of " in team.out
    assert ceremony(team, "alice", "bob").startswith("published")
    team.do("verify")


def pass_days(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Set the clock forward."""
    now = time.time() + days * 86400
    monkeypatch.setattr("time.time", lambda: now)


def test_a_change_that_expired_while_it_waited_is_made_again(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.run("key", "alice", "--out", "at-alice")
    publisher.init("--family", "det")
    publisher.do("rotate", "rollout", "--add", "at-alice/alice.pub.json", "--remove", "rollout-1")
    publisher.do("request", "--out", "request.json")
    signed = sign(publisher, "alice", "request.json", "--root", publisher.dir / "root.json")
    waiting = (publisher.dir / "pending.json").read_bytes()
    pass_days(monkeypatch, 15)
    publisher.do("rollout show")
    assert (publisher.dir / "pending.json").read_bytes() == waiting
    assert publisher.refused("collect", signed, status=4).startswith("rollout expired on ")
    expired = (publisher.dir / "pending.json").read_bytes()
    assert "rollout" in publisher.do("refresh")
    publisher.do("renew", "targets")
    assert (publisher.dir / "pending.json").read_bytes() == expired
    publisher.do("rotate", "rollout", "--add", "at-alice/alice.pub.json", "--remove", "rollout-1")
    assert "pending.expired.json is a change that expired while it waited" in publisher.err
    assert (publisher.dir / "pending.expired.json").read_bytes() == expired
    assert ceremony(publisher, "alice").startswith("published")
    publisher.do("verify")


def test_a_clock_that_was_ahead_costs_no_signature(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher.run("key", "alice", "--out", "at-alice")
    publisher.init("--family", "det")
    publisher.do("rotate", "rollout", "--add", "at-alice/alice.pub.json", "--remove", "rollout-1")
    publisher.do("request", "--out", "request.json")
    signed = sign(publisher, "alice", "request.json", "--root", publisher.dir / "root.json")
    with monkeypatch.context() as ahead:
        pass_days(ahead, 4000)
        publisher.do("rollout show")
        said = publisher.refused("collect", signed, status=4)
        assert "before every key had signed: correct this machine's clock, or make the change again" in said
    assert publisher.do("collect").startswith("published")
    publisher.do("verify")


def test_a_first_change_is_not_dropped_and_begins_again_if_it_expired(
    team: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "begin again with 'edge-ota publish init' in a new directory" in team.refused("request", "--discard")
    team.do("request", "--out", "request.json")
    signed = [sign(team, person) for person in ("alice", "bob", "carol")]
    pass_days(monkeypatch, 181)
    said = team.refused("collect", *signed, status=4)
    assert said.startswith("targets expired on ")
    assert said.endswith("this machine's clock, or begin with 'edge-ota publish init' in a new directory again")
    assert not (team.repository / "metadata").exists()


def test_a_damaged_change_is_dropped(published: Publisher) -> None:
    for text in ("{", '{"roles": [], "documents": {}, "resign": []}'):
        (published.dir / "pending.json").write_text(text)
        assert "drop it with 'request --discard'" in published.refused("refresh", status=4)
        published.do("request", "--discard")
        published.do("refresh")


def test_every_offline_role_rotates_through_files(team: Publisher) -> None:
    ceremony(team, "alice", "bob", "carol")
    factory = (team.dir / "root.json").read_bytes()
    device(team, "sleeper", time.time())
    team.run("key", "frank", "--out", "at-frank")
    team.do("rotate", "root", "--remove", "eve", "--add", "at-frank/frank.pub.json")
    assert ceremony(team, "alice", "bob", "dave").startswith("published")
    assert "(alice, bob, carol)" in team.refused("rotate", "targets", "engines", "rollout", "models-det")
    flags = ("--remove", "targets=alice", "--add", "targets=at-frank/frank.pub.json")
    team.do("rotate", "targets", "engines", "rollout", "models-det", *flags)
    assert "published" in ceremony(team, "alice", "bob", "carol", "frank")
    team.do("rotate", "timestamp", "snapshot", "models-det", "rollout")
    assert "published" in ceremony(team, "frank", "bob", "carol")
    team.do("renew", "root", "targets")
    assert "published" in ceremony(team, "frank", "bob", "carol")
    team.do("rotate", "engines")
    assert "published" in ceremony(team, "frank", "bob")
    team.release(1)
    assert device(team, "sleeper", time.time(), factory).target(manifest_target("det", "det", 1)) is not None
    team.do("verify")


def test_the_keys_of_a_family_may_be_elsewhere_too(publisher: Publisher) -> None:
    publisher.run("key", "alice", "--out", "at-alice")
    publisher.init("--family", "det", "--public-key", "models-det=at-alice/alice.pub.json")
    ceremony(publisher, "alice")
    publisher.release(1)
    assert "models-det: 1 more of alice" in publisher.out
    assert "no release of det is published" in publisher.refused("rollout start", "a", "det", 1, "lab=1")
    publisher.do("request", "--out", "request.json")
    assert "bundles/det/det.1.json is listed" in publisher.out
    publisher.do("collect", sign(publisher, "alice"))
    assert device(publisher, "dev", time.time()).document(manifest_target("det", "det", 1), 10**6)
    publisher.do("rollout start", "a", "det", 1, "lab=1")


def test_the_keys_of_engines_may_be_elsewhere_too(publisher: Publisher) -> None:
    publisher.run("key", "alice", "--out", "at-alice")
    publisher.init("--family", "det", "--public-key", "engines=at-alice/alice.pub.json")
    assert "engines: 1 more of alice" in publisher.out
    assert ceremony(publisher, "alice").startswith("published")
    publisher.model("py", {"config.pbtxt": b'backend: "python"', "1/model.py": b"import os"})
    publisher.run("bundle", "py", "--release", 1, "--model", "py", "--family", "det")
    assert "give this command again" in publisher.do("release", "py.1", "--engines")
    publisher.do("request", "--out", "request.json")
    assert "engines/det/" in publisher.out
    assert publisher.do("collect", sign(publisher, "alice")).startswith("published")
    publisher.do("release", "py.1")
    assert device(publisher, "dev", time.time()).target(manifest_target("det", "py", 1)) is not None


@pytest.fixture
def apart(publisher: Publisher) -> Publisher:
    """A publisher whose keys of rollout and of the family are with alice, and det 1 in the ring lab of two devices."""
    publisher.run("key", "alice", "--out", "at-alice")
    key = "at-alice/alice.pub.json"
    publisher.init("--family", "det", "--public-key", f"rollout={key}", "--public-key", f"models-det={key}")
    ceremony(publisher, "alice")
    publisher.release(1)
    ceremony(publisher, "alice")
    (publisher.base / "devices.csv").write_text("device,fleet,ring\ndev-1,a,lab\ndev-2,a,prod\n")
    publisher.do("device import", "devices.csv")
    ceremony(publisher, "alice")
    publisher.do("rollout start", "a", "det", 1, "lab=100")
    ceremony(publisher, "alice")
    return publisher


def test_the_signer_sees_what_the_documents_say(apart: Publisher) -> None:
    apart.release(2)
    ceremony(apart, "alice")
    manifest = hashlib.sha256((apart.base / "det.2/manifest.json").read_bytes()).hexdigest()
    assert apart.run("sign", "request.json", "--key", "at-alice/alice.pem", "--yes").splitlines()[1:-1] == [
        "  bundles/det/det.2.json is listed:",
        "    release: det 2, counter 2, of the family det",
        "    model det: 2 files, 64 bytes: 2/model.onnx, config.pbtxt",
        "    variant default: onnx, priority 100",
        f"    SHA-256 of manifest.json: {manifest}",
    ]
    apart.do("rollout start", "a", "det", 2, "lab=100", "prod=100", "--report-url", "http://evil/" + "x" * 300)
    ceremony(apart, "alice")
    assert "  rollout/a.json has other content:\n    serial: 2 (was 1)\n" in apart.run(
        "sign", "request.json", "--key", "at-alice/alice.pem", "--yes"
    )
    for words in (
        "    devices report to: http://evil/" + "x" * 300 + " (was none)\n",
        "    det: release: 2 (was 1)\n",
        "    det: rings: lab 100 %, prod 100 % (was lab 100 %)\n",
    ):
        assert words in apart.out
    assert "family" not in apart.out
    assert "halted" not in apart.out
    apart.do("rollout deny", "a", "det", 1, "--yes")
    ceremony(apart, "alice")
    apart.do("rollout pin", "a", "det", "dev-1", 2)
    apart.do("request", "--out", "request.json")
    assert "    det: pinned: dev-1 to 2 (was none)\n" in apart.out
    ceremony(apart, "alice")
    apart.do("floor", "det", 2)
    assert "bundles/det/floor.json is listed:\n    lowest release counter of det: 2\n" in apart.do("request")


def test_devices_with_the_same_difference_are_named_together(apart: Publisher) -> None:
    """Each with its key: one wrong key among a thousand devices is a device in other hands."""
    rows = [f"new-{number:03},a,prod,{number:064x}" for number in range(20)]
    (apart.base / "devices.csv").write_text("device,fleet,ring,fingerprint\n" + "\n".join([*rows, "other,b,lab,"]))
    apart.do("device import", "devices.csv")
    lines = apart.do("request").splitlines()[1:-1]
    assert lines == [
        "  each of 20 devices is listed: fleet: a; ring: prod",
        *(f"    new-{number:03}; key: {number:064x}" for number in range(20)),
        "  the device other is listed: fleet: b; ring: lab",
    ]
    ceremony(apart, "alice")
    apart.do("device add", "new-001", "--fleet", "a", "--ring", "lab", "--label", "site=hall-3", "--change")
    assert (
        "\n  the device new-001 has other content: ring: lab (was prod); labels: site=hall-3 (was none)\n"
        in apart.do("request")
    )
    ceremony(apart, "alice")
    rows = [f"new-{number:03},a,store,{number:064x}" for number in range(11)]
    (apart.base / "devices.csv").write_text(
        "\n".join(["device,fleet,ring,fingerprint", *rows, f"other,b,lab,{2**128:064x}"])
    )
    apart.do("device import", "devices.csv", "--change")
    assert apart.do("request").splitlines()[1:-1] == [
        "  each of 10 devices has other content: ring: store (was prod)",
        f"    {', '.join(f'new-{number:03}' for number in range(11) if number != 1)}",
        "  the device new-001 has other content: ring: store (was lab)",
        f"  the device other has other content: key: {2**128:064x} (was none)",
    ]
    ceremony(apart, "alice")
    (apart.base / "devices.csv").write_text(f"device,fleet,ring,fingerprint\nother,b,lab,{2**129:064x}")
    apart.do("device import", "devices.csv", "--change")
    assert f"key: {2**129:064x} (was {2**128:064x})" in apart.do("request"), "the first 16 digits are the same"


def test_documents_that_are_none_of_the_metadata_are_refused(apart: Publisher) -> None:
    apart.do("rollout halt", "a", "det")
    apart.do("request", "--out", "request.json")
    assert "    det: halted: yes (was none)\n" in apart.out
    text = (apart.base / "request.json").read_text()
    assert '\\"paused\\":true' in text
    (apart.base / "request.json").write_text(text.replace('\\"paused\\":true', '\\"paused\\":false'))
    sign(apart, "alice", status=4)
    assert "has a document with other bytes than its SHA-256; do not sign" in one_sentence(apart.err)


def test_a_request_without_documents_says_that_it_shows_no_content(apart: Publisher) -> None:
    """An older publisher wrote it, or the key has no memory, and sees all that is listed."""
    apart.do("rollout halt", "a", "det")
    apart.do("request", "--out", "request.json")
    request = json.loads((apart.base / "request.json").read_text())
    (apart.base / "at-alice/alice.signed.json").unlink()
    sign(apart, "alice")
    assert "  rollout/a.json is listed:\n    serial: 2\n" in apart.out
    assert "  NOT SHOWN is the content of 2 of these documents" in apart.out
    del request["documents"]
    (apart.base / "request.json").write_text(json.dumps(request))
    sign(apart, "alice")
    assert "  rollout/a.json has other content, " in apart.out
    assert "  NOT SHOWN is the content of 1 of these documents" in apart.out
    assert "if the publisher's machine has an older edge-ota: update that, and write the request again" in apart.out


def test_a_request_for_a_change_that_expired_is_refused(apart: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    apart.do("rollout halt", "a", "det")
    pass_days(monkeypatch, 15)
    assert "before every key had signed: correct this machine's clock, or make the change again" in apart.refused(
        "request", "--out", "late.json", status=4
    )
    assert not (apart.base / "late.json").exists()
    apart.do("rollout halt", "a", "det")
    assert ceremony(apart, "alice").startswith("published")


def test_a_description_hides_no_document() -> None:
    """Of a rollout that devices would refuse, of floors that sink to nothing, and of bytes that say the same."""

    def targets(**documents: bytes) -> Targets:
        paths = {"floor": "bundles/det/floor.json", "a": "rollout/a.json"}
        known.update((hashlib.sha256(data).hexdigest(), data) for data in documents.values())
        return Targets(
            targets={
                paths[name]: TargetFile.from_data(paths[name], data, ["sha256"]) for name, data in documents.items()
            }
        )

    known: dict[str, bytes] = {}
    before = targets(floor=b'{"schema":1,"floors":{"det":2}}', a=b'{"schema":1,"fleet":"a","serial":1,"models":{}}')
    after = targets(floor=b'{"schema":1,"floors":{}}', a=b'{"schema":1,"fleet":"a","serial":1,"models":{},"x-more":1}')
    assert describe("r", before, after, {}, known)[1:] == [
        "  bundles/det/floor.json has other content:",
        "    lowest release counter of det: none (was 2)",
        f"  rollout/a.json has other content, 58 bytes, sha256 {list(known)[-1]} (it says the same)",
    ]
    after = targets(floor=b'{"schema":1,"floors":{}}', a=b'{"schema":1,"fleet":"b","serial":1,"models":{}}')
    assert (
        "    NOT READ BY THIS EDGE-OTA, nor by devices with its version: the rollout document of a is that of b: "
        in describe("r", before, after, {}, known)[4]
    )
    assert describe("r", before, after, {}, dict(list(known.items())[:2]))[-1].startswith(
        "  NOT SHOWN is the content of 2 "
    )
    none = b'{"schema":1,"floors":{}}'
    for published in (None, before):  # a request may leave out the published document
        told = describe("r", published, targets(floor=none), {}, {hashlib.sha256(none).hexdigest(): none})
        assert told[1].endswith(" (it names nothing)")
