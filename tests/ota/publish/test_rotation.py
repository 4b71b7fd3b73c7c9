"""Keys of every role change, as files and on a token, and a device that slept meanwhile goes on."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from ota.documents.names import manifest_target
from ota.errors import Untrusted
from tests.ota.conftest import PIN
from tests.ota.publish.publisher import UNKNOWN_KEYS, Publisher, device, one_sentence

ROLES = ("timestamp", "snapshot", "targets", "root", "models-det", "engines", "rollout")


def sees(publisher: Publisher, name: str, release: int, root: bytes | None = None) -> None:
    """Refresh a device, and see that it reads a release."""
    trust = device(publisher, name, time.time(), root)
    assert trust.document(manifest_target("det", "det", release), 10**6)


def test_a_device_that_slept_through_five_roots_and_every_rotation(published: Publisher) -> None:
    factory = (published.dir / "root.json").read_bytes()
    sees(published, "sleeper", 1)
    for role in ROLES[:4]:
        published.do("rotate", role)
    published.do("rotate", *ROLES[4:], "timestamp")
    published.do("rotate", "root")
    assert (published.repository / "metadata/6.root.json").exists()
    published.release(2)
    sees(published, "sleeper", 2, factory)
    sees(published, "new", 2)
    sees(published, "new-with-the-factory's-root", 2, factory)
    published.do("verify")


@pytest.mark.parametrize("role", ROLES)
def test_old_keys_sign_nothing_that_a_device_takes(published: Publisher, role: str) -> None:
    sees(published, "dev", 1)
    published.do("rotate", role)
    sees(published, "dev", 1)
    state = (published.dir / "publish.json").read_text()
    for old in (published.dir / "keys").glob(f"{role}-1.pem"):
        old.unlink()
    assert f"{role}-1" in state
    for one in ("refresh", "rollout start a det 1 x=1", f"renew {role}", "release"):
        if one == "release":
            published.release(2)
        else:
            first = "rollout start" if one.startswith("rollout") else one.split()[0]
            published.do(first, *one.removeprefix(first).split())
    sees(published, "dev", 2)
    published.do("verify")


def test_keys_come_and_go_one_by_one(published: Publisher) -> None:
    published.run("key", "alice")
    published.do("rotate", "rollout", "--add", "alice.pub.json")
    assert "has no key 'bob'" in published.refused("rotate", "rollout", "--remove", "bob")
    assert "3 must sign" in published.refused("rotate", "rollout", "--threshold", 3)
    published.do("rotate", "rollout", "--threshold", 2)
    assert "rollout: 1 more of alice" in published.out
    assert "waits for signatures already" in published.refused("renew", "targets", status=1)
    published.do("request", "--discard")
    published.do("rotate", "rollout", "--new", 2, "--remove", "rollout-1")
    published.do("rotate", "rollout", "--remove", "alice")
    assert "would have 0 keys" in published.refused(
        "rotate", "rollout", "--remove", "rollout-2", "--remove", "rollout-3"
    )
    published.do("device add", "dev", "--fleet", "a", "--ring", "lab")
    assert published.out.startswith("published")
    assert "no role models-seg" in published.refused("rotate", "models-seg")
    assert "private key" in published.refused("rotate", "rollout", "--add", "alice.pem")


def test_keys_of_other_machines_are_replaced_by_name_only(publisher: Publisher) -> None:
    """Without flags, `rotate` makes as many key files here, and this machine alone could sign from then on."""
    flags: list[str] = []
    for name in ("ann", "ben", "cem", "dot"):
        publisher.run("key", name)
        flags += ["--public-key", f"engines={name}.pub.json"] if name in ("ann", "ben") else []

    def collect(person: str) -> None:
        publisher.do("request", "--out", "request.json")
        publisher.run("sign", "request.json", "--key", f"{person}.pem", "--yes")
        publisher.do("collect", f"request.{person}.sig.json")

    publisher.init("--family", "det", *flags)
    collect("ann")
    said = publisher.refused("rotate", "engines", "rollout")
    assert said.startswith("engines has keys that are not files on this machine (ann, ben), ")
    assert "--remove engines=KEY with --add engines=FILE" in said
    assert not list(publisher.dir.glob("keys/*-2.pem"))
    both = ("--remove", "engines=ann", "--remove", "engines=ben", "--add", "engines=dot.pub.json")
    publisher.do("rotate", "engines", "rollout", "timestamp", *both, "--add", "engines=cem.pub.json")
    assert "  engines: 1 more of " in publisher.out, "one change, so one ceremony"
    collect("dot")
    publisher.do("rotate", "targets", "rollout", "--threshold", "targets=2", "--new", "targets=1")
    assert sorted(path.name for path in publisher.dir.glob("keys/*-[23].pem")) == [
        "rollout-2.pem",
        "rollout-3.pem",
        "targets-2.pem",
        "timestamp-2.pem",
    ]
    publisher.do("rotate", "engines", "--remove", "dot", "--remove", "cem", "--new", "1")
    publisher.do("verify")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--new", 1), "--new 1 names no role: write --new ROLE=1, because several roles are given"),
        (("--add", "x.pub.json"), "write --add ROLE=x.pub.json"),
        (("--add", "root=x.pub.json"), "write --add ROLE=root=x.pub.json"),
        (("--new", "engines=many"), "--new engines=many: expected a number"),
        (("--new", "engines=-1"), "--new engines=-1: expected a number"),
        (("--pkcs11", "library.so"), "--pkcs11 is for one role: give one"),
    ],
)
def test_flags_of_several_roles_name_theirs(published: Publisher, flags: tuple[object, ...], sentence: str) -> None:
    assert sentence in published.refused("rotate", "rollout", "engines", *flags)
    assert not list(published.dir.glob("keys/*-2.pem"))


def test_a_name_that_is_given_twice_counts_once(published: Publisher) -> None:
    assert published.do("rotate", "models-det", "models-det") == "published: new keys of models-det\n"
    assert published.do("renew", "root", "root") == "published: root signed again\n"
    published.do("rotate", "models-det", "--new", 1, "--remove", "models-det-2", "--remove", "models-det-2")
    assert sorted(path.name for path in (published.dir / "keys").glob("models-det-*")) == [
        f"models-det-{number}.pem" for number in (1, 2, 3)
    ]
    published.release(2)
    published.do("verify")


def test_a_role_gets_given_and_new_keys_at_once(published: Publisher) -> None:
    published.run("key", "alice")
    published.do("rotate", "rollout", "--add", "alice.pub.json", "--new", 1, "--remove", "rollout-1", "--threshold", 2)
    assert published.out.endswith("next: 'edge-ota publish request', then 'sign' where the keys are, then 'collect'\n")
    published.do("request", "--out", "request.json")
    for words in ("rollout gets the key alice", "rollout gets the key rollout-2", "rollout needs 2 of 2 keys"):
        assert words in published.out


@pytest.mark.parametrize("text", [*UNKNOWN_KEYS.values(), "-----BEGIN PUBLIC KEY-----\n"])
def test_a_key_of_an_unknown_kind_is_refused(published: Publisher, text: str) -> None:
    (published.base / "other.pem").write_text(text)
    assert "other.pem is not a public key of a known kind: " in published.refused(
        "rotate", "engines", "--add", "other.pem", status=4
    )


@pytest.mark.parametrize(
    ("command", "sentence", "status"),
    [
        (("family", "det"), "already exists", 2),
        (("family", "../x"), "expected", 2),
        (("family", "seg"), "waits for signatures already", 1),
        (("role", "system", "--preset", "small"), "waits for signatures already", 1),
        (("rotate", "engines", "nothing"), "no role nothing", 2),
        (("rotate", "engines"), "waits for signatures already", 1),
        (("rotate", "timestamp", "--new", 1, "--threshold", 3), "would have 2 keys, and 3 must sign", 2),
    ],
)
def test_a_command_that_is_refused_makes_no_keys(
    published: Publisher, command: tuple[object, ...], sentence: str, status: int
) -> None:
    if "waits" in sentence:
        published.run("key", "alice")
        published.do("rotate", "targets", "--add", "alice.pub.json", "--threshold", 2)
        assert "targets: 1 more of alice" in published.out
    before = {path: path.read_bytes() for path in (*published.dir.glob("keys/*"), published.dir / "publish.json")}
    assert sentence in published.refused(*command, status=status)
    assert before == {
        path: path.read_bytes() for path in (*published.dir.glob("keys/*"), published.dir / "publish.json")
    }


def test_new_keys_that_must_wait_too_are_not_made(published: Publisher) -> None:
    """The keys of root are here, those of rollout are not, and there is room for one waiting change."""
    published.run("key", "alice")
    published.do("rotate", "rollout", "--add", "alice.pub.json", "--threshold", 2)
    ceremony = [("request", "--out", "request.json"), ("collect", "request.alice.sig.json")]
    published.do(*ceremony[0])
    published.run("sign", "request.json", "--key", "alice.pem", "--yes")
    published.do(*ceremony[1])
    published.do("rollout start", "a", "det", 1, "lab=100")
    published.run("key", "bob")
    before = {path: path.read_bytes() for path in (*published.dir.glob("keys/*"), published.dir / "publish.json")}
    rotate = ("rotate", "targets", "--remove", "targets-1", "--add", "bob.pub.json", "--new", 1, "--threshold", 2)
    assert "a change of rollout waits for signatures already" in published.refused(*rotate, status=1)
    assert before == {
        path: path.read_bytes() for path in (*published.dir.glob("keys/*"), published.dir / "publish.json")
    }
    assert published.do("rotate", "engines").startswith("published")
    published.do("request", "--discard")
    assert "targets: 1 more of bob" in published.do(*rotate)


def test_a_new_family_has_separate_keys(published: Publisher) -> None:
    published.model("seg", {"config.pbtxt": b"", "1/model.onnx": b"s"})
    published.run("bundle", "seg", "--release", 1, "--model", "seg")
    assert "of the family seg, and this repository has det: " in published.refused("release", "seg.1")
    published.do("family", "seg")
    assert "already" in published.refused("family", "seg")
    published.do("release", "seg.1")
    assert device(published, "dev", time.time()).target(manifest_target("seg", "seg", 1)) is not None


def test_the_keys_of_a_new_role_get_names_that_are_free(publisher: Publisher) -> None:
    """A change that was dropped leaves its keys."""
    publisher.run("key", "alice")
    publisher.init("--family", "det", "--public-key", "targets=alice.pub.json")
    publisher.do("request", "--out", "request.json")
    publisher.run("sign", "request.json", "--key", "alice.pem", "--yes")
    publisher.do("collect", "request.alice.sig.json")
    for first in (1, 4):
        publisher.do("role", "system")
        assert (publisher.dir / f"keys/system-{first + 2}.pem").exists()
        publisher.do("request", "--discard")


@pytest.mark.parametrize("role", ["snapshot", "timestamp"])
def test_the_keys_of_each_publication_are_on_this_machine(published: Publisher, role: str) -> None:
    published.run("key", "alice")
    add = ("--add", "alice.pub.json")
    sentence = f"{role} signs at each publication on this machine, so 1 of its keys must be here, and 0 would be"
    assert sentence in published.refused("rotate", role, "--remove", f"{role}-1", *add)
    published.do("rotate", role, *add)
    assert published.out.startswith("published")
    assert sentence in published.refused("rotate", role, "--remove", f"{role}-1")
    two = published.refused("rotate", role, "--threshold", 2)
    assert "so 2 of its keys must be here, and 1 would be" in two
    published.do("rotate", role, "--threshold", 2, "--new", 1)
    other = published.base / "other"
    published.run("init", other, "--public-key", f"{role}=alice.pub.json", status=2)
    assert f"{role} signs at each publication on this machine: leave its --public-key out" in one_sentence(
        published.err
    )
    assert not other.exists()


@pytest.fixture
def token(softhsm: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The library of a software token with the label `edge`."""
    monkeypatch.setenv("EDGE_OTA_PUBLISH_PIN", PIN)
    return softhsm


def test_every_role_moves_to_a_token(published: Publisher, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = (published.dir / "root.json").read_bytes()
    sees(published, "sleeper", 1)
    for number, role in enumerate(ROLES, 10):
        published.do("rotate", role, "--pkcs11", token, "--token", "edge", "--token-id", number)
    for old in (published.dir / "keys").iterdir():
        old.unlink()
    published.release(2)
    published.do("refresh")
    published.do("renew", "root", "targets")
    sees(published, "sleeper", 2, factory)
    again = ("rotate", "timestamp", "--pkcs11", token, "--token", "edge", "--token-id")
    assert "has a key with ID 10 already" in published.refused(*again, 10, status=1)
    with monkeypatch.context() as patched:
        patched.setenv("EDGE_OTA_PUBLISH_PIN", "9999")
        assert "the PIN is wrong" in published.refused("refresh", status=1)
    assert "no such token" in published.refused(*again[:3], token, "--token", "other", status=1).lower()
    assert "does not exist" in published.refused(*again[:3], "/nowhere.so", "--token", "edge", status=1)


def test_another_key_of_the_same_id_on_a_token_does_not_count(
    published: Publisher, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--pkcs11", token, "--token", "edge", "--token-id")
    published.do("rotate", "rollout", *where, 20)
    published.run("key", "other", *where, 21)
    place = published.dir / "publish.json"
    place.write_text(place.read_text().replace("hsm:20?", "hsm:21?"))
    said = published.refused("renew", "rollout", status=1)
    assert "the key with this ID on the token is another one than rollout-2" in said
    assert not (published.dir / "pending.json").exists()
    assert "rollout has keys that are not files on this machine (rollout-2)" in published.refused("rotate", "rollout")
    published.do("rotate", "rollout", "--remove", "rollout-2", "--new", 1)
    published.do("renew", "rollout")
    sees(published, "dev", 1)


def test_a_person_signs_with_a_token(publisher: Publisher, token: str) -> None:
    where = ("--pkcs11", token, "--token", "edge", "--token-id", 7)
    publisher.run("key", "alice", *where)
    publisher.run("key", "again", *where, "--existing")
    assert (publisher.base / "alice.pub.json").read_text().partition("public")[2] == (
        publisher.base / "again.pub.json"
    ).read_text().partition("public")[2]
    publisher.init("--family", "det", "--public-key", "root=alice.pub.json")
    publisher.do("request", "--out", "request.json")
    publisher.run("sign", "request.json", *where, "--yes")
    publisher.do("collect", "request.edge-7.sig.json")
    publisher.release(1)
    sees(publisher, "dev", 1)
    publisher.run("sign", "request.json", *where[:-1], 8, "--yes", status=1)
    assert "has no usable key with ID 8" in one_sentence(publisher.err)


def test_a_device_refuses_a_root_that_strangers_signed(published: Publisher, tmp_path: Path) -> None:
    sees(published, "dev", 1)
    stranger = Publisher(tmp_path / "stranger")
    stranger.base.mkdir()
    stranger.init("--family", "det")
    stranger.do("rotate", "root")
    shutil.copy(stranger.repository / "metadata/2.root.json", published.repository / "metadata/2.root.json")
    with pytest.raises(Untrusted):
        device(published, "dev", time.time())
