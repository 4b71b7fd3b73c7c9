"""Plans for a new system: built beside the old ones, served by the system that they are for, and removed at last."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ota import files
from ota.agent import status_file
from ota.agent.boot import Boot
from ota.agent.components import Components
from ota.agent.plan_builder import PlanBuilder
from ota.agent.system import plans as system_plans
from ota.agent.system.plans import SystemPlans
from ota.agent.system.state import open_layout
from ota.documents.names import code_target
from ota.errors import NoSpace, ServerError
from ota.layout import StateLayout
from ota.server.admin_client import ServerReload
from ota.server.build import BuildRequest, UnitBuild
from ota.store import garbage, history, links, releases, scrub
from ota.store.journal import UpdateStage
from tests.ota.bundles import sha256
from tests.ota.clock import NOW
from tests.ota.device import LATER, Device, FakeServer
from tests.ota.powercut import Disk, crash_states, put, recorded
from tests.ota.system.root_side import ImageDevice

CONFIG = b'platform: "tensorrt_plan"\n'
STAND_IN = Path(__file__).parents[1] / "server/edge_serve_build.py"


class PlanServer(FakeServer):
    """Loads plans of its own TensorRT only."""

    tensorrt = ""

    def restart(self) -> None:
        """Load all models that it can load."""
        self.serving = {}
        self.reload([one.name for one in self.repository.iterdir() if one.name[0] != "."])

    def _load(self, model: str, unload_first: bool) -> ServerReload:
        plans = [one.read_bytes() for one in (self.repository / model).glob("*/*.plan")]
        if not all(one.startswith(f"TensorRT {self.tensorrt}: ".encode()) for one in plans):
            self.serving.pop(model, None)
            return ServerReload((), "the plan is not compatible with this version of TensorRT")
        return super()._load(model, unload_first)


class PlanDevice(Device):
    """A device of the image, which runs version 1 with TensorRT 10.1. Its plans and its server know their TensorRT."""

    def __init__(self, base: Path) -> None:
        super().__init__(base / "device", system_root=base / "image")
        self.image = ImageDevice(base / "image")
        self.server: PlanServer = PlanServer(self.repository)
        self.program, self.known, self.asked = base / "edge-serve", {"arch": "x86_64"}, 0
        self.boots(1, "10.1")

    def boots(self, version: int, tensorrt: str, **record: object) -> None:
        """Start a system: its boot step, and its server."""
        self.image.boots(version, "", **record)
        self.program.write_text(f'#!/bin/sh\nSTAND_IN_TENSORRT={tensorrt} exec {sys.executable} {STAND_IN} "$@"\n')
        self.program.chmod(0o755)
        self.known["tensorrt"] = self.server.tensorrt = tensorrt
        self.layout = open_layout(self.settings)
        Boot(self.settings, NOW, self.tell).run()
        self.server.restart()

    def facts_of_system(self) -> Mapping[str, str]:
        self.asked += 1
        return self.known

    def builder(self) -> PlanBuilder:
        builds = UnitBuild("", str(self.program), self.layout.plans / "made")
        return PlanBuilder(self.layout, builds, self.facts_of_system)

    def parts(self) -> Components:
        return replace(super().parts(), builder=self.builder())

    def release(self, number: int = 17, bundle: str = "det", content: str = "graph", **members: object) -> None:
        """Publish a release with a plan to build."""
        onnx, plan = f"{number}/model.onnx", f"{number}/model.plan"
        variant = {
            "id": "build", "kind": "onnx-build", "priority": 1,
            "build": [{"model": bundle, "onnx": onnx, "plan": plan, "options": ["--fp16"]}],
        }  # fmt: skip
        self.trust.documents[code_target("vision", sha256(CONFIG))] = CONFIG
        found = {"config.pbtxt": CONFIG, onnx: f"{content} of {bundle} {number}".encode()}
        self.publish(bundle, number, {bundle: found}, variants=[variant])
        self.want(bundle, number, **members)

    def prepare(self) -> None:
        """Run edge-plans.service."""
        SystemPlans(self.settings, self.builder(), self.server, self.clock, self.tell).prepare()

    def builds(self) -> int:
        """Return how many plans were built until now."""
        return len((self.layout.plans / "made/builds.log").read_text().splitlines())

    def events(self) -> list[str]:
        return [str(one["event"]) for one in history.read(self.layout)]

    def named(self, model: str = "det") -> str:
        """Return the directory that the link of a model names."""
        return Path(os.readlink(self.repository / model)).name

    def status(self) -> Mapping[str, object]:
        found: Mapping[str, object] = status_file.read(self.layout)
        return found


@pytest.fixture
def device(tmp_path: Path) -> PlanDevice:
    """A device that serves release 17 under system 1."""
    found = PlanDevice(tmp_path)
    found.release()
    found.run()
    assert (found.server.serving, found.builds()) == ({"det": 17}, 1)
    return found


@pytest.mark.fault("X2")
def test_a_new_system_builds_its_plan_and_a_fall_back_serves_the_old_one_at_once(device: PlanDevice) -> None:
    device.boots(2, "10.9", confirmed=[1], pending=2)
    assert device.server.serving == {}, "the old plan does not load"
    device.prepare()
    assert (device.server.serving, device.named(), device.builds()) == ({"det": 17}, "17@2", 2)
    assert device.events()[-1] == "built"
    assert (device.status()["state"], device.status()["building"]) == ("idle", "")
    device.boots(2, "10.9")
    assert device.server.serving == {"det": 17}, "the next start needs no build"
    device.boots(1, "10.1", bad={"2": "it was worse"}, pending=None)
    assert (device.server.serving, device.named()) == ({"det": 17}, "17")
    device.prepare()
    assert device.builds() == 2


def test_a_fall_back_to_a_system_whose_agent_knows_no_copies_serves_the_old_plan(device: PlanDevice) -> None:
    device.boots(2, "10.9", confirmed=[1], pending=2)
    device.prepare()
    old = StateLayout(device.layout.state_dir)
    assert links.apply(old, device.repository, {"det": 17}) == ["det"]
    assert device.named() == "17"
    assert list(scrub.scrub(old, [("det", 17)])) == []


def test_the_same_tensorrt_builds_nothing_and_changes_no_link(device: PlanDevice) -> None:
    device.boots(2, "10.1", confirmed=[1], pending=2)
    before = device.server.reloads[:]
    device.prepare()
    assert (device.builds(), device.named(), device.server.reloads) == (1, "17", before)


def test_a_device_that_is_not_of_the_image_builds_nothing(device: PlanDevice) -> None:
    device.image.write("etc/os-release", "ID=debian\n")
    device.prepare()
    assert device.asked == 1, "the build of the release asked"


def test_a_build_that_fails_is_shown_and_leaves_the_old_plan(device: PlanDevice) -> None:
    device.release(18, "seg", "not for 10.9")
    device.run()
    device.boots(2, "10.9", confirmed=[1], pending=2)
    device.prepare()
    assert device.server.serving == {"det": 17}, "the other model has its plan"
    assert "TensorRT 10.9 has no such operator" in str(device.status()["models"]["seg"]["reason"])  # type: ignore[index]
    assert device.status()["error"]["reason"] == "trial"  # type: ignore[index]
    assert device.events()[-1] == "failed"
    assert device.named("seg") == "18"
    device.boots(1, "10.1")
    assert device.server.serving == {"det": 17, "seg": 18}


def test_a_plan_that_fails_its_golden_test_is_an_error(device: PlanDevice) -> None:
    device.boots(2, "10.9", confirmed=[1], pending=2)
    device.server.bad = {("det", 17)}
    device.prepare()
    assert "the golden test of det 17 failed" in str(device.status()["models"]["det"]["reason"])  # type: ignore[index]


def test_a_server_that_does_not_answer_loads_the_plan_when_it_starts(device: PlanDevice) -> None:
    device.boots(2, "10.9", confirmed=[1], pending=2)
    device.server.failures = [ServerError("no edge-serve answers")]
    device.prepare()
    assert "it loads the plans when it starts" in device.tell.lines[-1]
    device.boots(2, "10.9")
    assert device.server.serving == {"det": 17}


def test_the_release_before_follows_when_the_system_is_confirmed(device: PlanDevice) -> None:
    device.release(18)
    device.run()
    device.boots(2, "10.9", confirmed=[1], pending=2)
    device.prepare()
    assert device.builds() == 3, "18 serves; 17 waits"
    device.boots(2, "10.9", confirmed=[1, 2], pending=None, previous=1)
    device.prepare()
    assert device.builds() == 4
    asked = device.asked
    device.prepare()
    assert device.asked == asked, "a system for which all was built asks for no facts"
    assert sorted(releases.copies(device.layout, "det", 17)) == [2]


def test_a_system_that_is_tried_lets_the_one_before_look_again(device: PlanDevice) -> None:
    device.prepare()
    assert device.layout.plans_system.read_text() == "1"
    device.boots(2, "10.9", confirmed=[1], pending=2)
    device.prepare()
    assert not device.layout.plans_system.exists()
    device.image.boots(2, confirmed=[1, 2], pending=None, previous=1)
    device.release(18)
    device.run()
    device.boots(1, "10.1", confirmed=[1], bad={"2": "an operator went back"})
    device.prepare()
    assert device.server.serving == {"det": 18}


def test_a_device_without_plans_is_left_alone(tmp_path: Path) -> None:
    device = PlanDevice(tmp_path)
    device.publish("det", 17)
    device.run()
    device.prepare()
    assert not device.layout.plans_system.exists()


def test_old_plans_go_when_no_system_is_left_that_serves_them(device: PlanDevice) -> None:
    plan = device.layout.release("det", 17) / "17/model.plan"
    device.boots(2, "10.9", confirmed=[1, 2], previous=1)
    device.prepare()
    assert plan.exists(), "system 1 is the fall back"
    device.boots(3, "11.0", confirmed=[2], previous=None, pending=3)
    device.prepare()
    assert (device.named(), plan.exists()) == ("17@3", True)
    device.boots(3, "11.0", confirmed=[2, 3], previous=2, pending=None)
    device.prepare()
    assert not plan.exists()
    assert sorted(releases.copies(device.layout, "det", 17)) == [2, 3]
    assert device.run()["det"].release == 17
    device.boots(4, "11.0", confirmed=[3, 4], previous=3, pending=None)
    device.prepare()
    assert sorted(releases.copies(device.layout, "det", 17)) == [3, 4]
    assert (device.server.serving, device.builds()) == ({"det": 17}, 3)


def test_a_release_of_the_new_system_gets_plans_of_the_one_before_after_a_rollback(device: PlanDevice) -> None:
    device.boots(2, "10.9", confirmed=[1, 2], previous=1)
    device.release(18)
    device.run()
    device.boots(1, "10.1", confirmed=[1], bad={"2": "an operator went back"}, previous=None)
    assert device.server.serving == {}
    device.prepare()
    assert (device.server.serving, device.named()) == ({"det": 18}, "18@1")


def test_a_release_that_waits_for_its_hours_is_built_and_tested_again(device: PlanDevice) -> None:
    device.release(18, window=LATER)
    device.run()
    assert device.journal().next.stage is UpdateStage.TESTED  # type: ignore[union-attr]  # it waits
    device.boots(2, "10.9", confirmed=[1, 2], previous=1)
    device.prepare()
    assert device.journal().next.stage is UpdateStage.INSTALLED  # type: ignore[union-attr]  # it waits
    device.run(now=True)
    assert device.server.serving == {"det": 18}


def test_a_release_that_waits_is_tested_once_more_under_the_only_system_that_is_not_healthy(device: PlanDevice) -> None:
    device.release(18, window=LATER)
    device.run()
    device.boots(2, "10.9", confirmed=[1], pending=None)
    for _ in range(3):
        device.prepare()
        device.run()
    assert device.events().count("tested") == 3, "17 and 18 under system 1, 18 under system 2"
    device.boots(2, "10.9", confirmed=[2], pending=None)
    device.prepare()
    assert device.layout.plans_system.read_text() == "2", "old plans are removed"


def test_copies_stay_with_their_release_and_are_repaired_with_it(device: PlanDevice) -> None:
    device.boots(2, "10.9", confirmed=[1], pending=2)
    device.prepare()
    garbage.collect(device.layout, device.repository, NOW + 10**9)
    copy = device.layout.release_copy("det", 17, 2)
    record = releases.read_record(copy)
    assert record is not None
    (copy / "config.pbtxt").write_bytes(b"damaged")
    blob = device.layout.blob(record.files["config.pbtxt"][0])
    blob.unlink()
    blob.write_bytes(CONFIG)
    releases.repair(device.layout, record, "config.pbtxt")
    assert files.sha256_of(copy / "config.pbtxt") == record.files["config.pbtxt"]
    assert list(scrub.scrub(device.layout, [("det", 17)])) == []
    journal_path = device.layout.journal / "det.json"
    journal_path.unlink()
    (device.repository / "det").unlink()
    files.remove_tree(device.layout.release("det", 17))
    garbage.collect(device.layout, device.repository, NOW + 10**9)
    assert not copy.exists()


def test_a_copy_of_another_content_is_not_served(device: PlanDevice) -> None:
    device.boots(2, "10.9", confirmed=[1], pending=2)
    device.prepare()
    (device.layout.release_copy("det", 17, 2) / "17/model.plan").unlink()
    device.boots(2, "10.9")
    assert device.named() == "17"
    device.prepare()
    assert (device.named(), device.server.serving, device.builds()) == ("17@2", {"det": 17}, 2)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[BuildRequest]:
    """Return the requests for builds, as they come."""
    found: list[BuildRequest] = []
    run = UnitBuild.run

    def noted(builds: UnitBuild, request: BuildRequest) -> tuple[Path, float]:
        found.append(request)
        return run(builds, request)

    monkeypatch.setattr(UnitBuild, "run", noted)
    return found


def test_all_builds_together_have_a_limit(
    device: PlanDevice, requests: list[BuildRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    device.boots(2, "10.9", confirmed=[1], pending=2)
    monkeypatch.setattr(system_plans, "MOST_SECONDS", 60.0)
    device.prepare()
    assert [one.limit for one in requests] == [60.0]


def test_a_full_disk_is_cleaned_and_the_build_repeated(device: PlanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    device.boots(2, "10.9", confirmed=[1], pending=2)
    make, failures = PlanBuilder.make, [NoSpace("no space")]

    def full(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return make(*arguments)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(PlanBuilder, "make", full)
    device.prepare()
    assert device.server.serving == {"det": 17}


@pytest.mark.fault("X2")
@pytest.mark.parametrize(
    "step", [pytest.param(9, id="some-states"), pytest.param(1, id="every-state", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("confirmed", [(1,), (1, 2), (2,)], ids=["tried", "confirmed", "only"])
def test_after_each_power_cut_both_systems_serve(
    device: PlanDevice, tmp_path: Path, confirmed: tuple[int, ...], step: int
) -> None:
    device.boots(2, "10.9", confirmed=list(confirmed))
    before, found = tmp_path / "before", 0
    shutil.copytree(device.root, before, symlinks=True)
    with recorded(device.layout.status) as operations:
        device.prepare()
    shutil.rmtree(device.root)
    shutil.copytree(before, device.root, symlinks=True)
    for _, tree in itertools.islice(crash_states(device.root, operations, Disk(device.root)), None, None, step):
        put(tree, device.root)
        if 1 in confirmed:
            device.boots(1, "10.1")
            assert (device.server.serving, device.named()) == ({"det": 17}, "17")
        device.boots(2, "10.9")
        device.prepare()
        assert device.server.serving == {"det": 17}
        assert list(scrub.scrub(device.layout, [("det", 17)])) == []
        found += 1
    assert found * step > 30
