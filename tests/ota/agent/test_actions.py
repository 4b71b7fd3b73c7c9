"""The operator's rollback: interrupted, repeated, and without a release that loads."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from ota import files
from ota.agent.operator import actions
from ota.agent.update import BundleOutcome
from ota.decide.probation import ProbationVerdict
from ota.errors import ServerError, StoreError, TrialFailed, UsageError
from ota.files import DiskOperation
from ota.server.admin_client import ServerReload
from ota.store import bad, history, journal
from ota.store.journal import NextRelease, UpdateStage
from tests.ota.bundles import files_of, sha256
from tests.ota.device import Device, device_with


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device that serves release 16 of det, and served 15 before."""
    return device_with(tmp_path, 15, 16)


def roll_back(device: Device) -> int:
    """Roll back. Return the release that serves."""
    return actions.roll_back(device.parts(), "det", "it misses red parts").active


def withdrawn(device: Device) -> list[int]:
    return [one.release for one in bad.load(device.layout).entries if one.reason == "operator"]


class PowerCut(BaseException):
    """The machine ends here."""


def cut_before(path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the power before some content gets its name; the first time only."""
    original: Callable[[DiskOperation], None] = files.point
    cuts: list[int] = []

    def point(operation: DiskOperation) -> None:
        renamed = operation.kind == "rename" and operation.target == str(path)
        if renamed and not cuts and content in Path(operation.path).read_bytes():
            cuts.append(1)
            raise PowerCut
        original(operation)

    monkeypatch.setattr(files, "point", point)


@pytest.mark.fault("C1")
def test_a_rollback_while_edge_serve_is_down_is_finished_by_its_start(device: Device) -> None:
    device.server.failures = [ServerError("no edge-serve answers")]
    with pytest.raises(ServerError):
        roll_back(device)
    device.boot()
    assert device.server.serving == {"det": 15}
    outcome = device.run(by_hand=False)["det"]
    assert (outcome.release, device.server.serving) == (15, {"det": 15})
    assert "operator: rolled back by the operator: it misses red parts" in outcome.waiting_for
    assert (device.journal().active, device.journal().previous, device.journal().next) == (15, 0, None)


def test_a_rollback_while_edge_serve_is_down_is_finished_by_the_next_run(device: Device) -> None:
    device.server.failures = [ServerError("no edge-serve answers")]
    with pytest.raises(ServerError):
        roll_back(device)
    assert device.run(by_hand=False)["det"].release == 15
    assert device.server.serving == {"det": 15}


def test_a_rollback_that_is_repeated_bans_no_other_release(device: Device) -> None:
    device.server.failures = [ServerError("no edge-serve answers")] * 2
    for _ in range(2):
        with pytest.raises(ServerError):
            roll_back(device)
    assert roll_back(device) == 15
    assert withdrawn(device) == [16]
    assert device.server.serving == {"det": 15}
    with pytest.raises(StoreError, match="no release of det before 15 is on this device"):
        roll_back(device)


@pytest.mark.fault("C1")
@pytest.mark.parametrize("content", [b'"stage":"UNDOING"', b'"next":null'])
def test_a_rollback_that_a_power_cut_ends_leads_to_the_older_release(
    device: Device, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    cut_before(device.layout.journal / "det.json", content, monkeypatch)
    with pytest.raises(PowerCut):
        roll_back(device)
    device.boot()
    if device.journal().active == 16:  # the power was cut before the journal had the rollback: the command is repeated
        roll_back(device)
    device.run(by_hand=False)
    assert device.server.serving == {"det": 15}
    assert (device.journal().active, device.journal().previous) == (15, 0), "no way back leads to release 16"


@pytest.mark.fault("C1")
def test_a_rollback_of_a_release_in_probation_that_a_power_cut_ends_is_finished(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.publish(release=17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "")] * 4000
    device.run()
    device.probation.verdicts = []
    cut_before(device.layout.journal / "det.json", b'"stage":"UNDOING"', monkeypatch)
    with pytest.raises(PowerCut):
        roll_back(device)
    device.boot()
    assert device.server.serving == {"det": 16}
    assert device.run(by_hand=False)["det"].release == 16
    assert (device.journal().active, device.journal().next) == (16, None)
    assert withdrawn(device) == [17]


def test_another_variant_than_the_one_that_failed_here_is_not_rolled_back_by_a_start(device: Device) -> None:
    device.publish(release=17, variants=[{"id": one, "kind": "onnx", "priority": 1 + (one == "b")} for one in "ab"])
    device.trial.bad.add(("det", 17))
    with pytest.raises(TrialFailed):
        device.run()
    device.trial.bad.clear()
    known = bad.load(device.layout)
    bad.save(device.layout, bad.BadList(dataclasses.replace(one, fingerprint="") for one in known.entries))
    device.probation.verdicts = [(ProbationVerdict.WAIT, "")] * 4000
    device.run()
    device.boot()
    following = device.journal().next
    assert following is not None
    assert (following.variant, following.stage) == ("b", UpdateStage.PROBATION)


@pytest.mark.fault("L6")
def test_a_rollback_to_a_release_that_does_not_load_changes_nothing(device: Device) -> None:
    device.server.bad.add(("det", 15))
    with pytest.raises(TrialFailed, match="det 15 did not load, so release 16 serves"):
        roll_back(device)
    assert device.server.serving == {"det": 16}
    assert (device.journal().active, device.journal().next) == (16, None)
    assert any("the golden test of det 15 failed; back to release 16" in line for line in device.tell.lines)
    device.boot()
    assert device.run()["det"].release == 16


@pytest.mark.fault("L6")
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_release_that_serves_on_after_its_rollback_failed_is_repaired(device: Device, is_resumed: bool) -> None:
    device.server.bad.add(("det", 15))
    if is_resumed:
        device.server.failures = [ServerError("no edge-serve answers")]
        with pytest.raises(ServerError):
            roll_back(device)
        device.run()
    else:
        with pytest.raises(TrialFailed, match="det 15 did not load"):
            roll_back(device)
    assert (device.server.serving, withdrawn(device)) == ({"det": 16}, [])
    (device.layout.release("det", 16) / "16" / "model.onnx").unlink()
    device.layout.blob(sha256(files_of("det", 16)["16/model.onnx"])).unlink()
    assert device.run()["det"] == BundleOutcome("det", 16)
    assert (device.fetcher.fetched[-1], device.server.serving) == ("16/model.onnx", {"det": 16})


def test_a_failed_rollback_clears_no_failure_of_another_variant(device: Device) -> None:
    device.server.bad.add(("det", 15))
    failed = bad.BadRelease("det", 16, "fp16", "facts-1", "trial", "OUTPUT0 differs", 0.0, permanent=True)
    bad.save(device.layout, bad.load(device.layout).add(failed))
    with pytest.raises(TrialFailed):
        roll_back(device)
    assert [(one.release, one.variant) for one in bad.load(device.layout).entries] == [(16, "fp16"), (15, "")]


@pytest.mark.fault("C6")
def test_a_bundle_whose_journal_is_torn_is_rolled_back(device: Device) -> None:
    journal.path_of(device.layout, "det").write_bytes(b"torn")
    assert actions.retry(device.layout, "det", 0, 0.0) == 0
    assert roll_back(device) == 15
    assert (device.server.serving, withdrawn(device)) == ({"det": 15}, [16])
    with pytest.raises(UsageError, match="there is no bundle 'seg' on this device; there are: det"):
        actions.roll_back(device.parts(), "seg", "")


@pytest.mark.parametrize("is_good", [False, True])
def test_the_only_release_is_rolled_back_only_if_the_operator_insists(tmp_path: Path, is_good: bool) -> None:
    device = Device(tmp_path)
    device.publish(release=1)
    device.probation.verdicts = [] if is_good else [(ProbationVerdict.WAIT, "")] * 4000
    device.run()
    device.probation.verdicts = []
    with pytest.raises(
        StoreError, match=r"no release of det before 1 .* or have none serve with 'edge-ota rollback --yes'"
    ):
        roll_back(device)
    assert (device.server.serving, withdrawn(device)) == ({"det": 1}, [])
    assert actions.roll_back(device.parts(), "det", "", serve_none=True).active == 0
    assert (device.server.serving, withdrawn(device)) == ({}, [1])
    assert device.run(by_hand=False)["det"].release == 0
    with pytest.raises(StoreError, match="no release of det serves, so nothing is rolled back"):
        roll_back(device)
    actions.retry(device.layout, "det", 0, 0.0)
    assert (device.run()["det"].release, device.server.serving) == (1, {"det": 1})


def test_an_interrupted_rollback_to_none_is_continued_without_a_question(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.publish(release=1)
    device.run()
    device.server.failures = [ServerError("no edge-serve answers")]
    with pytest.raises(ServerError):
        actions.roll_back(device.parts(), "det", "", serve_none=True)
    assert roll_back(device) == 0
    assert device.server.serving == {}


def test_a_release_that_was_installed_again_and_is_in_probation_is_rolled_back_to_the_one_before(
    device: Device,
) -> None:
    journal.write(
        device.layout, dataclasses.replace(device.journal(), next=NextRelease(16, "onnx", UpdateStage.PROBATION, 3, 0))
    )
    assert roll_back(device) == 15
    assert (device.server.serving, withdrawn(device)) == ({"det": 15}, [16])


def test_the_history_has_a_rollback(device: Device) -> None:
    roll_back(device)
    found = [(one["event"], one["release"], one["reason"]) for one in history.read(device.layout)[-2:]]
    assert found == [("bad", 16, "operator"), ("rolled_back", 16, "operator")]


def interrupted(device: Device) -> None:
    """Begin a rollback while edge-serve is down, and lose a file of the older release."""
    device.server.failures = [ServerError("no edge-serve answers")]
    with pytest.raises(ServerError):
        roll_back(device)
    (device.layout.release("det", 15) / "15/model.onnx").unlink()


@pytest.mark.fault("L6", "D6")
def test_a_repeated_rollback_to_a_damaged_release_bans_that_one(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reload(models: Sequence[str], **options: object) -> Mapping[str, ServerReload]:
        if os.readlink(device.repository / "det").endswith("/15"):
            return {"det": ServerReload(("16",), "no file model.onnx")}
        return {"det": ServerReload(("16",))}

    interrupted(device)
    monkeypatch.setattr(device.server, "reload", reload)
    with pytest.raises(TrialFailed, match="det 15 did not load, so release 16 serves"):
        roll_back(device)
    assert device.journal().active == 16
    assert [(one.release, one.reason) for one in bad.load(device.layout).entries] == [(15, "trial")]


@pytest.mark.fault("L6", "D6")
@pytest.mark.parametrize("is_started", [False, True])
def test_a_release_that_a_repair_keeps_is_not_withdrawn(device: Device, is_started: bool) -> None:
    interrupted(device)
    if is_started:
        device.boot()
    assert device.run(by_hand=False)["det"].release == 16
    assert device.server.serving == {"det": 16}
    assert withdrawn(device) == []
    (device.layout.release("det", 16) / "16/model.onnx").unlink()
    assert device.run()["det"].release == 16, "it is installed again"
    assert device.server.serving == {"det": 16}
