"""The agent and the system of its device: what it decides, fetches, and asks for; and what it refuses before that."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ota import files
from ota.agent import status_file
from ota.agent.boot import Boot
from ota.agent.device.identity import load_identity
from ota.agent.operator.plan import PlannedUpdate, plan
from ota.agent.update import Update
from ota.commands.check import shown
from ota.commands.system import operate
from ota.decide.probation import ProbationVerdict
from ota.documents.names import rollout_target, system_target
from ota.documents.report import read_report
from ota.errors import (
    FetchError,
    NoSpace,
    NotInRepository,
    OtaError,
    ServerError,
    StoreError,
    Unsuitable,
    Untrusted,
    WrongBytes,
)
from ota.store import bad, garbage, history, pause
from ota.strict_json import to_canonical_json
from tests.ota.bundles import sha256
from tests.ota.clock import NOW
from tests.ota.device import LATER, Device, hours
from tests.ota.report_server import ReportServer
from tests.ota.system.root_side import ARCH, ImageDevice, root_side

FILES = {"root": ".root", "verity": ".verity", "uki": ".efi"}


class SystemDevice(Device):
    """A device that runs version 1 of the image; the fleet wants version 2."""

    def __init__(self, base: Path, **settings: object) -> None:
        super().__init__(base, system_root=base.parent / "image", **settings)
        self.image = ImageDevice(base.parent / "image")
        self.system: dict[str, Any] = {}

    def publish_system(self, version: int = 2, changed: Mapping[str, object] | None = None) -> None:
        """Sign a version of the system, and have the fleet want it. `changed` replaces members of its document."""
        data = {kind: f"{kind} of {version}".encode() * 100 for kind in FILES}
        self.fetcher.blobs.update((sha256(one), one) for one in data.values())
        files = {
            kind: {"path": f"edge_{version}{FILES[kind]}", "sha256": sha256(one), "bytes": len(one)}
            for kind, one in data.items()
        }
        document = {
            "schema": 1, "product": "edge", "profile": "base", "arch": ARCH, "version": version, "files": files,
            "root_hash": sha256(b""),
        }  # fmt: skip
        target = system_target("edge", "base", ARCH, version)
        self.trust.documents[target] = to_canonical_json({**document, **(changed or {})})
        self.want_system(version)

    def want_system(self, version: int, **members: object) -> None:
        """Change the rollout document."""
        steps = [{"ring": "prod", "percent": 100}]
        self.system = {"product": "edge", "want": version, "steps": steps, **members}
        self.want_nothing_else()

    def want_nothing_else(self) -> None:
        self.serial += 1
        document = {"schema": 1, "fleet": "plant", "serial": self.serial, "models": self.wishes}
        document |= {"system": self.system} if self.system else {}
        self.trust.documents[rollout_target("plant")] = to_canonical_json(document)

    def want(self, bundle: str, release: int, **members: object) -> None:
        super().want(bundle, release, **members)
        if self.system:
            self.want_nothing_else()

    def staged(self) -> list[str]:
        """Return the files that wait for the root side."""
        return sorted(str(one.relative_to(self.layout.system)) for one in self.layout.system.glob("*/*"))

    def waits(self, **options: object) -> str:
        return self.run(**options)["system"].waiting_for

    def fails(self, **options: object) -> OtaError:
        error = self.outcomes(**options)["system"].error
        assert error is not None
        return error

    def events(self) -> list[str]:
        return [str(one["event"]) for one in history.read(self.layout) if one.get("bundle") == "system"]


@pytest.fixture
def device(tmp_path: Path) -> SystemDevice:
    """A device of the image."""
    found = SystemDevice(tmp_path / "device")
    found.publish_system()
    return found


@pytest.fixture
def asked(device: SystemDevice) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the requests to the root side."""
    with root_side(device.image.root) as requests:
        yield requests


def test_a_version_is_staged_and_handed_over(device: SystemDevice, asked: list[Mapping[str, Any]]) -> None:
    assert device.waits() == "2 is installed, and the device restarts into it"
    assert asked == [{"op": "install", "version": 2}]
    assert device.staged() == ["2/edge_2.efi", "2/edge_2.json", "2/edge_2.root", "2/edge_2.verity"]
    assert (device.layout.staged_system(2) / "edge_2.root").read_bytes() == b"root of 2" * 100
    assert device.events() == ["good", "installed", "switching"]
    device.image.boots(2, confirmed=[1, 2], previous=1)
    assert device.waits() == ""
    assert device.staged() == []
    assert device.events()[-1] == "good"


def test_the_status_file_and_the_history_show_the_system(device: SystemDevice, asked: list[Mapping[str, Any]]) -> None:
    device.want_system(2, window=LATER)
    assert "it switches at" in device.waits()
    assert asked == []
    row = json.loads(device.layout.status.read_bytes())["models"]["system"]
    assert (row["release"], row["next"], row["stage"]) == (1, 2, "TESTED")
    assert "it switches at" in row["reason"]
    device.waits(now=True)
    assert asked == [{"op": "install", "version": 2}]
    assert len(device.fetcher.fetched) == 3


def test_a_pause_during_the_download_stops_the_run(
    device: SystemDevice, asked: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(device.tell, "progress", lambda *arguments: pause.write(device.layout, pause.Pause(NOW)))
        assert device.waits() == "updates are paused: 'edge-ota resume'"
    assert (len(device.fetcher.fetched), asked) == (2, [])
    pause.remove(device.layout)
    assert device.waits() == "2 is installed, and the device restarts into it"


def test_the_window_of_the_device_counts_if_the_rollout_has_none(tmp_path: Path) -> None:
    device = SystemDevice(tmp_path / "device", system_window=LATER)
    device.publish_system()
    with root_side(device.image.root) as asked:
        assert f"the system is updated at {LATER}" in device.waits()
        device.want_system(2, window="00:00-00:00")
        device.waits()
    assert asked == [{"op": "install", "version": 2}]


@pytest.mark.parametrize("want", [2, 3])
def test_a_denied_system_is_left_outside_the_hours_of_the_device(tmp_path: Path, want: int) -> None:
    device = SystemDevice(tmp_path / "device", system_window=LATER)
    device.publish_system(want)
    device.image.boots(2, confirmed=[1, 2], previous=1)
    device.want_system(want, previous=1 if want == 2 else 2, deny=[2])
    with root_side(device.image.root) as asked:
        device.waits()
    assert asked == [{"op": "rollback"} if want == 2 else {"op": "install", "version": 3}]


@pytest.mark.parametrize(("window", "ends_inside"), [(hours(-1, 0.1), False), (hours(2, 4), True)])
@pytest.mark.parametrize("setting", [False, True])
def test_the_hours_count_at_the_moment_of_the_installation(
    tmp_path: Path, window: str, ends_inside: bool, setting: bool
) -> None:
    device = SystemDevice(tmp_path / "device", system_window=window if setting else "")
    device.publish_system()
    device.want_system(2, window="" if setting else window)
    device.fetcher.slowly = lambda: device.clock.sleep(3 * 3600)
    with root_side(device.image.root) as asked:
        assert (f"{window} local time" in device.waits()) is not ends_inside
    assert bool(asked) is ends_inside


def test_a_system_that_is_no_longer_wanted_after_its_download_is_not_installed(
    device: SystemDevice, asked: list[Mapping[str, Any]]
) -> None:
    def slowly() -> None:
        device.clock.sleep(3 * 3600)
        device.want_system(2, paused=True)

    device.fetcher.slowly = slowly
    assert device.waits() == "2 was made ready and is no longer wanted: the rollout of release 2 is paused"
    device.fetcher.slowly = lambda: None
    device.waits()
    assert (asked, device.staged()) == ([], [])


def test_an_installation_waits_for_the_network_if_the_metadata_is_old(
    device: SystemDevice, asked: list[Mapping[str, Any]]
) -> None:
    def slowly() -> None:
        device.clock.sleep(3 * 3600)
        device.trust.failure = FetchError("the server is down")

    device.fetcher.slowly = slowly
    assert device.waits() == "2 is ready, and waits for fresh metadata: the server is down"
    assert not asked
    device.trust.failure = None
    assert device.waits() == "2 is installed, and the device restarts into it"


def test_wrong_bytes_are_not_fetched_again_in_each_run(device: SystemDevice, asked: list[Mapping[str, Any]]) -> None:
    device.fetcher.failures = [WrongBytes("the mirror delivered a file with another SHA-256")] * 2
    assert device.fails(by_hand=False).reason == "untrusted"
    assert "the mirror delivered a file with another SHA-256; not tried again before" in device.waits(by_hand=False)
    assert device.fails().reason == "untrusted", "an operator does not wait"
    device.waits()
    assert asked == [{"op": "install", "version": 2}]


def test_a_cut_download_is_continued(device: SystemDevice, asked: list[Mapping[str, Any]]) -> None:
    device.fetcher.failures.append(FetchError("cut off"))
    assert device.fails().reason == "fetch"
    garbage.collect(device.layout, device.repository, NOW + 10**6)
    device.waits()
    assert asked == [{"op": "install", "version": 2}]


def test_files_of_a_download_survive_garbage_collection(device: SystemDevice) -> None:
    device.want_system(2, window=LATER)
    with root_side(device.image.root):
        device.waits()
    garbage.collect(device.layout, device.repository, NOW + 10**9)
    assert all(device.layout.blob(name).exists() for name in list(device.fetcher.blobs)[:3])


@pytest.mark.fault("X2")
def test_models_wait_while_a_system_is_tried(device: SystemDevice, asked: list[Mapping[str, Any]]) -> None:
    device.publish("det", 17)
    device.image.boots(2, confirmed=[1], pending=2)
    found = device.run()
    assert found["det"].waiting_for.startswith("system 2 is being tried")
    assert (found["det"].release, device.server.reloads) == (0, [])
    assert found["system"].release == 2
    assert asked == []
    device.image.boots(2, confirmed=[1, 2], pending=None)
    assert device.run()["det"].release == 17


@pytest.mark.fault("X2")
def test_models_wait_for_a_pending_system_and_its_installation_is_asked_for_again(
    device: SystemDevice, asked: list[Mapping[str, Any]]
) -> None:
    """Also if a bundle is in probation: models wait for the system, so it cannot end first."""
    device.publish("det", 17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "few requests")] * 10**4
    device.run(only=("det",))
    device.image.boots(1, pending=2)
    found = device.run()
    assert found["det"].waiting_for.startswith("system 2 is being installed")
    assert found["system"].waiting_for == "2 is installed, and the device restarts into it"
    assert asked == [{"op": "install", "version": 2}]


def test_a_higher_version_takes_the_place_of_one_that_was_cut_off(
    device: SystemDevice, asked: list[Mapping[str, Any]]
) -> None:
    device.image.boots(1, pending=2)
    device.publish_system(3)
    assert ", 2 is taken back before its restart, 3 is wanted (" in planned_line(device)
    assert device.waits() == "3 is installed, and the device restarts into it"
    assert asked == [{"op": "cancel"}, {"op": "install", "version": 3}]


def test_a_first_boot_blocks_no_models(device: SystemDevice) -> None:
    device.publish("det", 17)
    device.image.boots(1, confirmed=[])
    assert device.run(only=("det",))["det"].release == 17


@pytest.mark.fault("X2")
def test_the_system_waits_for_a_probation(device: SystemDevice, asked: list[Mapping[str, Any]]) -> None:
    device.publish("det", 17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "few requests")] * 10**4
    assert device.run()["system"].waiting_for == "det 17 is in PROBATION; it ends first"
    assert asked == []


@pytest.mark.fault("X2")
def test_a_start_of_a_tried_system_uses_up_no_try_of_a_release(device: SystemDevice) -> None:
    device.publish("det", 17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "few requests")] * 10**4
    device.run(only=("det",))
    left = device.journal().next
    assert left is not None
    device.image.boots(2, confirmed=[1])
    for _ in range(5):
        Boot(device.settings, NOW, lambda text: None).run()
    assert device.journal().next == left
    device.image.boots(1)
    Boot(device.settings, NOW, lambda text: None).run()
    after = device.journal().next
    assert after is not None
    assert after.tries == left.tries - 1


def test_a_version_that_failed_is_remembered_and_the_next_one_is_higher(
    device: SystemDevice, asked: list[Mapping[str, Any]]
) -> None:
    device.publish_system(5)
    device.image.boots(1, bad={"5": "the server did not answer"})
    assert device.waits() == "system 5 failed on this device (the server did not answer): publish a higher version"
    device.publish_system(4)
    assert "4 is lower than 5, which failed" in device.waits()
    assert (asked, device.staged()) == ([], [])
    assert bad.load(device.layout).releases("system") == {5}
    assert device.events().count("rolled_back") == 1
    device.publish_system(6)
    device.waits()
    assert asked == [{"op": "install", "version": 6}]


@pytest.mark.fault("D1")
@pytest.mark.parametrize("wanted", [2, 1])
def test_the_files_of_a_version_that_failed_are_removed(
    device: SystemDevice, asked: list[Mapping[str, Any]], wanted: int
) -> None:
    device.waits()
    assert len(device.staged()) == 4
    device.image.boots(1, bad={"2": "the server did not answer"})
    device.want_system(wanted)
    device.waits()
    assert device.staged() == []
    garbage.collect(device.layout, device.repository, NOW + 10**6)
    assert not any(device.layout.blob(one).exists() for one in device.fetcher.blobs)


def test_staged_files_that_cannot_be_removed_do_not_hide_why_the_system_waits(
    device: SystemDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.image.boots(1, bad={"2": "the server did not answer"})
    device.want_system(2)

    def refuse(path: Path) -> None:
        raise StoreError(f"{path}: Permission denied")

    (device.layout.staged_system(3)).mkdir(parents=True)
    monkeypatch.setattr(files, "remove_tree", refuse)
    assert "system 2 failed on this device (the server did not answer)" in device.waits()
    assert "3: Permission denied" in status_file.read(device.layout)["error"]["message"]


def test_an_older_version_is_refused(device: SystemDevice, asked: list[Mapping[str, Any]]) -> None:
    device.image.boots(3, confirmed=[3])
    assert device.waits() == "system 2 is older than 3, which runs: publish a higher version"
    assert (asked, device.staged()) == ([], [])


def test_a_denied_version_is_rolled_back_to_the_other_good_one(
    device: SystemDevice, asked: list[Mapping[str, Any]]
) -> None:
    device.image.boots(2, confirmed=[1, 2], previous=1)
    device.want_system(2, previous=1, deny=[2])
    assert device.waits().startswith("the device restarts into 1")
    assert asked == [{"op": "rollback"}]


@pytest.mark.parametrize(
    ("want", "members"), [(2, {"pin": {"dev-1": 1}}), (1, {}), (2, {"pin": {"dev-1": 1}, "deny": [3]})]
)
def test_the_version_in_the_other_slot_is_older_unless_the_running_one_is_denied(
    device: SystemDevice, asked: list[Mapping[str, Any]], want: int, members: dict[str, Any]
) -> None:
    """Going back would put the running version on the bad list for good."""
    device.image.boots(2, confirmed=[1, 2], previous=1)
    device.want_system(want, **members)
    why = "system 1 is older than 2, which runs: publish a higher version"
    assert (planned(device), device.waits()) == ((1, why), why)
    device.want_system(2)
    assert (planned(device), device.waits()) == ((2, "it is the wanted release"), "")
    assert asked == []
    device.want_system(want, **{**members, "deny": [2]}, previous=1)
    assert planned(device)[1].startswith("release 2 is denied: ")
    assert device.waits().startswith("the device restarts into 1 (release 2 is denied: ")
    assert asked == [{"op": "rollback"}]


def planned(device: SystemDevice) -> tuple[int, str]:
    """Return the version that `edge-ota plan` names, and why."""
    found = planned_update(device)
    return found.wanted, found.why


def planned_line(device: SystemDevice) -> str:
    """Return the line of `edge-ota plan`."""
    return shown(planned_update(device))


def planned_update(device: SystemDevice) -> PlannedUpdate:
    parts = device.parts()
    return plan(parts, Update(parts).look(), ["system"], detailed=True)[0]


def planned_bundles(device: SystemDevice) -> list[str]:
    parts = device.parts()
    return [one.bundle for one in plan(parts, Update(parts).look(), [], detailed=False)]


def test_a_plan_says_why_no_version_may_run(device: SystemDevice) -> None:
    device.image.boots(2, confirmed=[2])
    device.want_system(2, deny=[2])
    assert planned(device) == (
        0,
        "release 2 is denied: no other release is allowed: publish one",
    )


@pytest.mark.parametrize("members", [{"paused": True}, {"deny": [3]}])
def test_a_version_that_waits_for_its_restart_is_taken_back(device: SystemDevice, members: dict[str, Any]) -> None:
    def answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
        device.image.boots(2, confirmed=[2], previous=None)
        return {"ok": True}

    device.publish_system(3)
    device.publish("det", 17)
    device.image.boots(2, confirmed=[1, 2], previous=1, pending=3)
    device.want_system(3, previous=2, **members)
    with root_side(device.image.root, answer) as asked:
        found = device.run()
        assert (found["system"].waiting_for, asked) == ("", [{"op": "cancel"}])
        assert device.run()["det"].release == 17
    assert (asked, device.events().count("withdrawn")) == ([{"op": "cancel"}], 1)


def test_a_version_that_waits_for_its_restart_is_taken_back_if_the_fleet_has_no_system(device: SystemDevice) -> None:
    def answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
        device.image.boots(1, pending=2 if request["op"] == "install" else None)
        return {"ok": True}

    with root_side(device.image.root, answer) as asked:
        device.waits()
        shutil.rmtree(device.layout.staged_system(2))
        device.system = {}
        device.publish("det", 17)
        device.want_nothing_else()
        gone = "the rollout of this fleet no longer names system"
        assert (planned(device), asked[1:]) == ((0, gone), [])
        assert planned_line(device) == f"system: release 1 serves, 2 is taken back before its restart ({gone})"
        assert (device.waits(), asked[1:]) == (gone, [{"op": "cancel"}])
        assert planned_bundles(device) == ["det"]
        found = device.run()
        assert ({*found}, found["det"].release, len(asked)) == ({"det"}, 17, 2)
        assert status_file.read(device.layout)["models"]["system"]["reason"] == ""


def test_the_files_of_a_version_are_removed_if_the_fleet_has_no_system(
    device: SystemDevice, asked: list[Mapping[str, Any]]
) -> None:
    def slowly() -> None:
        device.clock.sleep(3 * 3600)
        device.system = {}
        device.want_nothing_else()

    device.fetcher.slowly = slowly
    gone = "the rollout of this fleet no longer names system"
    assert device.waits() == f"2 was made ready and is no longer wanted: {gone}"
    assert (len(device.staged()), device.waits()) == (4, gone)
    assert (asked, device.staged(), device.outcomes()) == ([], [], {})


def test_files_whose_document_is_torn_are_removed_if_the_fleet_has_no_system(device: SystemDevice) -> None:
    folder = device.layout.staged_system(3)
    folder.mkdir(parents=True)
    (folder / "edge_3.json").write_bytes(b"torn")
    (folder / "edge_3.root").write_bytes(b"root of 3")
    device.system = {}
    device.want_nothing_else()
    assert device.waits() == "the rollout of this fleet no longer names system"
    assert device.staged() == []


@pytest.mark.parametrize("members", [{}, {"window": LATER}])
def test_a_version_that_is_still_wanted_keeps_waiting(
    device: SystemDevice, asked: list[Mapping[str, Any]], members: dict[str, Any]
) -> None:
    device.image.boots(1, pending=2)
    device.want_system(2, **members)
    device.waits()
    assert {"op": "cancel"} not in asked


@pytest.mark.parametrize(
    ("members", "error", "said"),
    [
        ({"product": "other"}, Untrusted, "under a wrong name"),
        ({"profile": "nvidia"}, Untrusted, "under a wrong name"),
        ({"arch": "riscv64"}, Untrusted, "under a wrong name"),
        ({"version": 3}, Untrusted, "under a wrong name"),
        ({"needs_version": 9}, Unsuitable, "needs version 9"),
        ({"state_schema": 1}, Unsuitable, "reads data of the form 1, and the data partition has 2"),
        ({"schema": 2}, Unsuitable, "update edge-ota first"),
        ({"surprise": 1}, Untrusted, "unknown member 'surprise'"),
        ({"root_hash": "x"}, Untrusted, "expected a SHA-256"),
        ({"files": {}}, Untrusted, "lacks the file 'root'"),
    ],
)
def test_a_document_that_does_not_fit_is_refused(
    device: SystemDevice, asked: list[Mapping[str, Any]], members: dict[str, object], error: type, said: str
) -> None:
    device.image.write("var/lib/edge-device/schema", "2\n")
    device.publish_system(2, {"state_schema": 2, **members})
    found = device.fails()
    assert type(found) is error
    assert said in found.message
    assert (asked, device.staged(), device.fetcher.fetched) == ([], [], [])


def test_a_version_of_another_profile_is_refused(device: SystemDevice, asked: list[Mapping[str, Any]]) -> None:
    device.image.boots(1, profile="nvidia")
    assert f"edge 2 is not published for this device (nvidia, {ARCH})" in device.fails().message
    device.want_system(2, product="other")
    assert "of the product other, and this device has edge" in device.fails().message
    assert asked == []


def test_a_source_that_lacks_the_document_is_no_unpublished_version(
    device: SystemDevice, asked: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = device.trust.document

    def document(path: str, most_bytes: int) -> bytes:
        if path.startswith("system/"):
            raise NotInRepository(f"/media/stick/{path} does not exist")
        return read(path, most_bytes)

    monkeypatch.setattr(device.trust, "document", document)
    found = device.fails()
    assert (type(found), found.permanent) == (NotInRepository, False)
    assert asked == []


def test_a_full_disk_is_reported_before_the_download(
    device: SystemDevice, asked: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(entries: object) -> int:
        raise NoSpace("no space: 300 MB are missing")

    monkeypatch.setattr(device.fetcher, "missing", full)
    assert device.fails().reason == "no_space"
    assert (asked, device.fetcher.fetched) == ([], [])


def test_garbage_that_cannot_be_removed_costs_no_system(
    device: SystemDevice, asked: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def missing(entries: object) -> int:
        calls.append(entries)
        if len(calls) == 1:
            raise NoSpace("no space: 300 MB are missing")
        return 1

    def collect(*arguments: object) -> NoReturn:
        raise StoreError("blobs: Input/output error")

    monkeypatch.setattr(device.fetcher, "missing", missing)
    monkeypatch.setattr(garbage, "collect", collect)
    assert device.waits() == "2 is installed, and the device restarts into it"
    assert asked == [{"op": "install", "version": 2}]
    assert status_file.read(device.layout)["error"]["message"] == "garbage collection: blobs: Input/output error"


def test_the_report_of_an_update_of_the_system_has_the_errors_of_all_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ReportServer() as server:
        device = SystemDevice(tmp_path / "device", report_url=server.url, floor_copy=tmp_path / "floors.json")
        device.facts.identity = load_identity(device.layout.identity)
        device.publish_system()
        device.publish("det", 17)
        device.server.failures = [ServerError("the connection was closed")]
        device.outcomes(only=("det",))
        device.server.up = False
        monkeypatch.setattr("ota.commands.apply.open_components", lambda *arguments, **options: device.parts())
        operate.run(Namespace(action="apply", json=False, now=False), device.settings)
        report = read_report(server.files[server.puts[-1]]).report
    assert capsys.readouterr().out == "system: release 1 serves; det 17 is in SWITCHING; it ends first\n"
    assert report.bundles["det"].reason == "server"


def test_without_a_root_side_nothing_is_fetched(device: SystemDevice) -> None:
    assert "edge-system.socket" in device.fails().message
    assert device.fetcher.fetched == []


def test_another_device_skips_the_system_of_its_fleet(device: SystemDevice) -> None:
    device.publish("det", 17)
    device.image.write("etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
    assert set(device.run()) == {"det"}
    assert "does not run the device image" in device.fails(only=("system",)).message


def test_a_refusal_of_the_root_side_is_shown(device: SystemDevice) -> None:
    refusal = {"ok": False, "error": "the boot partition has 3 MB free and the update needs 44 MB"}
    with root_side(device.image.root, lambda request: refusal):
        found = device.fails()
    assert type(found) is ServerError
    assert found.message == f"the system was not changed: {refusal['error']}"
    assert device.events()[-1] == "refused"
    with root_side(device.image.root) as asked:
        assert "the update needs 44 MB; not tried again before" in device.waits(by_hand=False)
        assert asked == []
        device.clock.seconds += 15 * 60
        device.waits(by_hand=False)
    assert asked == [{"op": "install", "version": 2}]


def test_a_file_that_the_disk_damaged_is_fetched_again(device: SystemDevice) -> None:
    with root_side(device.image.root, lambda request: {"ok": False, "error": "edge_2.root is not the signed file"}):
        device.fails()
        (device.layout.staged_system(2) / "edge_2.root").write_bytes(b"Root of 2" * 100)
        assert "edge_2.root: damaged on this disk" in device.fails().message
    with root_side(device.image.root) as asked:
        device.waits()
    assert device.fetcher.fetched.count("edge_2.root") == 2
    assert asked == [{"op": "install", "version": 2}]


def test_a_file_with_a_block_that_cannot_be_read_is_fetched_again(
    device: SystemDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = files.sha256_of

    def sha256_of(path: Path) -> tuple[str, int]:
        if path.name == "edge_2.root":
            raise StoreError(f"{path}: Input/output error")
        return read(path)

    with root_side(device.image.root, lambda request: {"ok": False, "error": "edge_2.root cannot be read"}):
        monkeypatch.setattr(files, "sha256_of", sha256_of)
        assert "edge_2.root: damaged on this disk" in device.fails().message
    with root_side(device.image.root) as asked:
        device.waits()
    assert device.fetcher.fetched.count("edge_2.root") == 2
    assert asked == [{"op": "install", "version": 2}]


def test_an_answer_that_is_no_json_is_an_error_of_the_unit(device: SystemDevice) -> None:
    with root_side(device.image.root, lambda request: {}):
        assert "the unit gave no reason" in device.fails().message
