"""Freshness, the check of a whole repository, the copy for USB, and the web server for tests."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ota import files
from ota.cli import main
from ota.documents.names import blob_path, manifest_target, rollout_target
from ota.errors import Expired, OtaError
from ota.publish.change import check_clock
from ota.publish.keys import Secrets
from ota.publish.repository import read_state
from ota.publish.serve import RepositoryServer
from ota.publish.workspace import read as read_workspace
from ota.trust.roots import parse_time
from tests.ota.publish.publisher import CONFIG, Files, Publisher, device, one_sentence

DAY = 86400.0


@pytest.fixture
def fleet(published: Publisher) -> Publisher:
    """A publisher with two bundles and two fleets."""
    published.release(2)
    published.release(1, "seg")
    published.do("rollout start", "a", "det", 1, "lab=100")
    published.do("rollout start", "a", "det", 2, "lab=100")
    published.do("rollout start", "b", "seg", 1, "lab=100")
    published.do("device add", "dev-a", "--fleet", "a", "--ring", "lab")
    published.do("device add", "dev-b", "--fleet", "b", "--ring", "lab")
    return published


def at(monkeypatch: pytest.MonkeyPatch, days: float) -> float:
    """Let so many days pass; the time then."""
    now = time.time() + days * DAY
    monkeypatch.setattr("ota.publish.commands.site.time.time", lambda: now)
    return now


def versions(publisher: Publisher) -> dict[str, int]:
    """Return role -> the highest version that is published."""
    found: dict[str, int] = {}
    for path in (publisher.repository / "metadata").iterdir():
        number, _, role = path.name.removesuffix(".json").partition(".")
        found[role or number] = max(found.get(role or number, 0), int(number) if role else 0)
    return found


def test_refresh_signs_what_is_past_half_of_its_life(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions(published)
    assert published.do("refresh") == "published: timestamp signed again\n"
    assert versions(published) == before
    now = at(monkeypatch, 8)
    assert published.do("refresh") == "published: rollout, snapshot and timestamp signed again\n"
    assert versions(published) == {**before, "snapshot": before["snapshot"] + 1, "rollout": 2}
    assert device(published, "dev", now).target(manifest_target("det", "det", 1)) is not None
    at(monkeypatch, 42)
    published.do("refresh")
    assert "warning: models-det expires in 40 days: sign it again with" in published.err
    published.do("refresh", "--also", "models-det")
    assert "models-det" in published.out
    assert "models-det" not in published.err


def test_a_waiting_change_of_a_role_does_not_stop_the_timestamp(
    published: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.run("key", "alice")
    published.do("rotate", "models-det", "--add", "alice.pub.json")
    published.do("rotate", "models-det", "--threshold", 2)
    at(monkeypatch, 50)
    assert published.do("refresh", "--also", "models-det") == (
        "published: rollout, snapshot and timestamp signed again\n"
    )
    assert "warning: models-det expires in 40 days" in published.err


def test_a_role_with_its_keys_here_does_not_wait_for_people(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.run("key", "alice")
    publisher.init("--family", "det", "--public-key", "targets=alice.pub.json", "--expires", "targets=60")
    publisher.do("request", "--out", "request.json")
    publisher.run("sign", "request.json", "--key", "alice.pem", "--yes", "--out", "sig.json")
    publisher.do("collect", "sig.json")
    signed = "published: rollout, snapshot and timestamp signed again\n"
    at(monkeypatch, 31)
    assert publisher.do("refresh", "--also", "targets") == signed
    assert "warning: targets waits for signatures" in publisher.err
    at(monkeypatch, 8)
    assert publisher.do("refresh") == signed
    publisher.do("request", "--discard")
    publisher.do("rotate", "rollout")
    assert "targets: 1 more of alice" in publisher.out
    at(monkeypatch, 8)
    assert publisher.do("refresh") == signed


def test_a_key_that_cannot_be_read_does_not_stop_the_timestamp(
    published: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    (published.dir / "keys/rollout-1.pem").write_text("nonsense")
    now = at(monkeypatch, 8)
    assert published.do("refresh", status=1) == "published: snapshot and timestamp signed again\n"
    assert "rollout-1.pem" in one_sentence(published.err)
    assert device(published, "dev", now).target(manifest_target("det", "det", 1)) is not None


def test_a_lost_key_of_snapshot_does_not_stop_the_timestamp(
    published: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = versions(published)
    (published.dir / "keys/snapshot-1.pem").rename(published.dir / "lost.pem")
    for days in (8, 2):
        now = at(monkeypatch, days)
        assert published.do("refresh", status=1) == "published: timestamp signed again\n"
        said = one_sentence(published.err)
        assert re.search(r"snapshot expires in \d days: it was not signed again: .*snapshot-1.pem, the key", said)
        assert versions(published) == before
        assert device(published, "dev", now).target(manifest_target("det", "det", 1)) is not None
    (published.dir / "lost.pem").rename(published.dir / "keys/snapshot-1.pem")
    assert published.do("refresh") == "published: rollout, snapshot and timestamp signed again\n"
    (published.dir / "keys/timestamp-1.pem").unlink()
    assert "timestamp-1.pem" in published.refused("refresh", status=1)


def test_an_expired_snapshot_without_its_key_is_named(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    (published.dir / "keys/snapshot-1.pem").unlink()
    at(monkeypatch, 15)
    published.do("refresh", status=4)
    assert "snapshot expired 1 days ago: it was not signed again: " in published.err


@pytest.mark.parametrize("broken", [("engines",), ("engines", "models-det")])
def test_a_role_that_cannot_be_signed_does_not_stop_the_others(
    published: Publisher, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...]
) -> None:
    for role in broken:
        (published.dir / f"keys/{role}-1.pem").unlink()
    now = at(monkeypatch, 80)
    said = published.do("refresh", "--also", "engines", "--also", "models-det", status=1)
    signed = [role for role in ("models-det", "engines", "rollout") if role not in broken]
    for role in signed:
        assert role in said
    for role in broken:
        assert role not in said
        assert f"{role} expires in 10 days: it was not signed again: " in one_sentence(published.err)
    trust = device(published, "dev", now)
    assert trust.target(manifest_target("det", "det", 1)) is not None
    state = json.loads((published.dir / "state.json").read_bytes())["roles"]
    assert state["timestamp"]["signed"]["version"] == 3, "one publication for all roles"
    at(monkeypatch, 12)  # 92 days
    published.do("refresh", "--also", "engines", status=4)
    assert "engines expired 2 days ago: it was not signed again: " in published.err


@pytest.fixture
def no_time_server(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """A publisher in a room without a network."""
    monkeypatch.setattr("ota.trust.clock_floor.is_synchronized", lambda: False)
    return published


@pytest.mark.fault("K1")
def test_a_publisher_without_a_time_server_confirms_its_clock(
    no_time_server: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ("rollout start", "a", "det", 1, "lab=100")
    at(monkeypatch, 1)  # a daily cron needs no flag
    no_time_server.do("refresh")
    now = at(monkeypatch, 6)
    for command in (("refresh",), start, ("rotate", "timestamp")):
        said = no_time_server.refused(*command, status=1)
        assert "UTC, 6.0 days after the last publication, and no time server has confirmed it. If it is ahead" in said
    assert not (no_time_server.dir / "keys/timestamp-2.pem").exists()
    for command in (("rollout show",), ("device list",)):
        no_time_server.do(*command)
    no_time_server.do("verify", status=4)
    assert "timestamp expired on" in no_time_server.err
    no_time_server.do(*start, "--clock-is-right")
    no_time_server.do("rollout halt", "a", "det")
    assert device(no_time_server, "dev", now).target(rollout_target("a")) is not None


@pytest.mark.parametrize(
    "command", ["rollout show", "rollout simulate", "device list", "report", "verify", "serve", "export", "request"]
)
def test_a_command_that_publishes_nothing_does_not_ask_for_the_clock(published: Publisher, command: str) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        main(["publish", *command.split(), "--help"])
    assert "--clock-is-right" not in out.getvalue()
    assert "--dir" in out.getvalue()


@pytest.mark.parametrize(("life", "each"), [(1, 0.5), (2, 1), (3, 2), (0.1, 0.04)])
def test_a_cron_that_keeps_the_timestamp_alive_is_never_refused(
    no_time_server: Publisher, life: float, each: float
) -> None:
    workspace = read_workspace(no_time_server.dir, Secrets())
    workspace.days["timestamp"] = life
    state = read_state(no_time_server.dir)
    issued = parse_time(state.roles["timestamp"].signed.unrecognized_fields["x-issued"])
    assert issued is not None
    check_clock(workspace, state, issued + each * DAY + 60, synchronized=False)
    with pytest.raises(OtaError, match="no time server has confirmed it"):
        check_clock(workspace, state, issued + life * DAY, synchronized=False)
    check_clock(workspace, state, issued + life * DAY, synchronized=True)


def test_a_publication_by_a_clock_that_was_ahead_and_accepted_goes_on_when_it_is_corrected(
    no_time_server: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, factory = time.time(), (no_time_server.dir / "root.json").read_bytes()
    with monkeypatch.context() as ahead:
        device(no_time_server, "dev", at(ahead, 2.5), factory)
        no_time_server.do("refresh")
        device(no_time_server, "dev", now, factory)
    no_time_server.do("rollout start", "a", "det", 1, "lab=100")
    assert device(no_time_server, "dev", now, factory).target(rollout_target("a")) is not None


@pytest.mark.fault("K1")
def test_a_clock_that_was_ahead_is_corrected(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    factory, now = (published.dir / "root.json").read_bytes(), time.time()
    device(published, "dev", now, factory)
    with monkeypatch.context() as ahead:
        at(ahead, 10)
        published.do("refresh")
        device(published, "dev", now, factory)
        published.do("verify")
    for command in (("refresh",), ("rollout start", "a", "det", 1, "lab=100"), ("rotate", "timestamp")):
        said = published.refused(*command, status=1)
        assert "UTC, 10.0 days before the last publication: one of the two times is wrong. Correct the clock." in said
        assert "'rotate timestamp --clock-is-right' frees them" in said
    published.do("refresh", "--clock-is-right")
    with pytest.raises(Expired):
        device(published, "dev", now, factory)
    device(published, "other", now, factory)
    published.do("rotate", "timestamp", "--clock-is-right")
    published.do("rollout start", "a", "det", 1, "lab=100")
    for name in ("dev", "other"):
        assert device(published, name, now, factory).target(rollout_target("a")) is not None


def test_an_expired_role_is_named(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    now = at(monkeypatch, 200)
    published.do("refresh", status=4)
    assert "targets expired 20 days ago: sign it again with 'edge-ota publish renew targets'" in published.err
    with pytest.raises(Expired):
        device(published, "dev", now)
    said = published.refused("rollout start", "a", "det", 1, "x=1", status=4)
    assert "targets expired on" in said
    assert "renew targets" in said
    published.do("renew", "targets", "models-det", "engines")
    assert "rollout expired on" in published.refused("verify", status=4)
    assert published.do("refresh") == "published: rollout, snapshot and timestamp signed again\n"
    published.do("verify")
    assert device(published, "dev", now).target(manifest_target("det", "det", 1)) is not None


def test_verify_shows_what_devices_will_see(fleet: Publisher) -> None:
    said = fleet.do("verify")
    assert "fleet a: serial 2, 1 devices\n  det: 2 for lab=100%\n" in said
    assert "releases: det 1, det 2, seg 1\n" in said
    assert "timestamp: version " in said


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("blobs/sha256/*/*", "is damaged: remove it"),
        ("targets/bundles/det/*.det.2.json", "was changed"),
        ("targets/rollout/*.a.json", "was changed"),
        ("metadata/timestamp.json", "timestamp.json is"),
        ("metadata/*.targets.json", "targets.json is"),
    ],
)
def test_verify_finds_what_was_changed(fleet: Publisher, pattern: str, sentence: str) -> None:
    for path in fleet.repository.glob(pattern):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    root = fleet.dir / "root.json"
    fleet.run("verify", "--repository", fleet.repository, "--root", root, status=4)
    assert sentence in fleet.err


def test_verify_finds_what_is_missing_or_rolled_back(fleet: Publisher, tmp_path: Path) -> None:
    shutil.copytree(fleet.repository, tmp_path / "old")
    fleet.do("rollout halt", "a", "det")
    next(fleet.repository.glob("blobs/sha256/*/*")).unlink()
    assert "does not exist: copy it from the bundle" in fleet.refused("verify", status=4)
    shutil.copytree(tmp_path / "old", fleet.repository, dirs_exist_ok=True)
    fleet.do("verify")
    fleet.do("rollout start", "typo", "det", 1, "lab=100", "--allow-unknown")
    fleet.do("floor", "det", 2)
    fleet.do("verify")
    assert "warning: fleet typo: det 1 is wanted, and below the floor" in fleet.err  # no device sees it
    fleet.do("rollout deny", "a", "det", 2)
    fleet.do("verify")
    assert "warning: fleet a: det 2 is wanted, and denied; the releases before: " in fleet.err


def test_verify_warns_of_a_release_before_that_devices_refuse(published: Publisher) -> None:
    published.release(2)
    published.do("device add", "dev-1", "--fleet", "a", "--ring", "lab")
    published.do("rollout start", "a", "det", 1, "lab=100")
    published.do("rollout start", "a", "det", 2, "lab=100")
    published.do("verify")
    assert "a release before" not in published.err
    published.do("floor", "det", 2)
    published.do("verify")
    assert "fleet a: det 1 is a release before, and below the floor: devices that get it in place of 2" in published.err
    published.do("device add", "dev-2", "--fleet", "a", "--ring", "spare")
    published.do("rollout deny", "a", "det", 2, "--yes")
    published.do("verify")
    assert "fleet a: det 2 is wanted, and denied; the releases before: 1" in published.err


def test_verify_finds_files_that_devices_refuse_though_their_content_is_signed(fleet: Publisher) -> None:
    root = fleet.dir / "root.json"
    for role in ("rollout", "snapshot", "targets"):
        path = max((fleet.repository / "metadata").glob(f"*.{role}.json"), key=lambda one: int(one.name.split(".")[0]))
        data = path.read_bytes()
        path.write_text(json.dumps(json.loads(data), indent=1))
        fleet.run("verify", "--repository", fleet.repository, "--root", root, status=4)
        assert f"{path.name} was changed after it was published" in one_sentence(fleet.err)
        path.write_bytes(data)
    fleet.run("verify", "--repository", fleet.repository, "--root", root)


def test_verify_finds_missing_metadata_of_roles(fleet: Publisher, tmp_path: Path) -> None:
    root = fleet.dir / "root.json"
    stick = tmp_path / "stick"
    fleet.do("family", "other")
    fleet.do("export", stick, "--fleet", "a")
    fleet.run("verify", "--repository", stick, "--root", root, status=4)
    assert "check a copy for one fleet with --fleet" in one_sentence(fleet.err)
    for role in ("models-det", "engines", "rollout"):
        (path,) = (stick / "metadata").glob(f"*.{role}.json")
        data = path.read_bytes()
        path.unlink()
        fleet.run("verify", "--repository", stick, "--root", root, "--fleet", "a", status=4)
        assert f"{path} does not exist: publish it again" in one_sentence(fleet.err)
        path.write_bytes(data)
    fleet.run("verify", "--repository", stick, "--root", root, "--fleet", "a")


def test_verify_tells_families_with_one_bundle_name_apart(publisher: Publisher) -> None:
    publisher.init("--family", "one", "--family", "two")
    for family, fleet in (("one", "x"), ("two", "y")):
        publisher.model(files={"config.pbtxt": CONFIG, "1/model.onnx": family.encode()})
        bundle = ("bundle", "det", "--release", 1, "--model", "det", "--family", family, "--out", family)
        publisher.run(*bundle, "--counter", 1 if family == "one" else 3)
        publisher.do("release", family)
        publisher.do("device add", f"dev-{fleet}", "--fleet", fleet, "--ring", "lab")
        publisher.do("rollout start", fleet, "det", 1, "lab=100", "--family", family)
    assert "releases: det 1 of one, det 1 of two\n" in publisher.do("verify")
    publisher.do("export", "stick", "--fleet", "x")
    publisher.run("verify", "--repository", "stick", "--root", publisher.dir / "root.json", "--fleet", "x")
    for family in ("one", "two"):
        blob = publisher.repository / blob_path(hashlib.sha256(family.encode()).hexdigest())
        data = blob.read_bytes()
        blob.unlink()
        assert f"det 1 of {family}: det/1/model.onnx: the blob " in publisher.refused("verify", status=4)
        blob.write_bytes(data)
    publisher.run("bundle", "det", "--release", 2, "--model", "det", "--family", "two", "--counter", 4, "--version", 1)
    publisher.do("release", "det.2")
    publisher.run("floor", "det", 2, "--family", "two", "--dir", publisher.dir)
    assert "fleet y: det 1 of two is wanted, and below the floor" in publisher.refused("verify", status=4)


def test_published_files_are_readable_whatever_the_umask_is(publisher: Publisher, tmp_path: Path) -> None:
    """A web server is another user: one file with mode 0600 among the others is a 403 for devices."""
    os.umask(0o077)
    publisher.init("--family", "det")
    publisher.release(1)
    publisher.do("rotate", "timestamp", "models-det")
    publisher.do("family", "seg")
    publisher.do("export", tmp_path / "stick", "--fleet", "a", status=2)
    publisher.do("rollout start", "a", "det", 1, "lab=100")
    publisher.do("export", tmp_path / "stick", "--fleet", "a")
    for place in (publisher.dir, publisher.repository, tmp_path / "stick"):
        for path in (place, *([] if place == publisher.dir else place.rglob("*"))):
            assert path.stat().st_mode & 0o055 == (0o055 if path.is_dir() else 0o044), path
    assert os.umask(0o077) == 0o077
    private = [publisher.dir / "keys", *publisher.dir.glob("keys/*"), *publisher.dir.glob("*.json")]
    assert [one.name for one in private if one.stat().st_mode & 0o077] == []


def test_a_file_that_the_web_server_cannot_read_is_repaired_or_named(published: Publisher) -> None:
    published.do("rotate", "timestamp")
    root = published.repository / "metadata/2.root.json"
    root.chmod(0o600)
    published.do("refresh")
    assert root.stat().st_mode & 0o777 == 0o644
    published.do("verify")
    assert published.err == ""
    document = next(published.repository.glob("targets/bundles/det/*"))
    document.chmod(0o600)
    published.do("verify")
    assert (
        f"1 published files, such as {document}, may be read by fewer users than {published.repository}"
        in published.err
    )
    published.repository.chmod(0o700)
    published.do("verify")
    assert published.err == ""


def test_verify_goes_on_while_another_command_publishes(published: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is listed, and renamed or removed before it is looked at."""
    gone = [published.repository / name for name in ("metadata/.timestamp.json.new", "metadata/removed.json")]
    real = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: [*real(self, pattern), *gone])
    assert published.do("verify").endswith("as it should be\n")
    assert published.err == ""


def test_verify_finds_code_that_nothing_approves(fleet: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.model("py", {"config.pbtxt": b'backend: "python"', "1/model.py": b"import os"})
    fleet.run("bundle", "py", "--release", 1, "--model", "py", "--family", "det")
    with monkeypatch.context() as patched:
        patched.setattr("ota.publish.release.find_code", lambda *arguments: [])
        fleet.do("release", "py.1")
    said = fleet.refused("verify", status=4)
    assert "runs as code, and engines does not approve it" in said


@pytest.mark.parametrize("name", ["publish.json", "state.json", "pending.json", "keys/rollout-1.pem"])
@pytest.mark.parametrize("data", [b"", b"{}", b'{"schema": 1, "keys": [{}], "days": {}}', b"\xff\0", b"[" * 100])
def test_damaged_files_of_the_publisher(published: Publisher, name: str, data: bytes) -> None:
    (published.dir / name).write_bytes(data)
    for command in (("rollout start", "a", "det", 1, "x=1"), ("collect",)):
        status = main_status(published, *command)
        assert status or name in ("pending.json", "keys/rollout-1.pem")
        if status:
            one_sentence(published.err)


def main_status(publisher: Publisher, *arguments: object) -> int:
    """Run a command that may fail; its exit status."""
    first, *rest = arguments
    command = ["publish", *str(first).split(), *map(str, rest), "--dir", str(publisher.dir)]
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        status = main(command)
    publisher.err = err.getvalue()
    return status


def test_changes_of_a_stranger_on_the_web_server_are_not_signed(fleet: Publisher) -> None:
    newest = max((fleet.repository / "metadata").glob("*.rollout.json"), key=lambda path: int(path.name.split(".")[0]))
    newest.write_text("{}")
    for path in fleet.repository.glob("targets/rollout/*.a.json"):
        path.write_text("{}")
    assert "was changed" in fleet.refused("rollout halt", "a", "det", status=4)
    fleet.do("rollout halt", "b", "seg")
    trust = device(fleet, "dev", time.time())
    assert b'"paused":true' in trust.document(rollout_target("b"), 10**6)


def test_a_copy_for_usb_has_what_the_fleet_needs(fleet: Publisher, tmp_path: Path) -> None:
    stick = tmp_path / "stick"
    said = fleet.do("export", stick, "--fleet", "a")
    assert said.startswith(f"{stick}: det 1, det 2; 3 blobs, ")
    names = [path.name for path in stick.rglob("*.json")]
    assert any(name.endswith(".dev-a.json") for name in names)
    assert not any("seg" in name or name.endswith((".b.json", ".dev-b.json")) for name in names)
    fleet.run("verify", "--repository", stick, "--root", fleet.dir / "root.json", "--fleet", "a")
    reader = Publisher(tmp_path / "reader")
    reader.base.mkdir()
    shutil.copytree(stick, reader.repository)
    shutil.copy(fleet.dir / "root.json", reader.dir)
    assert device(reader, "dev", time.time()).target(manifest_target("det", "det", 2)) is not None
    fleet.do("rollout halt", "a", "det")
    assert "3 blobs, 0 new bytes" in fleet.do("export", stick, "--fleet", "a")
    assert "there is no fleet c: there is a, b" in fleet.refused("export", tmp_path / "other", "--fleet", "c")
    assert "has other files" in fleet.refused("export", tmp_path, "--fleet", "a")
    assert "is the repository itself" in fleet.refused("export", fleet.repository, "--fleet", "a")
    assert Files(stick).get("metadata/timestamp.json", 10**6)


def test_a_damaged_blob_on_a_stick_is_copied_again(fleet: Publisher, tmp_path: Path) -> None:
    stick = tmp_path / "stick"
    fleet.do("export", stick, "--fleet", "a")
    blob = max((one for one in (stick / "blobs").rglob("*") if one.is_file()), key=lambda one: one.stat().st_size)
    good = blob.read_bytes()
    blob.unlink()  # a hard link to the blob of the repository
    blob.write_bytes(b"X" + good[1:])
    assert f"3 blobs, {len(good)} new bytes" in fleet.do("export", stick, "--fleet", "a")
    assert blob.read_bytes() == good


def test_a_stick_has_several_fleets(fleet: Publisher, tmp_path: Path) -> None:
    stick, root = tmp_path / "stick", fleet.dir / "root.json"
    fleet.do("family", "other")
    fleet.model("new", {"config.pbtxt": CONFIG.replace(b"det", b"new"), "1/model.onnx": b"new"})
    fleet.run("bundle", "new", "--release", 1, "--model", "new", "--family", "other")
    fleet.do("release", "new.1")
    fleet.do("rollout start", "c", "new", 1, "lab=100", "--allow-unknown")
    fleet.do("export", stick, "--fleet", "a")
    fleet.release(3)
    fleet.do("rollout start", "a", "det", 3, "lab=100")
    assert fleet.do("export", stick, "--fleet", "c").startswith(f"{stick} for the fleets a, c: det 2, det 3, new 1; ")
    for name in ("a", "c"):
        fleet.run("verify", "--repository", stick, "--root", root, "--fleet", name)


def test_a_stick_that_is_full(fleet: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("ota.publish.export.shutil.disk_usage", lambda path: usage._replace(free=1000))
    assert "use a larger stick" in fleet.refused("export", tmp_path / "stick", "--fleet", "a", status=5)
    assert not (tmp_path / "stick" / "metadata").exists()
    with monkeypatch.context() as larger:
        larger.setattr("ota.publish.export.shutil.disk_usage", lambda path: usage)
        fleet.do("export", tmp_path / "stick", "--fleet", "a")
    said = fleet.refused("export", tmp_path / "stick", "--fleet", "b", status=5)
    assert "the copy for a and b needs " in said
    assert "or empty this one first" in said


def test_a_restored_backup_continues_from_the_state_of_the_web_server(fleet: Publisher, tmp_path: Path) -> None:
    shutil.copytree(fleet.dir, tmp_path / "backup")
    now = time.time()
    fleet.do("rotate", "timestamp")
    fleet.do("rollout halt", "a", "det")
    fleet.release(3)
    device(fleet, "dev", now)
    shutil.copytree(fleet.repository, tmp_path / "web")
    recover = ("recover", "--repository", tmp_path / "web", "--root", tmp_path / "backup/root.json")
    shutil.copytree(fleet.dir / "keys", tmp_path / "backup/keys", dirs_exist_ok=True)
    shutil.copy(fleet.dir / "root.json", tmp_path / "newest.json")
    shutil.rmtree(fleet.dir)
    shutil.copytree(tmp_path / "backup", fleet.dir)
    stranger = Publisher(tmp_path / "stranger")
    stranger.base.mkdir()
    stranger.init()
    other = ("--root", stranger.dir / "root.json")
    assert "it is another repository" in fleet.refused(*recover[:3], *other, status=4)
    assert fleet.do(*recover[:4], tmp_path / "newest.json").startswith("recovered: root 2, timestamp 12;")
    fleet.do("verify")
    fleet.do("rollout resume", "a", "det")
    assert device(fleet, "dev", now).target(manifest_target("det", "det", 3)) is not None
    assert "is older than what this publisher knows: see rollout, " in fleet.refused(*recover)
    for path in (tmp_path / "web/metadata").glob("*.targets.json"):
        path.unlink()
    assert "targets.json does not exist" in fleet.refused(*recover, status=5)


def test_an_old_state_beside_newer_files_writes_nothing_before_recover(fleet: Publisher, tmp_path: Path) -> None:
    """docs/ota_publish.md: publish.json, state.json and keys/ come back from a backup, and repository/ was not lost."""
    old = {name: (fleet.dir / name).read_bytes() for name in ("publish.json", "state.json", "root.json")}
    now = time.time()
    root = old["root.json"]
    fleet.release(3)
    fleet.do("rollout start", "a", "det", 3, "lab=100")
    fleet.do("refresh")
    seen = device(fleet, "dev", now, root).versions()
    for restored in (old, {**old, "state.json": b""}):
        for name, data in restored.items():
            (fleet.dir / name).write_bytes(data)
            if not data:
                (fleet.dir / name).unlink()
        before = {path: path.read_bytes() for path in fleet.repository.rglob("*") if path.is_file()}
        for command in (("rollout show",), ("refresh",), ("verify",), ("collect",), ("request", "--discard")):
            said = fleet.refused(*command, status=4)
            assert f"'edge-ota publish recover --repository {fleet.repository} --root " in said
        assert before == {path: path.read_bytes() for path in fleet.repository.rglob("*") if path.is_file()}
        fleet.do("recover", "--repository", fleet.repository, "--root", fleet.dir / "root.json")
        fleet.do("verify")
        fleet.release(5 if restored is old else 6)
        fleet.do("rollout start", "a", "det", 5 if restored is old else 6, "lab=100")
        assert device(fleet, "dev", now, root).versions() != seen
    fleet.do("verify")


def test_an_old_state_from_before_new_keys_writes_nothing_either(fleet: Publisher, tmp_path: Path) -> None:
    """The old state cannot verify the newer timestamp before it knows the newer root."""
    old = (fleet.dir / "state.json").read_bytes()
    now, root = time.time(), (fleet.dir / "root.json").read_bytes()
    shutil.copytree(fleet.repository, tmp_path / "web")
    fleet.do("rotate", "timestamp")
    fleet.do("refresh")
    device(fleet, "dev", now, root)
    (fleet.dir / "state.json").write_bytes(old)
    assert "has root 2, " in fleet.refused("rollout show", status=4)
    (tmp_path / "factory.json").write_bytes(root)
    recover = ("recover", "--root", tmp_path / "factory.json", "--repository")
    assert f"{tmp_path / 'web'} has root 1, " in fleet.refused(*recover, tmp_path / "web", status=4)
    fleet.do(*recover, fleet.repository)
    fleet.do("rollout halt", "a", "det")
    assert b'"paused":true' in device(fleet, "dev", now, root).document(rollout_target("a"), 10**6)


def test_a_copy_is_recovered_though_newer_files_are_damaged(fleet: Publisher, tmp_path: Path) -> None:
    """state.json is lost, repository/ lost a file after an upload that never was, and the web server is whole."""
    web, root = tmp_path / "web", fleet.dir / "root.json"
    shutil.copytree(fleet.repository, web)
    now = time.time()
    seen = device(fleet, "dev", now, root.read_bytes()).versions()
    fleet.do("rollout start", "a", "det", 1, "lab=100")
    max(
        (fleet.repository / "metadata").glob("*.snapshot.json"), key=lambda one: int(one.name.partition(".")[0])
    ).unlink()
    (fleet.dir / "state.json").unlink()
    assert "does not exist" in fleet.refused("recover", "--repository", fleet.repository, "--root", root, status=5)
    recover = ("recover", "--repository", web, "--root", root)
    said = fleet.refused(*recover, status=4)
    assert f"or some of them are lost everywhere, move {fleet.repository / 'metadata'} away and repeat" in said
    (fleet.repository / "metadata").rename(tmp_path / "away")
    fleet.do(*recover)
    fleet.do("verify")
    fleet.do("rollout halt", "a", "det")
    assert device(fleet, "dev", now, root.read_bytes()).versions() != seen


def test_devices_that_saw_publications_which_are_lost_follow_after_new_keys(fleet: Publisher, tmp_path: Path) -> None:
    old, now, root = (fleet.dir / "state.json").read_bytes(), time.time(), (fleet.dir / "root.json").read_bytes()
    fleet.do("rollout start", "a", "det", 1, "lab=100")
    fleet.do("refresh")
    device(fleet, "dev", now, root)
    (fleet.dir / "state.json").write_bytes(old)
    said = fleet.refused("rollout halt", "a", "det", status=4)
    assert said.endswith(
        "nothing before 'edge-ota publish rotate timestamp snapshot ROLE...', with each role that changed since"
    )
    (fleet.repository / "metadata").rename(tmp_path / "away")
    fleet.do("rotate", "timestamp", "snapshot", "rollout")
    fleet.do("rollout halt", "a", "det")
    assert b'"paused":true' in device(fleet, "dev", now, root).document(rollout_target("a"), 10**6)


def test_files_that_strangers_signed_are_no_newer_ones(fleet: Publisher, tmp_path: Path) -> None:
    stranger = Publisher(tmp_path / "stranger")
    stranger.base.mkdir()
    stranger.init("--family", "det")
    for _ in range(12):
        stranger.do("refresh")
    stranger.do("rotate", "root")
    for name in ("timestamp.json", "2.root.json"):
        shutil.copy(stranger.repository / "metadata" / name, fleet.repository / "metadata")
    fleet.do("rollout halt", "a", "det")
    (fleet.repository / "metadata/2.root.json").unlink()
    fleet.do("verify")


def test_a_recovery_that_was_interrupted_is_completed(
    fleet: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = tmp_path / "web"
    shutil.copytree(fleet.repository, web)
    shutil.rmtree(fleet.repository / "blobs")
    recover = ("recover", "--repository", web, "--root", fleet.dir / "root.json")

    def cut_off(operation: files.DiskOperation) -> None:
        if operation.kind == "write" and "/blobs/" in operation.path:
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "point", cut_off)
        fleet.refused(*recover, status=5)
    assert [one for one in (fleet.repository / "blobs").rglob("*") if one.is_file() and one.name[0] != "."] == []
    blob = next(one for one in (web / "blobs").rglob("*") if one.is_file())
    torn = fleet.repository / blob.relative_to(web)
    torn.parent.mkdir(parents=True, exist_ok=True)
    torn.write_bytes(blob.read_bytes()[:-1])
    fleet.do(*recover)
    fleet.do("verify")


def test_a_recovery_takes_no_blob_that_changes_after_its_hash_was_checked(
    fleet: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = shutil.copytree(fleet.repository, tmp_path / "web")
    shutil.rmtree(fleet.repository / "blobs")
    recover = ("recover", "--repository", web, "--root", fleet.dir / "root.json")
    blob = next(one for one in (web / "blobs").rglob("*") if one.is_file())
    good = blob.read_bytes()

    def change(operation: files.DiskOperation) -> None:
        if operation.kind == "create" and blob.name in operation.path:
            blob.write_bytes(b"evil")

    with monkeypatch.context() as patched:
        patched.setattr(files, "point", change)
        assert f"{blob} has another SHA-256 than " in fleet.refused(*recover, status=4)
    assert not list((fleet.repository / "blobs").rglob(f"*{blob.name}*"))
    blob.write_bytes(good)
    fleet.do(*recover)
    fleet.do("verify")


def test_a_recovery_takes_only_what_the_metadata_lists(fleet: Publisher, tmp_path: Path) -> None:
    """The web server is not trusted: `rsync -a` keeps its links, and these lead to files of the publisher."""
    web, secret = tmp_path / "web", fleet.dir / "keys/timestamp-1.pem"
    good = shutil.copytree(fleet.repository, tmp_path / "good")
    shutil.move(fleet.repository, web)
    blob = next(one for one in (web / "blobs").rglob("*") if one.is_file())
    document = next((web / "targets/rollout").glob("*.b.json"))
    for planted in (blob.with_name("evil"), web / "targets/notes.txt", blob, document):
        planted.unlink(missing_ok=True)
        planted.symlink_to(secret)
    said = fleet.do("recover", "--repository", web, "--root", fleet.dir / "root.json")
    assert said.endswith("; documents and blobs that the copy lacks or has damaged: 2; go on with 'verify'\n")
    for path in fleet.repository.rglob("*"):
        assert not path.is_symlink()
        assert path.is_dir() or path.stat().st_nlink == 1, "the web server could change it later"
        assert not path.is_file() or path.read_bytes() != secret.read_bytes()
    assert not (fleet.repository / "targets/notes.txt").exists()
    fleet.do("verify", status=4)
    fleet.do("recover", "--repository", good, "--root", fleet.dir / "root.json")
    fleet.do("verify")


@pytest.fixture
def server(published: Publisher) -> Iterator[RepositoryServer]:
    """The web server."""
    with RepositoryServer(("127.0.0.1", 0), published.repository) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def ask(
    server: RepositoryServer, path: str, headers: dict[str, str] | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """Return status, body, and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request("GET", path, headers=headers or {})
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, body, dict(reply.getheaders())


def test_the_server_answers_parts(server: RepositoryServer) -> None:
    sha256 = next(server.repository.glob("blobs/sha256/*/*")).name
    path = blob_path(sha256)
    data = (server.repository / path).read_bytes()
    status, body, headers = ask(server, f"/{path}")
    assert (status, body, headers["ETag"], headers["Accept-Ranges"]) == (200, data, f'"{sha256}"', "bytes")
    assert ask(server, f"/{path}", {"Range": "bytes=3-"})[:2] == (206, data[3:])
    assert ask(server, f"/{path}", {"Range": "bytes=2-4"})[:2] == (206, data[2:5])
    assert ask(server, f"/{path}", {"Range": "bytes=-4"})[:2] == (206, data[-4:])
    assert ask(server, f"/{path}", {"Range": "bytes=3-", "If-Range": '"other"'})[:2] == (200, data)
    assert ask(server, f"/{path}", {"Range": f"bytes={len(data)}-"})[0] == 416
    server.ranges = False
    assert ask(server, f"/{path}", {"Range": "bytes=3-"})[:2] == (200, data)


def test_the_server_shows_the_repository_only(server: RepositoryServer) -> None:
    assert ask(server, "/metadata/timestamp.json")[2]["Cache-Control"] == "no-cache"
    for path in ("/", "/metadata", "/../keys/root-1.pem", "/metadata/../../publish.json", "/metadata/%2e%2e/x", "/x"):
        assert ask(server, path)[0] == 404


def put(server: RepositoryServer, path: str, body: bytes, **headers: str) -> int:
    """PUT; the status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    with contextlib.closing(connection):
        connection.request("PUT", path, body, headers)
        return connection.getresponse().status


def test_the_server_stores_reports_in_the_given_folder(server: RepositoryServer, tmp_path: Path) -> None:
    assert put(server, "/reports/dev-1.abcd.json", b"{}") == 404
    server.reports = tmp_path / "reports"
    assert put(server, "/reports/dev-1.abcd.json", b"{}") == 507, "the directory does not exist"
    server.reports.mkdir()
    assert put(server, "/reports/dev-1.abcd.json", b"{}") == 201
    assert put(server, "/reports/dev-1.abcd.json", b"{2}") == 201
    assert [(one.name, one.read_bytes()) for one in server.reports.iterdir()] == [("dev-1.abcd.json", b"{2}")]
    assert put(server, "/reports/long.json", b"", **{"Content-Length": "600000"}) == 413
    for path in ("/reports/../x.json", "/reports/.x.json", "/reports/a/b.json", "/metadata/timestamp.json", "/x"):
        assert put(server, path, b"{}") == 404
    assert ask(server, "/reports/dev-1.abcd.json")[0] == 404, "reports are for the publisher alone"


def test_a_device_that_disconnects_is_no_error(
    server: RepositoryServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    shut = server.shutdown_request

    def closed(request: socket.socket) -> None:
        shut(request)
        ended.set()

    monkeypatch.setattr(server, "shutdown_request", closed)
    sha256 = "ab" * 32
    path = server.repository / blob_path(sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(100_000_000)  # more than the buffers of two sockets hold
    with socket.create_connection(("127.0.0.1", server.server_address[1]), 10) as device:
        device.sendall(f"GET /{blob_path(sha256)} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        device.recv(1000)
    assert ended.wait(10)
    assert capfd.readouterr().err == ""


def test_serve_runs_until_it_is_stopped(published: Publisher) -> None:
    command = [sys.executable, "-m", "ota", "publish", "serve", "--dir", str(published.dir), "--port", "0"]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        found = re.fullmatch(r"serving .+ at http://127\.0\.0\.1:(\d+)\n", process.stdout.readline())
        assert found
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=10)
        connection.request("GET", "/metadata/1.root.json")
        assert connection.getresponse().read() == (published.dir / "root.json").read_bytes()
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_serve_refuses_a_directory_that_is_none(publisher: Publisher) -> None:
    publisher.run("serve", "--dir", publisher.base, status=2)
    assert "is not a repository" in one_sentence(publisher.err)
    publisher.init()
    assert "name another --bind or --port" in publisher.refused("serve", "--port", 99999)
    assert "name another --bind or --port" in publisher.refused("serve", "--bind", "192.0.2.1")
