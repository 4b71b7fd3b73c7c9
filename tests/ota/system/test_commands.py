"""`edge-ota system` from the publisher to the root side: real commands, keys, and files; the root side is imitated."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ota import files
from ota.cli import main
from ota.layout import StateLayout
from ota.store import garbage
from tests.ota.publish.publisher import Publisher, one_sentence
from tests.ota.system.images import write_image
from tests.ota.system.root_side import ARCH, ImageDevice, root_side


class Fleet:
    """A publisher and one device of the image, which runs version 1."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher, self.base = publisher, publisher.base
        self.image = ImageDevice(self.base / "root")
        publisher.init("--system", "--no-passphrase")
        publisher.do("device add", "dev-1", "--fleet", "plant", "--ring", "prod")
        self.out = self.err = ""
        self.settings: dict[str, object] = {
            "config": "/dev/null", "url": publisher.repository, "root": publisher.dir / "root.json", "device": "dev-1",
            "state-dir": self.base / "state", "floor-copy": self.base / "floors.json", "reserve": 0,
            "model-repository": self.base / "models", "admin-socket": self.base / "admin.sock",
            "system-root": self.image.root, "report-url": "-",
        }  # fmt: skip

    def publish(self, version: int, *flags: object) -> None:
        """Publish a version, and have the fleet want it."""
        self.publisher.do("system", *write_image(self.base / "dist", version, arch=ARCH), *flags)
        self.publisher.do("rollout start", "plant", "system", version, "prod=100")

    def run(self, *arguments: object, status: int = 0) -> str:
        """Run a command on the device; its output."""
        flags = [f"--{name}={value}" for name, value in self.settings.items()]
        out, err = io.StringIO(), io.StringIO()
        first, *rest = map(str, arguments)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            found = main([first, *flags, *rest])
        self.out, self.err = out.getvalue(), err.getvalue()
        assert found == status, f"{found}: {self.out}{self.err}"
        return self.out


@pytest.fixture
def fleet(publisher: Publisher) -> Fleet:
    """A fleet whose publisher has no system yet."""
    return Fleet(publisher)


def test_a_system_moves_from_the_publisher_to_the_root_side(fleet: Fleet) -> None:
    fleet.publish(2)
    assert "system: release 1 serves, 2 is wanted" in fleet.run("check")
    verified: list[str] = []

    def install(request: Mapping[str, Any]) -> Mapping[str, Any]:
        flags = [f"--{name}={value}" for name, value in fleet.settings.items()]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main(["verify-system", *flags, str(request["version"])]) == 0
        verified.append(out.getvalue())
        return {"ok": True}

    with root_side(fleet.image.root, install):
        assert fleet.run("system", "apply") == (
            "system: release 1 serves; 2 is installed, and the device restarts into it\n"
        )
    assert json.loads(verified[0])["version"] == 2
    fleet.image.boots(2, confirmed=[1, 2], previous=1)
    assert fleet.run("system", "apply") == "system: release 2 serves\n"
    assert f"system: edge 2 (base, {ARCH}), good" in fleet.run("system", "status")
    assert "system: release 2 serves (before: 1)" in fleet.run("status")
    assert not list((fleet.base / "state/system").glob("*/*"))


def test_a_run_of_the_timer_updates_the_system(fleet: Fleet) -> None:
    fleet.publish(2)
    with root_side(fleet.image.root) as asked:
        fleet.run("apply", "--scheduled")
    assert asked == [{"op": "install", "version": 2}]


def test_status_shows_the_slots_and_what_failed(fleet: Fleet) -> None:
    fleet.image.boots(1, bad={"2": "the server did not answer"})
    status = {
        "name": "dev-1", "slot": "a", "faults": [{"code": "x", "text": "system 2 failed.", "help": "Publish 3."}],
        "entries": [{"version": "1", "state": "good"}, {"version": "2", "state": "bad", "left": 0}],
        "building": "TensorRT plans of det 17 are built for system 1",
    }  # fmt: skip
    fleet.image.write("run/edge-device/status.json", json.dumps(status))
    assert fleet.run("system", "status").splitlines() == [
        f"system: edge 1 (base, {ARCH}), slot a, good",
        "other slot: edge 2, bad, 0 starts left",
        "models: TensorRT plans of det 17 are built for system 1",
        "failed here: 2: the server did not answer",
        "fault: system 2 failed. Publish 3.",
    ]
    document = json.loads(fleet.run("system", "status", "--json"))
    assert (document["version"], document["slot"], document["bad"]) == (1, "a", {"2": "the server did not answer"})


def test_a_flashed_system_is_not_confirmed_at_once(fleet: Fleet) -> None:
    fleet.image.boots(1, confirmed=[])
    assert fleet.run("system", "status") == f"system: edge 1 (base, {ARCH}), not confirmed yet\n"


def test_rollback_by_an_operator_selects_the_other_slot(fleet: Fleet) -> None:
    with root_side(fleet.image.root, lambda request: {"ok": True, "version": 1, "restarting": True}) as asked:
        fleet.image.boots(2, confirmed=[1, 2], previous=1)
        assert "restarts into 1; 2 is not installed again" in fleet.run("system", "rollback", "--why", "too slow")
    assert asked == [{"op": "rollback"}]
    with root_side(fleet.image.root, lambda request: {"ok": False, "error": "system 2 is the only good one"}):
        fleet.run("system", "rollback", status=8)
    assert "system 2 is the only good one" in one_sentence(fleet.err)
    assert "too slow" in fleet.run("history")


def test_a_factory_reset_needs_the_name_of_the_device(fleet: Fleet) -> None:
    fleet.image.write("run/edge-device/status.json", json.dumps({"name": "dev-1"}))
    with root_side(fleet.image.root) as asked:
        fleet.run("system", "factory-reset", status=2)
        assert "expected that of this device, 'dev-1'" in one_sentence(fleet.err)
        fleet.run("system", "factory-reset", "--name", "dev-2", status=2)
        assert asked == []
        fleet.run("system", "factory-reset", "--name", "dev-1")
    assert asked == [{"op": "factory-reset", "name": "dev-1"}]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("command", [("rollback",), ("factory-reset", "--name", "dev-1")])
def test_a_disk_that_takes_nothing_leaves_the_way_out_to_the_operator(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], number: int
) -> None:
    (fleet.base / "state").mkdir(mode=0o750)
    open_file = os.open

    def refuse(operation: files.DiskOperation) -> None:
        if number == errno.EROFS or operation.kind in ("create", "write"):
            raise OSError(number, os.strerror(number), operation.path)

    def open_to_read(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return open_file(path, flags, *arguments, **options)

    monkeypatch.setattr(files, "point", refuse)
    if number == errno.EROFS:
        monkeypatch.setattr(os, "open", open_to_read)
    with root_side(fleet.image.root) as asked:
        fleet.run("system", *command)
    assert [one["op"] for one in asked] == [command[0]]
    assert os.strerror(number) in fleet.err
    with root_side(fleet.image.root, lambda request: {"ok": False, "error": "system 2 is the only good one"}):
        fleet.run("system", *command, status=8)
    assert "system 2 is the only good one" in fleet.err.splitlines()[-1]


def test_a_full_disk_keeps_no_scheduled_run_from_garbage_collection(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.publish(2)
    with root_side(fleet.image.root):
        fleet.run("apply")
    fleet.image.boots(1, bad={"2": "the server did not answer"})
    (fleet.base / "state/plans").mkdir(exist_ok=True)
    (fleet.base / "state/plans/of-a-model.plan").write_bytes(b"plan")
    collected: list[float] = []
    collect = garbage.collect

    def collect_noted(layout: StateLayout, repository: Path, now: float, *rest: Any) -> Any:
        collected.append(now)
        return collect(layout, repository, now, *rest)

    def refuse(operation: files.DiskOperation) -> None:
        if operation.kind in ("create", "write"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation.path)

    monkeypatch.setattr(garbage, "collect", collect_noted)
    with monkeypatch.context() as full:
        full.setattr(files, "point", refuse)
        fleet.run("apply", "--scheduled")
    assert collected
    assert "No space left on device" in fleet.err
    fleet.run("apply", "--scheduled")
    assert fleet.run("history").count("rolled_back system 2") == 1


def test_another_device_says_what_updates_its_system(fleet: Fleet) -> None:
    fleet.image.write("etc/os-release", "ID=ubuntu\n")
    for action in ("status", "apply", "rollback", "factory-reset"):
        fleet.run("system", action, status=6)
        assert "does not run the device image" in one_sentence(fleet.err)
        assert "package manager" in fleet.err


def test_a_version_that_failed_is_not_retried_by_hand(fleet: Fleet) -> None:
    fleet.run("retry", "system", status=2)
    assert "publish a higher version" in one_sentence(fleet.err)


def test_the_reports_have_the_system(fleet: Fleet, tmp_path: Path) -> None:
    fleet.publish(2)
    fleet.image.boots(1, bad={"2": "the server did not answer"})
    fleet.settings["report-url"] = "http://127.0.0.1:9/{device}.json"  # nothing listens: the report stays here
    with root_side(fleet.image.root) as asked:
        fleet.run("system", "apply")
    assert asked == []
    report = json.loads(next((fleet.base / "state/outbox").glob("0*.json")).read_bytes())["signed"]
    found = report["bundles"]["system"]
    assert (found["release"], found["wanted"], found["result"]) == (1, 2, "failure")
    assert (report["bad"][0]["bundle"], report["bad"][0]["release"]) == ("system", 2)
