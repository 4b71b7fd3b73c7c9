"""From nothing to a release that a device trusts, through the command line; and what is refused on the way."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ota.documents.device import read_device
from ota.documents.manifest import read_manifest
from ota.documents.names import blob_path, code_target, device_target, manifest_target, rollout_target
from ota.documents.rollout import read_rollout
from ota.errors import NotInRepository, OtaError
from ota.publish import change, verify
from ota.publish.keys import KeyProblem, Secrets, ask_in_time
from ota.publish.workspace import acquire_lock
from tests.ota.publish.publisher import CONFIG, PASSPHRASE, UNKNOWN_KEYS, Publisher, device, one_sentence

MANIFEST = manifest_target("det", "det", 1)


def test_a_device_trusts_what_was_published(published: Publisher) -> None:
    published.do("rollout start", "plant-a", "det", 1, "lab=100", "prod=5", "--window", "02:00-05:00")
    published.do(
        "device add", "dev-1", "--fleet", "plant-a", "--ring", "lab", "--label", "site=hall-3", "--out", "d.json"
    )
    trust = device(published, "dev-1", time.time())
    manifest = read_manifest(trust.document(MANIFEST, 10**6), "det", 1)
    assert [one.path for one in manifest.models["det"]] == ["1/model.onnx", "config.pbtxt"]
    for _, entry in manifest.every_file():
        assert hashlib.sha256((published.repository / blob_path(entry.sha256)).read_bytes()).hexdigest() == entry.sha256
    wish = read_rollout(trust.document(rollout_target("plant-a"), 10**6), "plant-a").models["det"]
    assert (wish.want, wish.family, wish.window) == (1, "det", "02:00-05:00")
    assert [one.ring for one in wish.steps] == ["lab", "prod"]
    data = trust.document(device_target("dev-1"), 10**6)
    assert data == (published.base / "d.json").read_bytes()
    assert read_device(data, "dev-1").labels == {"site": "hall-3"}


def test_a_bundle_of_a_family_that_the_repository_lacks_is_noted(
    published: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.model("simple", {"1/model.onnx": b"weights", "config.pbtxt": CONFIG.replace(b"det", b"simple")})
    bundle = ("bundle", "simple", "--release", 4, "--model", "simple", "--family")
    assert "nofam" not in published.run(*bundle, "nofam", "--out", "old")  # nothing says where the repository is

    monkeypatch.setenv("EDGE_OTA_PUBLISH_DIR", str(published.dir))
    said = (
        "simple 4 is a bundle of the family nofam, and this repository has det: make the bundle with another --family"
    )
    assert f"\nnote: {said}" in published.run(*bundle, "nofam")
    assert published.refused("release", "simple.4").startswith(said)
    published.run(*bundle, "det", status=2)
    assert one_sentence(published.err) == "simple.4 exists: rm -r simple.4, or name a new directory with --out DIR"
    assert "family" not in published.run(*bundle, "det", "--out", "new")
    published.do("release", "new")


@pytest.mark.parametrize("state", ["damaged", "directory", "loop", "missing"])
def test_a_bundle_needs_no_publisher_directory(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    publisher.model()
    publisher.dir.mkdir()
    path = publisher.dir / "state.json"
    if state == "damaged":
        path.write_text("{")
    elif state == "directory":
        path.mkdir()
    elif state == "loop":
        path.symlink_to(path)
    monkeypatch.setenv("EDGE_OTA_PUBLISH_DIR", str(publisher.dir))
    assert "family" not in publisher.run("bundle", "det", "--release", 1, "--model", "det")


def test_only_a_bundle_is_named_with_the_command_that_removes_it(publisher: Publisher) -> None:
    publisher.model("models/simple", {"1/model.onnx": b"", "config.pbtxt": b""})
    (publisher.base / "models/manifest.json").touch()
    (publisher.base / "file").touch()
    for out in ("models", "file"):
        said = bundle_refused(publisher, "simple", "--release", 1, "--model", "models/simple", "--out", out)
        assert said == f"{out} exists: name a new directory with --out DIR"


def test_a_new_fleet_beside_others_is_named(published: Publisher) -> None:
    published.do("rollout start", "hall", "det", 1, "lab=100")
    for device_name, fleet, said in (
        ("edge-1", "plant", ""), ("edge-2", "plnat", "note: new fleet plnat (others: plant)\n"), ("edge-3", "hall", "")
    ):  # fmt: skip
        out = published.do("device add", device_name, "--fleet", fleet, "--ring", "lab")
        assert out == f"{said}published: {device_name} in ring lab of {fleet}\n"


def test_the_secrets_are_only_in_keys_and_only_for_their_owner(published: Publisher) -> None:
    private = [path for path in published.dir.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert private
    assert all(path.parent == published.dir / "keys" and path.stat().st_mode & 0o77 == 0 for path in private)
    assert all(b"ENCRYPTED" in path.read_bytes() for path in private)
    assert not any(PASSPHRASE.encode() in path.read_bytes() for path in published.dir.rglob("*") if path.is_file())


@pytest.mark.fault("U6")
def test_code_needs_the_keys_of_engines(published: Publisher) -> None:
    code = f"open({str(published.base / 'ran')!r}, 'w')".encode()
    published.model("py", {"config.pbtxt": b'backend: "python"', "1/model.py": code, "conftest.py": code})
    published.run("bundle", "py", "--release", 1, "--model", "py", "--family", "det")
    said = published.refused("release", "py.1")
    assert "py/conftest.py" in said
    assert "--engines" in said
    published.do("release", "py.1", "--engines")
    trust = device(published, "dev", time.time())
    manifest = read_manifest(trust.document(manifest_target("det", "py", 1), 10**6), "py", 1)
    assert manifest.variants[0].kind == "code"
    for _, entry in manifest.every_file():
        assert trust.target(code_target("det", entry.sha256)) == (entry.sha256, entry.size)
    assert not (published.base / "ran").exists()


TENSORRT = CONFIG + b'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }\n'


@pytest.mark.fault("U6")
def test_an_engine_in_an_onnx_file_needs_the_keys_of_engines(
    published: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a chunked file, the name of the engine's node lies across two chunks."""
    monkeypatch.setattr("ota.publish.bundles.build.CHUNK", 4 * 1024 * 1024)
    monkeypatch.setattr("ota.publish.bundles.build.CHUNKED_BYTES", 4 * 1024 * 1024)
    graph = b"." * (4 * 1024 * 1024 - 4) + b"EPContext"
    published.model("det", {"config.pbtxt": TENSORRT, "1/model.onnx": graph})
    said = published.run("bundle", "det", "--release", 2, "--model", "det")
    assert "default (code)" in said
    assert "det/2/model.onnx (it has a compiled engine)" in published.refused("release", "det.2")
    with monkeypatch.context() as patched:
        patched.setattr("ota.publish.release.find_code", lambda *arguments: [])
        published.do("release", "det.2")
    said = published.refused("verify", status=4)
    assert "det 2: det/2/model.onnx (it has a compiled engine) runs as code, and engines does not approve it" in said
    published.run("bundle", "det", "--release", 3, "--model", "det")
    published.do("release", "det.3", "--engines")
    published.do("verify")
    sha256 = hashlib.sha256(graph).hexdigest()
    trust = device(published, "dev", time.time())
    assert trust.target(code_target("det", sha256)) == (sha256, len(graph))


def test_a_release_number_and_a_counter_are_used_once(published: Publisher) -> None:
    assert "never changes" in published.refused("release", "det.1")
    published.model("det", {"1/model.onnx": b"new"})
    published.run("bundle", "det", "--release", 2, "--counter", 1, "--model", "det")
    assert "--counter 2" in published.refused("release", "det.2")


def test_a_bundle_with_a_damaged_blob_is_not_published(published: Publisher) -> None:
    published.model("det", {"1/model.onnx": b"new weights"})
    published.run("bundle", "det", "--release", 2, "--model", "det")
    blob = published.base / "det.2" / blob_path(hashlib.sha256(b"new weights").hexdigest())
    blob.write_bytes(b"bad weights")
    assert "is damaged" in published.refused("release", "det.2", status=4)
    blob.unlink()
    assert "lacks the blob" in published.refused("release", "det.2", status=5)
    with pytest.raises(NotInRepository):
        device(published, "dev", time.time()).document(manifest_target("det", "det", 2), 10**6)


def test_a_damaged_blob_of_the_repository_is_replaced_by_the_next_release_with_it(published: Publisher) -> None:
    damaged = published.repository / blob_path(hashlib.sha256(b"det 1").hexdigest())
    damaged.unlink()  # a hard link to the blob of the bundle
    damaged.write_bytes(b"det X")
    published.release(2, weights=b"det 1")
    assert damaged.read_bytes() == b"det 1"


def test_the_rollout_of_a_fleet(published: Publisher) -> None:
    published.release(2)
    published.do("rollout start", "a", "det", 1, "prod=100")
    published.do("rollout start", "a", "det", 2, "lab=100", "prod=5")
    assert "prod is at 5 %" in published.refused("rollout step", "a", "det", "prod=4")
    published.do("rollout step", "a", "det", "prod=25")
    published.do("rollout halt", "a", "det")
    assert "is halted" in published.refused("rollout step", "a", "det", "prod=50")
    published.do("rollout resume", "a", "det")
    published.do("rollout pin", "a", "det", "dev-9", 1)
    published.do("rollout deny", "a", "det", 2)
    assert "is denied" in published.refused("rollout start", "a", "det", 2, "prod=1")
    shown = published.do("rollout show", "a")
    assert shown == "a: serial 7\n  det 2: lab=100 prod=25; before 1; denied 2; dev-9 pinned to 1\n"
    found = read_rollout(device(published, "dev", time.time()).document(rollout_target("a"), 10**6), "a")
    wish = found.models["det"]
    assert (found.serial, wish.want, wish.previous) == (7, 2, 1)
    assert (set(wish.deny), dict(wish.pin)) == ({2}, {"dev-9": 1})


def test_a_second_start_of_a_release_keeps_its_halt_and_its_start_time(published: Publisher) -> None:
    start = ("rollout start", "a", "det", 1)
    published.do(*start, "lab=100", "prod=50", "--not-before", "2099-01-01T00:00:00Z")
    published.do("rollout halt", "a", "det")
    assert "ring prod is at 50 %, and a lower share takes" in published.refused(*start, "prod=5")
    for share in ("prod=60", "other=1"):
        assert "det is halted: 'edge-ota publish rollout resume' comes first" in published.refused(*start, share)
    said = published.do(*start, "prod=50", "--window", "02:00-05:00")
    assert "det 1 is still halted: 'edge-ota publish rollout resume' comes first" in said
    shown = "det 1: lab=100 prod=50; HALTED; window 02:00-05:00; not before 2099-01-01T00:00:00Z\n"
    assert shown in published.do("rollout show", "a")
    published.do("rollout resume", "a", "det")
    assert "halted" not in published.do(*start, "prod=60", "--not-before", "")
    assert "det 1: lab=100 prod=60; window 02:00-05:00\n" in published.do("rollout show", "a")
    published.release(2)
    published.do("rollout halt", "a", "det")
    assert "halted" not in published.do("rollout start", "a", "det", 2, "prod=5")
    assert "det 2: prod=5; window 02:00-05:00\n" in published.do("rollout show", "a")


@pytest.mark.fault("R1")
def test_a_denial_that_leaves_devices_without_a_release_is_asked_about(
    published: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.release(2)
    for device_name, ring in (("dev-1", "prod"), ("dev-2", "lab")):
        published.do("device add", device_name, "--fleet", "a", "--ring", ring)
    published.do("rollout start", "a", "det", 1, "lab=100", "prod=100")
    published.do("rollout start", "a", "det", 2, "lab=100")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    published.do("rollout deny", "a", "det", 1, status=1)
    assert "1 of 2 devices of a would serve no release of det if they run 1" in published.out
    assert "nothing was changed" in published.err
    assert "denied" not in published.do("rollout show", "a")
    published.do("rollout deny", "a", "det", 1, "--yes")
    published.do("verify")
    assert "warning: fleet a: 1 of 2 devices serve no release of det if they run a denied one (1)" in published.err
    published.do("rollout step", "a", "det", "prod=100")
    published.do("verify")
    assert "denied" not in published.err
    published.do("rollout deny", "a", "det", 2, status=1)
    assert "2 of 2 devices" in published.out
    published.do("rollout deny", "a", "det", 2, "--yes")
    published.do("verify")
    assert "warning: fleet a: det 2 is wanted, and denied; the releases before: none" in published.err


@pytest.mark.fault("R1")
def test_a_denial_is_asked_about_if_an_older_agent_would_serve_nothing(
    published: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows only the release before of all rings, and one ring came later."""
    published.release(2)
    published.do("device add", "dev-1", "--fleet", "a", "--ring", "prod")
    published.do("rollout start", "a", "det", 1, "prod=50")
    published.do("rollout step", "a", "det", "prod=100")
    published.do("device add", "dev-2", "--fleet", "a", "--ring", "lab")
    published.do("rollout start", "a", "det", 2, "lab=100", "prod=100")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    published.do("rollout deny", "a", "det", 2, status=1)
    assert "1 of 2 devices of a would serve no release of det if they run 2" in published.out
    assert "2, and 1 more if their edge-ota is too old to know the release before" in published.out
    published.do("rollout start", "a", "det", 1, "lab=100", "prod=100")
    published.do("rollout deny", "a", "det", 2)


def test_a_release_that_did_not_arrive_is_not_what_the_others_get(published: Publisher) -> None:
    """Release 2 is bad and stops at 50 %; release 3 mends it: no further device gets 2 meanwhile."""
    published.release(2)
    published.release(3)
    published.do("rollout start", "a", "det", 1, "prod=100")
    published.do("rollout start", "a", "det", 2, "prod=50")
    published.do("rollout start", "a", "det", 3, "prod=50")
    assert "det 3: prod=50; before 1" in published.do("rollout show", "a")
    published.do("rollout step", "a", "det", "prod=100")
    published.do("rollout start", "a", "det", 2, "prod=50")
    assert "det 2: prod=50; before 3" in published.do("rollout show", "a")
    published.do("rollout step", "a", "det", "prod=100")
    published.do("rollout deny", "a", "det", 2)
    published.do("rollout start", "a", "det", 1, "prod=50")
    assert "det 1: prod=50; before 3" in published.do("rollout show", "a")


def test_likely_typing_errors_are_refused_once_there_are_devices(published: Publisher) -> None:
    assert "note: a has no device yet\n" in published.do("rollout start", "a", "det", 1, "lab=1")
    published.do("device add", "dev-1", "--fleet", "a", "--ring", "lab")
    assert "note" not in published.do("rollout start", "a", "det", 1, "lab=100")
    before = published.do("rollout show")
    refused = "no device of a is in ring labb; its rings: lab: nothing is published; correct the name, or write --allow"
    for action in (("rollout start", "a", "det", 1), ("rollout step", "a", "det")):
        assert refused in published.refused(*action, "labb=100")
    assert "aa has no device yet; fleets with devices: a: nothing" in published.refused(
        "rollout start", "aa", "det", 1, "lab=100"
    )
    assert "dev-9 is not a device of a: nothing" in published.refused("rollout pin", "a", "det", "dev-9", 1)
    assert published.do("rollout show") == before

    said = published.do("rollout start", "aa", "det", 1, "lab=100", "--allow-unknown")
    assert "note: aa has no device yet; fleets with devices: a\n" in said
    published.do("rollout pin", "a", "det", "dev-9", 1, "--allow-unknown")
    published.do("rollout pin", "a", "det", "dev-9", 0)
    assert "note" not in published.do("rollout halt", "a", "det")


def test_a_floor_never_sinks_and_nothing_below_it_is_rolled_out(published: Publisher) -> None:
    published.release(2)
    published.do("floor", "det", 2)
    assert "below the floor" in published.refused("rollout start", "a", "det", 1, "prod=100")
    assert "never sinks" in published.refused("floor", "det", 1)
    assert "not published" in published.refused("floor", "det", 9)


def test_an_unpublished_release_is_not_rolled_out(published: Publisher) -> None:
    assert "det 7 is not published (published: 1)" in published.refused("rollout start", "a", "det", 7, "prod=100")
    assert "no release of seg" in published.refused("rollout start", "a", "seg", 1, "prod=100")
    assert "'prod' is not a step" in published.refused("rollout start", "a", "det", 1, "prod")
    assert "has no det, it has nothing" in published.refused("rollout halt", "a", "det")


def test_each_device_has_its_own_name_and_key(published: Publisher) -> None:
    (published.base / "device.pub").write_text("ab" * 32)
    add = ("--fleet", "a", "--ring", "lab", "--key", "device.pub")
    published.do("device add", "dev-1", *add)
    assert "already" in published.refused("device add", "dev-1", *add)
    assert "dev-2 has the key of dev-1" in published.refused("device add", "dev-2", *add)
    published.do("device add", "dev-1", "--change", "--fleet", "b", "--ring", "prod")
    assert published.do("device list") == f"dev-1: b prod {'ab' * 8}\n"  # it moves, and keeps its key
    published.do("device remove", "dev-1")
    assert published.do("device list") == ""
    for text in ("nonsense", *UNKNOWN_KEYS.values()):
        (published.base / "device.pub").write_text(text)
        assert "not a public key" in published.refused("device add", "dev-3", *add, status=4)
    assert "expected a name" in published.refused("device add", "../x", "--fleet", "a", "--ring", "lab")
    assert "expected local times such as" in published.refused(
        "rollout start", "a", "det", 1, "lab=1", "--window", "25:00-26:00"
    )
    assert "expected a name" in published.refused("rollout start", "a b", "det", 1, "lab=1")


def test_many_devices_at_once(published: Publisher) -> None:
    table = published.base / "devices.csv"
    table.write_text("device,fleet,ring,fingerprint,site\na-1,a,lab,,hall-3\na-2,a,prod," + "ab" * 32 + ",\n")
    published.do("device import", table)
    assert published.do("device list") == f"a-1: a lab site=hall-3 no key\na-2: a prod {'ab' * 8}\n"
    assert "a-1 is a device of the fleet a already" in published.refused("device import", table)
    published.do("device import", table, "--change")
    table.write_text(table.read_text(), encoding="utf-8-sig")  # as a spreadsheet saves it
    published.do("device import", table, "--change")
    table.write_text("device,fleet\na-3,a\n")
    assert "line 2: there is no column 'ring'" in published.refused("device import", table)
    table.write_text("device,fleet,ring\na 3,a,x\n")
    assert "expected a name" in published.refused("device import", table)
    assert "does not exist" in published.refused("device import", "nothing.csv")
    table.write_bytes(b"device,fleet,ring\ra-9,a,lab\r")  # as spreadsheets on a Mac write it
    published.do("device import", table)
    table.write_text(f'device,fleet,ring\n"{"x" * 200_000}",a,lab\n')
    assert "is not CSV (field larger than field limit" in published.refused("device import", table)


def test_a_role_that_devices_would_refuse_is_not_signed(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "MOST_METADATA", 100_000)
    before = (published.dir / "state.json").read_bytes()
    table = published.base / "devices.csv"
    table.write_text("\n".join(["device,fleet,ring", *(f"dev-{number:04},a,lab" for number in range(300))]))
    error = published.refused("device import", table, status=1)
    assert "the metadata of rollout has " in error
    assert "and devices accept 34464: remove devices that are gone ('device remove')" in error
    assert (published.dir / "state.json").read_bytes() == before
    assert published.do("device list") == ""


def test_passphrases(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", "not the passphrase")
    assert "the passphrase of the key rollout-1 (" in published.refused("rollout start", "a", "det", 1, "x=1", status=1)
    monkeypatch.delenv("EDGE_OTA_PUBLISH_PASSPHRASE")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert "no terminal to ask" in published.refused("rollout start", "a", "det", 1, "x=1", status=1)
    (published.base / "words").write_text(PASSPHRASE + "\n")
    published.do("rollout start", "a", "det", 1, "x=1", "--passphrase-file", "words")
    (published.dir / "keys/rollout-1.pem").rename(published.base / "gone.pem")
    said = published.refused("rollout halt", "a", "det", "--passphrase-file", "words", status=1)
    assert "rollout-1, does not exist" in said


def test_passphrases_are_asked_for_at_a_terminal(tmp_path: Path) -> None:
    answers = iter(["a long passphrase", "a long passphrase", "short", "another passphrase", "different"])
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return next(answers)

    secrets = Secrets(environ={}, ask=ask, terminal=lambda: True)
    assert secrets.fresh("root-1") == secrets.fresh("root-2") == secrets.of("root-1") == "a long passphrase"
    assert asked == ["passphrase of the key root-1: ", "the same again: "]
    with pytest.raises(KeyProblem, match="at least 12"):
        Secrets(environ={}, ask=ask, terminal=lambda: True).fresh("root-1")
    with pytest.raises(KeyProblem, match="differ"):
        Secrets(environ={}, ask=ask, terminal=lambda: True).fresh("root-1")
    own = Secrets(environ={"EDGE_OTA_PUBLISH_PASSPHRASE_ROOT_1": "one", "EDGE_OTA_PUBLISH_PASSPHRASE": "all"})
    assert (own.of("root-1"), own.of("root-2")) == ("one", "all")


def test_the_questions_of_a_command_share_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rotate root` with keys of different passphrases: the second answer comes too late."""

    def ask(question: str) -> str:
        time.sleep(0.3)
        return "y"

    monkeypatch.setattr("ota.publish.keys.ANSWER_SECONDS", 0.5)
    with acquire_lock(tmp_path):
        assert ask_in_time("passphrase of the key root-1: ", ask) == "y"
        with pytest.raises(OtaError, match=r"no answer within 0.5 s"):
            ask_in_time("passphrase of the key root-2: ", ask)


def test_people_who_compare_keys_are_not_hurried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sign` has no lock: no command waits for its questions."""

    def ask(question: str) -> str:
        time.sleep(0.05)
        return "y"

    monkeypatch.setattr("ota.publish.keys.ANSWER_SECONDS", 0.01)
    assert ask_in_time("Sign this?", ask) == "y"
    with acquire_lock(tmp_path):
        pass
    assert ask_in_time("Sign this?", ask) == "y"


def test_two_publishers_do_not_work_at_once(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ota.publish.workspace.PATIENCE", 0.0)
    with acquire_lock(published.dir):
        assert f"(process {os.getpid()}) works in {published.dir}: wait" in published.refused("refresh", status=9)


def test_a_command_waits_for_another_one(published: Publisher) -> None:
    with contextlib.ExitStack() as other:
        other.enter_context(acquire_lock(published.dir))
        threading.Timer(0.15, other.close).start()
        published.do("refresh")
    assert re.fullmatch(rf"waiting for '.*' \(process {os.getpid()}\), which works in .*\n", published.err)


def test_commands_that_read_wait_for_no_other(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    published.do("device add", "dev-1", "--fleet", "a", "--ring", "lab")
    published.do("rollout start", "a", "det", 1, "lab=100")
    monkeypatch.setattr("ota.publish.workspace.PATIENCE", 0.0)
    with acquire_lock(published.dir):
        for command in ("rollout show", "rollout simulate a det", "device list", "export stick --fleet a"):
            published.do(*command.split())


def test_verify_hashes_blobs_without_the_lock(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*arguments: Any) -> verify.Findings:
        with acquire_lock(published.dir):
            return found(*arguments)

    found = verify.check
    monkeypatch.setattr("ota.publish.workspace.PATIENCE", 0.0)
    monkeypatch.setattr("ota.publish.verify.check", check)
    published.do("verify")


def test_init_refuses(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher.init()
    publisher.run("init", publisher.dir, status=2)
    assert "already" in one_sentence(publisher.err)
    publisher.run("release", "x", "--dir", publisher.base, status=2)
    assert "not a publisher's directory" in one_sentence(publisher.err)
    monkeypatch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", "short")
    publisher.run("init", publisher.base / "other", status=1)
    assert "at least 12" in one_sentence(publisher.err)
    publisher.run("init", publisher.base / "third", "--expires", "root=0", status=2)
    assert "0.01 to 3650" in one_sentence(publisher.err)


def test_the_same_input_makes_the_same_manifest(publisher: Publisher) -> None:
    publisher.model("det", {"config.pbtxt": b"", "1/model.onnx": b"w", "labels.txt": b"cat", "3/model.onnx": b"old"})
    publisher.run("bundle", "det", "--release", 4, "--version", 1, "--model", "det")
    publisher.run("bundle", "det", "--release", 4, "--version", 1, "--model", "det", "--out", "again")
    data = (publisher.base / "det.4/manifest.json").read_bytes()
    assert data == (publisher.base / "again/manifest.json").read_bytes()
    assert [one["path"] for one in json.loads(data)["models"]["det"]["files"]] == [
        "4/model.onnx",
        "config.pbtxt",
        "labels.txt",
    ]


def bundle_refused(publisher: Publisher, *arguments: object) -> str:
    """Run `bundle` that fails, and see that it leaves nothing."""
    before = sorted(path.name for path in publisher.base.iterdir())
    publisher.run("bundle", *arguments, status=2)
    assert sorted(path.name for path in publisher.base.iterdir()) == before
    return one_sentence(publisher.err)


def test_model_directories_that_make_no_bundle(publisher: Publisher) -> None:
    def said(files: dict[str, bytes], *flags: object) -> str:
        name = f"m{len(list(publisher.base.iterdir()))}"
        publisher.model(name, files)
        return bundle_refused(publisher, "det", "--release", 2, "--model", name, *flags)

    config = {"config.pbtxt": b""}
    assert "has no config.pbtxt" in said({"1/model.onnx": b""})
    assert "no version directory" in said(config)
    assert "has no version 5: it has 1" in said({**config, "1/model.onnx": b""}, "--version", 5)
    assert "names the model 'seg'" in said({"config.pbtxt": b'name: "seg"', "1/model.onnx": b""})
    assert "edge-serve check" in said({"config.pbtxt": b"{{", "1/model.onnx": b""})
    assert "rename it" in said({**config, "1/mod el.onnx": b""})
    assert "version_policy" in said(
        {"config.pbtxt": b"version_policy { specific { versions: [1] } }", "1/model.onnx": b""}
    )
    assert "differ in case only" in said({**config, "1/model.onnx": b"", "1/MODEL.onnx": b""})
    assert "is not a directory" in bundle_refused(publisher, "det", "--release", 2, "--model", "missing")
    link = publisher.model("linked", {**config, "1/model.onnx": b""}) / "data"
    link.symlink_to(publisher.base, target_is_directory=True)
    assert "link to a directory" in bundle_refused(publisher, "det", "--release", 2, "--model", "linked")


BUILD = {"model": "det", "onnx": "1/model.onnx", "plan": "1/model.plan"}


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"build": [{**BUILD, "onnx": "1/other.onnx"}]}, "from 2/other.onnx, which det lacks"),
        ({"build": [{**BUILD, "options": ["--verbose"]}]}, "the option '--verbose' of its build is not known"),
        ({"match": {"sm": "=>7.5"}}, "no device meets the condition sm '=>7.5'"),
        ({"match": {"tensorrt": "10..3"}}, "no device meets the condition tensorrt '10..3'"),
    ],
)
def test_a_variant_that_no_device_can_use_is_refused(
    publisher: Publisher, members: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.model("det")
    variant = {"id": "built", "kind": "onnx-build", "priority": 1, **members}
    (publisher.base / "variants.json").write_text(json.dumps({"variants": [variant]}))
    flags = ("det", "--release", 2, "--model", "det", "--variants", "variants.json")
    assert sentence in bundle_refused(publisher, *flags)
    publisher.init("--family", "det")
    with monkeypatch.context() as patched:
        patched.setattr("ota.publish.bundles.build.find_faults", lambda manifest: [])
        publisher.run("bundle", *flags)
    assert sentence in publisher.refused("release", "det.2")
    with monkeypatch.context() as patched:
        patched.setattr("ota.publish.release.find_faults", lambda manifest: [])
        publisher.do("release", "det.2")
    publisher.do("verify")
    assert publisher.err.startswith("warning: det 2: variant built: ")
    assert sentence in publisher.err


def test_an_interrupted_bundle_leaves_no_directory(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher.model("det")

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ota.publish.bundles.build.read_manifest", interrupt)
        publisher.run("bundle", "det", "--release", 2, "--model", "det", status=130)
    assert not (publisher.base / "det.2").exists()
    publisher.run("bundle", "det", "--release", 2, "--model", "det")


ENSEMBLE = b"""platform: "ensemble" ensemble_scheduling { step [ { model_name: "pre" model_version: -1 },
 { model_name: "det" model_version: -1 } ] }"""


def test_an_ensemble_comes_with_its_members(publisher: Publisher) -> None:
    publisher.model("all", {"config.pbtxt": ENSEMBLE})
    publisher.model("det")
    publisher.model("pre", {"config.pbtxt": b"", "2/model.onnx": b"p"})
    said = bundle_refused(publisher, "all", "--release", 3, "--model", "all", "--model", "det")
    assert "the ensemble all needs pre" in said
    publisher.run("bundle", "all", "--release", 3, "--model", "all", "--model", "det", "--model", "pre")
    found = read_manifest((publisher.base / "all.3/manifest.json").read_bytes(), "all", 3)
    assert [one.path for one in found.models["pre"]] == ["3/model.onnx", "config.pbtxt"]
    publisher.model("all", {"config.pbtxt": ENSEMBLE.replace(b"-1", b"1", 1)})
    assert "write model_version: -1" in bundle_refused(publisher, "all", "--release", 4, "--model", "all")


def test_a_long_file_is_stored_in_chunks(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ota.publish.bundles.build.CHUNK", 4 * 1024 * 1024)
    monkeypatch.setattr("ota.publish.bundles.build.CHUNKED_BYTES", 9 * 1024 * 1024)
    weights = bytes(range(256)) * (40 * 1024)
    publisher.init("--family", "det")
    publisher.release(1, weights=weights)
    manifest = read_manifest((publisher.base / "det.1/manifest.json").read_bytes(), "det", 1)
    entry = manifest.models["det"][0]
    assert (len(entry.chunks), entry.chunk_size, entry.size) == (3, 4 * 1024 * 1024, len(weights))
    stored = b"".join((publisher.repository / blob_path(one)).read_bytes() for one in entry.chunks)
    assert stored == weights
    assert not (publisher.repository / blob_path(entry.sha256)).exists()


def test_the_published_files_have_no_other_names(published: Publisher) -> None:
    names = {path.parts[len(published.repository.parts)] for path in published.repository.rglob("*")}
    assert names == {"metadata", "targets", "blobs"}
    assert not list(published.repository.rglob(".*"))
