"""The commands of a device, with a real publisher and a real edge-serve."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ota import files
from ota.files import DiskOperation
from ota.layout import StateLayout
from ota.store.lock import acquire_lock
from tests.ota.report_server import ReportServer
from tests.ota.site import ENVIRONMENT, Site, site

pytestmark = pytest.mark.slow  # the whole way of a release, with a server


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A device that serves release 1 of det. Each test leaves it with a release that serves."""
    base = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.chdir(base)
        with site(base, ENVIRONMENT) as found:
            found.publish(1)
            found.run("apply")
            yield found


def test_the_way_of_a_release(device: Site) -> None:
    assert device.serving() == "1"
    device.publish(2)
    assert device.run("check") == ("det: release 1 serves, 2 is wanted (the steps of release 2 include this device)\n")
    (planned,) = device.json("plan")
    assert (planned["wanted"], planned["variant"], planned["missing_bytes"] > 0) == (2, "default", True)
    assert device.serving() == "1"
    assert device.run("apply") == "det: release 2 serves\n"
    assert "det 2: testing" in device.err
    assert device.serving() == "2"
    assert device.run("check") == "det: release 2 serves, nothing to do (it is the wanted release)\n"
    explained = device.run("explain", "det")
    assert device.json("status")["state"] == "idle"
    assert "variant default: fits" in explained
    assert "edge_serve = " in explained
    device.publish(3, "raise ValueError('no weights')")
    device.run("apply", status=7)
    assert "edge-ota: det: det: " in device.err
    assert "no weights" in device.err
    assert device.serving() == "2"
    assert "det: release 2 serves (before: 1); release 3 failed here (trial)\n" in device.run("status")
    assert "'edge-ota retry det' tries it again" in device.run("apply")
    assert "failed here: det 3 default: trial: " in device.run("status")
    assert [one["event"] for one in device.json("history")][-1] == "bad"
    assert device.run("retry", "det", "--release", "3").startswith("1 failure cleared;")
    assert device.run("rollback", "det", "--why", "it is slow") == "det: release 1 serves\n"
    assert device.serving() == "1"
    assert "operator: rolled back by the operator: it is slow" in device.run("status")
    device.want(2)
    assert "operator" in device.run("apply")
    assert device.serving() == "1"


def test_bits_that_rot_are_found_and_repaired(device: Site) -> None:
    assert "no damaged files" in device.run("verify")
    (file,) = (device.models / "det").glob("*/model.py")
    good = file.read_bytes()
    file.write_bytes(good.replace(b"a + b", b"a * b"))
    device.run("verify", status=5)
    assert "model.py: has the SHA-256" in device.out
    assert "'edge-ota verify --repair' fetches them again" in device.err
    assert device.json("verify", status=5)["damage"][0]["model"] == "det"
    parts = [file.parent / ".model.py.new", file.parent / ".other.py.new"]  # repairs that a power cut ended
    for part in parts:
        part.write_bytes(good[:9])
    assert "no damaged files" in device.run("verify", "--repair")
    assert file.read_bytes() == good
    assert not any(part.exists() for part in parts)


def test_a_pause_is_shown_with_the_command_that_ends_it(device: Site) -> None:
    device.run("pause", "--why", "the line is inspected")
    assert "nothing to do" not in device.run("apply")
    assert "updates are paused (the line is inspected): 'edge-ota resume'" in device.err
    assert "paused: the line is inspected: 'edge-ota resume' lets updates go on" in device.run("status")
    assert device.json("status")["paused"]["why"] == "the line is inspected"
    assert "updates go on" in device.run("resume")
    assert device.run("resume") == "updates were not paused\n"
    assert device.json("status")["paused"] is None


def test_a_pause_does_not_wait_for_a_run(device: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ota.agent.operator.actions._PATIENCE", 0.0)
    with acquire_lock(StateLayout(device.state), "apply"):
        assert "updates are paused" in device.run("pause", "--why", "the line is inspected")
        assert device.err == "a run is at work: it ends before its next step; the history lacks this pause\n"
        assert device.json("status")["paused"]["why"] == "the line is inspected"
        assert "updates go on" in device.run("resume")
        device.run("rollback", "det", status=9)
        assert "systemctl stop edge-ota" in device.err


@pytest.mark.fault("X1")
def test_a_release_on_a_stick_passes_the_same_checks(device: Site) -> None:
    """A copy of the repository, without any web server."""
    device.publish(7)
    stick = device.base / "stick"
    shutil.copytree(device.publisher.repository, stick)
    (outcome,) = json.loads(device.run("import", stick, "--json", url=None))
    assert outcome == {"bundle": "det", "release": 7, "waiting_for": "", "error": None}
    assert device.serving() == "7"
    device.publish(8)
    device.run("check")
    device.run("import", stick, status=4, url=None)  # stale: this device has seen newer metadata
    assert "older" in device.err or "old state" in device.err
    (stick / "metadata" / "timestamp.json").write_bytes(b"{}")
    device.run("import", stick, status=4, url=None)
    device.run("import", device.base / "nothing", status=3, url=None)
    assert "expected a directory made by 'edge-ota publish export'" in device.err
    assert device.serving() == "7"


def test_garbage_is_collected(device: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(operation: DiskOperation) -> None:
        if operation.path == str(old):
            raise OSError(errno.EIO, "Input/output error", operation.path)

    old = device.state / "releases" / "old" / "1"
    old.mkdir(parents=True)
    os.utime(old, (1, 1))
    with monkeypatch.context() as patched:
        patched.setattr(files, "point", refuse)
        assert device.json("gc", status=5)["failures"] == [f"{old}: Input/output error"]
    assert device.err == f"edge-ota: {old}: Input/output error\n"
    found = device.json("gc")
    assert str(old) in found["paths"]
    assert found["failures"] == []
    assert device.serving() == "7"


def test_a_wrong_word_or_a_device_that_is_not_set_up_is_one_sentence(device: Site) -> None:
    device.run("rollback", "dat", status=2)
    assert device.err == "edge-ota: there is no bundle 'dat' on this device; there are: det\n"
    device.run("explain", "dat", status=2)
    device.run("apply", "--config", "nothing.conf", status=2)
    assert device.err.startswith("edge-ota: --config: nothing.conf does not exist; expected lines such as")
    device.run("apply", status=2, root="/nowhere/root.json")
    assert device.err.startswith(
        "edge-ota: /nowhere/root.json does not exist, so nothing can be verified: copy root.json"
    )
    device.run("apply", status=2, url=None)
    assert "URL is not set" in device.err
    with acquire_lock(StateLayout(device.state), "apply"):
        device.run("gc", status=9)
        assert "'edge-ota apply' (process" in device.err
        device.run("status")
    assert "never ran here" in device.run("status", state_dir="/nowhere/state")


def test_without_a_server_nothing_is_switched_and_the_error_says_so(device: Site, tmp_path: Path) -> None:
    device.publish(9)
    before = device.serving()
    device.run("apply", status=8, admin_socket=tmp_path / "none.sock")
    assert "nothing was switched: start it" in device.err
    assert device.serving() == before
    assert "9 is TESTED: the last try failed (server), and the next run tries again" in device.run("status")
    device.run("apply")
    assert device.serving() == "9"


def test_reports_reach_the_publisher(device: Site, tmp_path: Path) -> None:
    with ReportServer(status=503) as server:
        device.run("apply", report_url=server.url)
        assert "the report waits for the next run" in device.err
        assert "HTTP 503" in device.err
        assert "reports: 1 are waiting" in device.run("status")
        server.status = 204
        device.run("apply", report_url=server.url)
        assert device.json("status")["reports_waiting"] == 0
        (name,) = {path.rpartition("/")[2] for path in server.puts}
        (tmp_path / name).write_bytes(server.files[server.puts[-1]])
    serves = device.serving()
    report = ("report", tmp_path, "--fleet", "plant")
    assert "was added without --key: dev-1" in device.publisher.do(*report)
    key = device.state / "identity" / "device.pub"
    assert f"device: dev-1, key {device.json('status')['fingerprint']}" in device.run("status")
    device.publisher.do("device add", "dev-1", "--fleet", "plant", "--ring", "prod", "--key", key, "--change")
    assert device.publisher.do(*report).splitlines()[:2] == [
        "1 devices, 1 reported in the last 48 h",
        f"det: 1 run {serves}",
    ]
    step = ("rollout step", "plant", "det", "prod=100", "--reports", tmp_path)
    assert "have been good for 24 h, expected 95 %" in device.publisher.refused(*step, status=10)
    device.publisher.do(*step, "--soak", "0")
