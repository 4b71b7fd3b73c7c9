"""The line of an update, with real files and fakes around them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ota import files
from ota.agent.operator import actions
from ota.agent.operator.plan import plan
from ota.agent.rollout import FRESH_SECONDS
from ota.agent.update import Update
from ota.decide.probation import ProbationVerdict
from ota.errors import (
    FetchError,
    NoBuildUnit,
    NoSpace,
    NotHeld,
    Occupied,
    OtaError,
    ServerError,
    TrialFailed,
    Unsuitable,
    Untrusted,
    UsageError,
    WrongBytes,
)
from ota.fetch.blobs import BlobFetcher
from ota.files import DiskOperation
from ota.server.admin_client import ServerReload
from ota.server.trial import UnitTrial
from ota.store import bad, history, pause, releases
from ota.store.bad import FIRST_WAIT
from ota.store.journal import Journal, UpdateStage
from tests.ota.bundles import files_of, sha256
from tests.ota.clock import NOW
from tests.ota.device import LATER, Device, device_with, hours

PAIR: Mapping[str, Any] = {"front": 1, "inner": 1, "outer": 1}


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device that serves release 16 of det."""
    return device_with(tmp_path, 16)


def models_of(bundle: str, release: int) -> dict[str, dict[str, bytes]]:
    return {model: files_of(model, release) for model in PAIR}


def events(device: Device) -> list[str]:
    return [f"{one['event']} {one.get('release', 0)}" for one in history.read(device.layout)]


def status(device: Device) -> Any:
    return json.loads(device.layout.status.read_bytes())


def test_an_update_runs_every_step(device: Device) -> None:
    device.publish(release=17)
    outcome = device.run()["det"]
    assert (outcome.release, outcome.waiting_for, outcome.error) == (17, "", None)
    entry = device.journal()
    assert (entry.active, entry.previous, entry.next) == (17, 16, None)
    assert device.server.serving == {"det": 17}
    assert device.trial.tried == [("det", 16), ("det", 17)]
    assert events(device)[4:] == ["installed 17", "tested 17", "switched 17", "good 17"]
    found = status(device)
    assert found["models"]["det"]["release"] == 17
    assert (found["state"], found["error"]) == ("idle", None)
    assert found["metadata_expires"] == {"timestamp": NOW + 3600}
    device.fetcher.fetched.clear()
    assert device.run()["det"].release == 17
    assert device.fetcher.fetched == []


@pytest.mark.fault("L2")
def test_a_release_that_fails_its_trial_is_never_seen_and_not_tried_again(device: Device) -> None:
    device.publish(release=18)
    device.trial.bad.add(("det", 18))
    with pytest.raises(TrialFailed, match=r"OUTPUT0\[3\] is 0.7, expected 0.1"):
        device.run()
    assert device.server.reloads[1:] == []
    assert device.journal().active == 16
    assert device.journal().next is None
    tried = list(device.trial.tried)
    outcome = device.run(by_hand=False)["det"]
    assert device.trial.tried == tried
    assert outcome.release == 16
    assert "it failed on this device: trial: the golden test of det 18 failed" in outcome.waiting_for
    assert "'edge-ota retry det' tries it again" in outcome.waiting_for
    assert "golden test" in status(device)["models"]["det"]["reason"]
    device.publish(release=19)
    assert device.run()["det"].release == 19


class CountingSource:
    """The only mirror, which has wrong bytes for one file."""

    def __init__(self, blobs: Mapping[str, bytes], wrong: str) -> None:
        self.blobs = {**blobs, wrong: blobs[wrong][:-1] + b"?"}
        self.sent = 0

    def get(self, path: str, most_bytes: int) -> bytes:
        raise NotImplementedError

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        data = self.blobs[path.rpartition("/")[2]][offset:]
        self.sent += len(data)
        yield data


@pytest.mark.fault("N9")
def test_wrong_bytes_are_not_fetched_again_in_each_run(device: Device) -> None:
    device.publish(release=17)
    model = files_of("det", 17)["17/model.onnx"]
    source = CountingSource(device.fetcher.blobs, sha256(model))
    sent = []
    for _ in range(8):
        found = source.sent
        device.fetcher = BlobFetcher(  # type: ignore[assignment]  # the real one in place of the fake
            device.settings, device.layout, [source], device.clock
        )
        device.outcomes(by_hand=False)
        sent.append(source.sent - found > 0)
        device.clock.seconds += FIRST_WAIT
    assert sent == [True, True, False, True, False, False, False, True]
    assert [(one.reason, one.permanent) for one in bad.load(device.layout).entries] == [("untrusted", False)]
    device.clock.seconds -= FIRST_WAIT
    with pytest.raises(WrongBytes, match="delivered a file with the SHA-256"):
        device.run()
    source.blobs[sha256(model)] = model
    assert device.run()["det"].release == 17, "an operator does not wait"


@pytest.mark.fault("N9")
@pytest.mark.parametrize("failure", [WrongBytes("mirror 0 transferred other bytes"), FetchError("the server is down")])
def test_a_transient_failure_leads_to_no_other_variant(device: Device, failure: OtaError) -> None:
    variants = [{"id": one, "kind": "onnx", "priority": 1 + (one == "worse")} for one in ("better", "worse")]
    device.publish(release=18, variants=variants)
    device.fetcher.failures = [failure]
    assert device.outcomes(by_hand=False)["det"].error is failure
    device.clock.sleep(60)
    waits = device.run(by_hand=False)["det"]
    assert (waits.release, waits.error) == (16, None)
    assert "better: it failed on this device" in waits.waiting_for
    assert "not before" in waits.waiting_for
    device.clock.sleep(15 * 60)
    assert device.run(by_hand=False)["det"].release == 18
    record = releases.read_record(device.layout.release("det", 18))
    assert record is not None
    assert record.variant == "better"


@pytest.mark.fault("D1")
def test_a_build_without_its_unit_leads_to_the_next_variant(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoUnit:
        def build(self, *arguments: object) -> float:
            raise NoBuildUnit("the socket build.sock cannot be used")

    build = [{"model": "det", "onnx": "17/model.onnx", "plan": "17/model.plan"}]
    built: dict[str, object] = {"id": "trt", "kind": "onnx-build", "priority": 1, "build": build}
    device.publish(release=17, variants=[built, {"id": "plain", "kind": "onnx", "priority": 2}])
    monkeypatch.setattr("tests.ota.device.FakeBuilder", NoUnit)
    assert isinstance(device.outcomes(by_hand=False)["det"].error, NoBuildUnit)
    device.clock.sleep(60)
    assert device.run(by_hand=False)["det"].release == 17


@pytest.mark.fault("D1")
@pytest.mark.parametrize(
    "failure", [NoBuildUnit("the socket build.sock cannot be used"), NotHeld("plans/x.plan: No space left on device")]
)
def test_a_build_that_cannot_be_held_withdraws_no_model(
    device: Device, monkeypatch: pytest.MonkeyPatch, failure: OtaError
) -> None:
    class NoBuild:
        def build(self, *arguments: object) -> float:
            raise failure

    build = [{"model": "det", "onnx": "17/model.onnx", "plan": "17/model.plan"}]
    device.publish(release=17, variants=[{"id": "trt", "kind": "onnx-build", "priority": 1, "build": build}])
    device.want("det", 17, deny=[16])
    with monkeypatch.context() as patched:
        patched.setattr("tests.ota.device.FakeBuilder", NoBuild)
        for _ in range(3):
            device.outcomes(by_hand=False)
            device.clock.sleep(60)
    assert device.server.serving == {"det": 16}
    device.clock.sleep(86400)
    assert device.run(by_hand=False)["det"].release == 17


@pytest.mark.fault("R6")
def test_another_fingerprint_is_another_chance(device: Device) -> None:
    device.publish(release=18)
    device.trial.bad.add(("det", 18))
    with pytest.raises(TrialFailed):
        device.run()
    device.trial.bad.clear()
    assert device.run()["det"].release == 16
    device.facts.print = "facts-2"
    assert device.run()["det"].release == 18


def test_the_next_variant_is_taken_when_the_first_one_failed(device: Device) -> None:
    variants = [{"id": "fast", "kind": "onnx", "priority": 1}, {"id": "slow", "kind": "onnx", "priority": 2}]
    device.publish(release=18, variants=variants)
    device.trial.bad.add(("det", 18))
    with pytest.raises(TrialFailed):
        device.run()
    device.trial.bad.clear()
    assert device.run()["det"].release == 18
    assert [one.variant for one in bad.load(device.layout).entries] == ["fast"]


@pytest.fixture
def garbage(device: Device, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a file without which the disk has room for metadata, and which garbage collection removes."""
    refresh, found = device.trust.refresh, device.layout.partial / ("0" * 64)

    def refresh_if_not_full() -> None:
        if found.exists():
            raise NoSpace("metadata/timestamp.json: No space left on device")
        refresh()

    monkeypatch.setattr(device.trust, "refresh", refresh_if_not_full)
    return found


def fill(garbage: Path) -> None:
    """Leave the disk no room for metadata."""
    garbage.write_bytes(b"of a download that was cut off")
    os.utime(garbage, (0, 0))


@pytest.mark.parametrize("in_probation", [False, True])
def test_garbage_makes_room_for_fresh_metadata(device: Device, garbage: Path, in_probation: bool) -> None:
    device.publish(release=17)
    if in_probation:  # the document is read for the first time before the steps of an update
        device.probation.verdicts = [(ProbationVerdict.WAIT, "few requests")] * 10**4
        device.run()
        device.probation.verdicts = []
    fill(garbage)
    assert device.run()["det"].release == 17
    assert not garbage.exists()
    assert status(device)["error"] is None


def test_a_full_disk_does_not_let_a_denied_release_become_good(device: Device, garbage: Path) -> None:
    device.publish(release=17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "few requests")] * 10**4
    device.run()
    device.probation.verdicts = []
    fill(garbage)
    device.want("det", 17, deny=[17])
    assert device.run()["det"].release == 16
    assert events(device)[-2:] == ["switched 17", "rolled_back 17"]
    assert device.server.serving == {"det": 16}


def test_a_disk_that_a_download_fills_delays_no_switch(
    device: Device, garbage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_slowly() -> None:
        fill(garbage)
        device.clock.sleep(FRESH_SECONDS)

    device.publish(release=17)
    device.fetcher.slowly = fill_slowly
    assert device.run()["det"].waiting_for == ""
    assert device.server.serving == {"det": 17}


def test_a_command_that_changes_nothing_collects_no_garbage(device: Device, garbage: Path) -> None:
    device.publish(release=17)
    fill(garbage)
    with pytest.raises(NoSpace):
        Update(device.parts()).look()
    assert garbage.exists()


@pytest.mark.fault("L4")
def test_a_release_that_fails_its_probation_is_rolled_back_as_a_whole(device: Device) -> None:
    device.publish(release=19)
    why = "5.1 % of 900 requests failed, before: 0 %"
    device.probation.verdicts = [(ProbationVerdict.WAIT, ""), (ProbationVerdict.BAD, why)]
    with pytest.raises(TrialFailed, match=r"det 19 failed its probation: 5.1 % of 900 requests failed"):
        device.run()
    assert device.server.serving == {"det": 16}
    assert (device.journal().active, device.journal().next) == (16, None)
    assert "rolled_back 19" in events(device)
    assert status(device)["counters"]["rollbacks"] == 1
    assert "probation" in device.outcomes()["det"].waiting_for


@pytest.mark.fault("L4")
def test_neither_the_facts_nor_the_bad_list_hold_up_a_rollback(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.publish(release=19)
    device.probation.verdicts = [(ProbationVerdict.BAD, "slow")]

    def full(operation: files.DiskOperation) -> None:
        if operation.kind == "rename" and operation.target == str(device.layout.bad):
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)

    monkeypatch.setattr(files, "point", full)
    with pytest.raises(TrialFailed, match="failed its probation"):
        device.run()
    assert device.server.serving == {"det": 16}
    assert (device.journal().active, device.journal().next) == (16, None)
    assert any(line.startswith("the bad list lacks det 19: ") for line in device.tell.lines)
    assert device.facts.limits[-1] == 10.0


@pytest.mark.fault("R6")
def test_a_release_that_an_operator_rolled_back_waits_for_retry_whatever_the_facts_are(device: Device) -> None:
    device.publish(release=17)
    device.run()
    assert actions.roll_back(device.parts(), "det", "it misses red parts").active == 16
    device.facts.print = "facts-2"
    assert "operator: rolled back by the operator: it misses red parts" in device.run()["det"].waiting_for
    actions.retry(device.layout, "det", 17, NOW)
    assert device.run()["det"].release == 17


def test_a_bundle_of_models_is_tried_switched_and_rolled_back_as_a_whole(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.publish("pair", 1, models_of("pair", 1))
    device.run()
    device.publish("pair", 2, models_of("pair", 2))
    device.trial.bad.add(("inner", 2))
    with pytest.raises(TrialFailed):
        device.run()
    assert len(device.server.reloads) == 1
    device.publish("pair", 3, models_of("pair", 3))
    device.server.bad.add(("outer", 3))
    with pytest.raises(TrialFailed, match="edge-serve did not load outer 3"):
        device.run()
    assert device.server.serving == dict.fromkeys(PAIR, 1)
    device.publish("pair", 4, {**models_of("pair", 4), "more": files_of("more", 4)})
    device.run()
    assert device.server.serving == dict.fromkeys([*PAIR, "more"], 4)
    fewer = models_of("pair", 5)
    del fewer["front"]
    device.publish("pair", 5, fewer)
    device.probation.verdicts = [(ProbationVerdict.BAD, "slow")]
    with pytest.raises(TrialFailed):
        device.run()
    assert device.server.serving == dict.fromkeys([*PAIR, "more"], 4)


def test_a_first_release_that_fails_leaves_no_link(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.publish(release=1)
    device.probation.verdicts = [(ProbationVerdict.BAD, "slow")]
    with pytest.raises(TrialFailed):
        device.run()
    assert list(device.repository.iterdir()) == []
    assert device.server.serving == {}


@pytest.mark.fault("L9")
def test_where_memory_holds_one_release_the_load_is_the_trial(device: Device) -> None:
    device.facts.room = False
    device.publish(release=17)
    device.run()
    assert device.trial.tried == [("det", 16)]
    assert device.server.reloads[-1] == (("det",), True)
    device.publish(release=18)
    device.server.bad.add(("det", 18))
    with pytest.raises(TrialFailed, match="did not load det 18: the golden test of det 18 failed"):
        device.run()
    assert device.server.serving == {"det": 17}


@pytest.mark.fault("R7")
def test_a_newer_release_takes_the_place_of_one_that_waits_for_its_hours(device: Device) -> None:
    device.publish(release=17)
    device.want("det", 17, window=LATER)
    outcome = device.run()["det"]
    assert outcome.release == 16
    assert outcome.waiting_for == f"the steps of release 17 include this device; it switches at {LATER} local time"
    following = device.journal().next
    assert following is not None
    assert (following.release, following.stage) == (17, UpdateStage.TESTED)
    device.publish(release=18)
    device.want("det", 18, window=LATER)
    device.run()
    following = device.journal().next
    assert following is not None
    assert (following.release, following.stage) == (18, UpdateStage.TESTED)
    device.want("det", 18)
    tried = list(device.trial.tried)
    assert device.run()["det"].release == 18
    assert device.trial.tried == tried  # tested before
    assert (device.journal().active, device.journal().previous) == (18, 16)


@pytest.mark.fault("R7")
@pytest.mark.parametrize(("window", "release"), [(hours(-1, 0.1), 16), (hours(2, 4), 17)])
def test_the_hours_count_at_the_moment_of_the_switch(device: Device, window: str, release: int) -> None:
    device.publish(release=17)
    device.want("det", 17, window=window)
    device.fetcher.slowly = lambda: device.clock.sleep(3 * 3600)
    outcome = device.run()["det"]
    assert (outcome.release, device.server.serving) == (release, {"det": release})
    assert (f"it switches at {window} local time" in outcome.waiting_for) is (release == 16)
    device.want("det", 17, window=LATER)
    assert device.run(now=True)["det"].release == 17


@pytest.mark.fault("R1")
@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"deny": [17], "previous": 16}, "release 17 is denied"),
        ({"paused": True}, "the rollout of release 17 is paused"),
        ({"pin": {"dev-1": 16}}, "this device is pinned to it"),
    ],
)
def test_a_release_that_is_no_longer_wanted_after_its_download_is_not_switched_to(
    device: Device, members: dict[str, object], why: str
) -> None:
    def slowly() -> None:
        device.clock.sleep(3 * 3600)
        device.want("det", 17, **members)

    device.publish(release=17)
    device.fetcher.slowly = slowly
    outcome = device.run()["det"]
    assert outcome.waiting_for == f"17 was made ready and is no longer wanted: {why}"
    assert (device.server.serving, len(device.server.reloads)) == ({"det": 16}, 1)
    device.fetcher.slowly = lambda: None
    device.run()
    assert device.journal().next is None
    device.want("det", 17)
    assert device.run()["det"].release == 17


def test_a_switch_waits_for_the_network_if_the_metadata_is_old(device: Device) -> None:
    def slowly() -> None:
        device.clock.sleep(3 * 3600)
        device.trust.failure = FetchError("the server is down")

    device.publish(release=17)
    device.publish("seg", 1)
    device.fetcher.slowly = slowly
    found = device.outcomes(by_hand=False)
    assert found["det"].waiting_for == "17 is ready, and waits for fresh metadata: the server is down"
    assert str(found["seg"].error) == "the server is down"
    assert device.server.serving == {"det": 16}
    assert device.journal().next.stage is UpdateStage.TESTED  # type: ignore[union-attr]  # it is on its way
    device.trust.failure, device.fetcher.slowly = None, lambda: None
    assert device.run(by_hand=False)["det"].release == 17
    assert status(device)["error"] is None


@pytest.mark.fault("R7")
def test_a_newer_release_waits_until_a_probation_has_ended(device: Device) -> None:
    device.publish(release=17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "12 of 500 requests")] * 7000
    assert device.run()["det"].waiting_for == "probation: 12 of 500 requests"
    device.publish(release=18)
    assert device.run()["det"].release == 17  # another run watches on
    device.probation.verdicts = []
    assert device.run()["det"].release == 18
    assert (device.journal().active, device.journal().previous) == (18, 17)


def test_a_rollout_taken_back_before_the_switch_is_followed(device: Device) -> None:
    device.publish(release=17)
    device.want("det", 17, window=LATER)
    device.run()
    device.want("det", 16)
    device.run()
    assert device.journal().next is None
    device.want("det", 17)
    assert device.run()["det"].release == 17
    device.want("det", 16)  # a rollback by the fleet: the release is still on this disk
    device.fetcher.fetched.clear()
    assert device.run()["det"].release == 16
    assert device.fetcher.fetched == []


def test_a_model_that_was_copied_in_by_hand_is_refused_before_anything_is_fetched(device: Device) -> None:
    (device.repository / "seg").mkdir()
    device.publish("seg", 1)
    device.fetcher.fetched.clear()
    found = device.outcomes()
    assert isinstance(found["seg"].error, Occupied)
    assert "Move it out of the model repository" in found["seg"].error.message
    assert found["det"].error is None
    assert device.fetcher.fetched == []
    assert status(device)["error"]["reason"] == "occupied"
    (device.repository / "seg").rmdir()
    assert device.run()["seg"].release == 1


@pytest.mark.parametrize(("member", "program"), [("needs_agent", "edge-ota"), ("needs_server", "edge-serve")])
def test_a_release_that_needs_a_newer_program_is_refused(device: Device, member: str, program: str) -> None:
    device.publish("det", 17, None, **{member: "9.1"})
    with pytest.raises(
        Unsuitable, match=rf"it needs {program} 9.1 or newer, and this is 0.1.*: update {program} first"
    ):
        device.run()
    assert device.server.serving == {"det": 16}


def test_code_that_the_role_engines_does_not_list_is_refused(device: Device) -> None:
    models = {"det": {**files_of("det", 17), "17/model.py": b"import os"}}
    device.publish("det", 17, models)
    with pytest.raises(
        Untrusted, match=r"17/model.py runs as code \(not a known kind of data.* role engines does not list it"
    ):
        device.run()
    assert not device.layout.release("det", 17).exists()
    code = models["det"]["17/model.py"]
    device.trust.documents[f"engines/vision/{sha256(code)}"] = code
    assert device.run()["det"].release == 17


def test_transient_failures_wait_longer_except_when_an_operator_asks(device: Device) -> None:
    device.publish(release=17)
    device.fetcher.failures = [FetchError("the server is down") for _ in range(2)]
    with pytest.raises(FetchError):
        device.run(by_hand=False)
    waiting = device.run(by_hand=False)["det"].waiting_for
    assert "fetch: the server is down; not before" in waiting
    device.clock.seconds += bad.FIRST_WAIT
    with pytest.raises(FetchError):
        device.run(by_hand=False)
    device.clock.seconds += bad.FIRST_WAIT
    assert device.run(by_hand=False)["det"].release == 16
    assert device.run()["det"].release == 17


def test_a_full_disk_collects_garbage_and_tries_once_more(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.publish(release=17)
    asked = []

    def missing(entries: object) -> int:
        asked.append(1)
        if len(asked) == 1:
            raise NoSpace("too little space")
        return 1

    monkeypatch.setattr(device.fetcher, "missing", missing)
    assert device.run()["det"].release == 17
    assert len(asked) == 2


def test_nothing_is_switched_while_edge_serve_does_not_answer(device: Device) -> None:
    device.publish(release=17)
    device.server.up = False
    with pytest.raises(ServerError, match=r"so nothing was switched: start it \(systemctl start edge-serve\)"):
        device.run()
    assert device.journal().serving() == 16
    device.server.up = True
    assert device.run()["det"].release == 17


def test_a_switch_that_the_server_did_not_answer_is_finished_by_the_next_run(device: Device) -> None:
    device.publish(release=17)
    device.server.failures = [ServerError("the connection was closed")]
    with pytest.raises(ServerError):
        device.run()
    assert device.journal().next.stage is UpdateStage.SWITCHING  # type: ignore[union-attr]  # it is on its way
    assert device.run()["det"].release == 17


def test_a_switch_that_never_ends_is_undone(device: Device) -> None:
    device.publish(release=17)
    device.server.failures = [ServerError("the connection was closed")] * 4
    for _ in range(4):
        with pytest.raises(ServerError):
            device.run()
    with pytest.raises(TrialFailed, match="was started 3 times, and never finished: 'edge-ota retry'"):
        device.run()
    assert (device.journal().active, device.journal().next) == (16, None)
    assert device.server.serving == {"det": 16}


@pytest.mark.fault("C3")
def test_a_switch_waits_for_a_server_that_was_stopped_in_it(device: Device) -> None:
    """The server starts without a boot step, as in a container: the links name the new release all the time."""
    device.publish(release=17)
    device.server.failures = [ServerError("the connection was closed")]
    for _ in range(6):
        assert isinstance(device.outcomes(by_hand=False)["det"].error, ServerError)
        device.server.up = False
    assert bad.load(device.layout).entries == ()
    device.server.up = True
    assert device.run(by_hand=False)["det"].release == 17


@pytest.mark.fault("L9")
def test_a_switch_that_is_finished_later_unloads_first_where_memory_holds_one_release(device: Device) -> None:
    device.facts.room = False
    device.publish(release=17)
    device.server.failures = [ServerError("the connection was closed")]
    with pytest.raises(ServerError):
        device.run()
    assert device.run()["det"].release == 17
    assert device.server.reloads[-2:] == [(("det",), True)] * 2
    device.publish(release=18)
    device.server.failures = [ServerError("the connection was closed")]
    with pytest.raises(ServerError):
        device.run()
    device.layout.manifest("det", 18).unlink()
    assert device.run()["det"].release == 18, "a lost manifest is no obstacle"


def test_a_trial_that_kills_the_agent_is_started_a_limited_number_of_times(device: Device) -> None:
    device.publish(release=17)
    device.trial.failure = KeyboardInterrupt()
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            device.run()
    with pytest.raises(TrialFailed, match="was started 3 times"):
        device.run()
    assert "failed on this device" in device.run()["det"].waiting_for
    device.trial.failure = None
    assert actions.retry(device.layout, "det", 17, device.clock.now()) == 1
    assert device.run()["det"].release == 17, "an operator may have stopped it each time"


def test_a_trial_that_hangs_is_started_a_limited_number_of_times(device: Device) -> None:
    device.publish(release=17)
    device.trial.failure = ServerError("'edge-serve check ...' did not end within 600 s and was killed")
    for _ in range(3):
        with pytest.raises(ServerError):
            device.run()
    with pytest.raises(TrialFailed, match="was started 3 times"):
        device.run()
    assert device.server.serving == {"det": 16}


@pytest.mark.fault("D1")
@pytest.mark.parametrize("failure", [NotHeld("the socket trial.sock cannot be used"), NoSpace("plan: disk full")])
def test_a_trial_that_cannot_be_held_uses_up_no_try(device: Device, failure: OtaError) -> None:
    device.publish(release=17)
    device.trial.failure = failure
    for _ in range(5):
        with pytest.raises(type(failure)):
            device.run()
    device.trial.failure = None
    assert device.run()["det"].release == 17


@pytest.mark.fault("D1")
def test_a_build_for_which_the_disk_has_no_space_uses_up_no_try(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def build(self, *arguments: object) -> float:
            raise NoSpace("plans/x.plan: No space left on device")

    build = [{"model": "det", "onnx": "17/model.onnx", "plan": "17/model.plan"}]
    device.publish(release=17, variants=[{"id": "trt", "kind": "onnx-build", "priority": 1, "build": build}])
    with monkeypatch.context() as patched:
        patched.setattr("tests.ota.device.FakeBuilder", FullDisk)
        for _ in range(5):
            with pytest.raises(NoSpace):
                device.run(by_hand=False)
    assert device.run(by_hand=False)["det"].release == 17


@pytest.mark.fault("D4")
def test_garbage_that_cannot_be_removed_costs_no_outcome(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    old = device.layout.releases / "old" / "1"
    old.mkdir(parents=True)
    os.utime(old, (1, 1))

    def refuse(operation: DiskOperation) -> None:
        if (operation.kind, operation.path) == ("rmdir", str(old)):
            raise OSError(errno.EIO, "Input/output error", operation.path)

    monkeypatch.setattr(files, "point", refuse)
    device.publish(release=17)
    assert device.run()["det"].release == 17
    text = f"garbage collection: {old}: Input/output error"
    assert device.tell.lines[-1] == text
    assert status(device)["error"] == {"reason": "disk", "message": text}
    assert status(device)["counters"]["failures"] == {"collect/disk": 1}


def judge_good_after(device: Device, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let probations last for so long after now, and end well."""
    until = device.clock.seconds + seconds

    def judge(entry: Journal, now: float) -> tuple[ProbationVerdict, str]:
        return (ProbationVerdict.GOOD, "0 requests") if now >= until else (ProbationVerdict.WAIT, "0 requests")

    monkeypatch.setattr(device.probation, "judge", judge)


@pytest.mark.fault("R1")
def test_a_release_that_is_denied_in_its_probation_is_left_within_minutes(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.publish(release=17)
    judge_good_after(device, 1200, monkeypatch)
    began, sleep = device.clock.seconds, device.clock.sleep

    def deny(seconds: float) -> None:
        if device.clock.seconds == began + 10:
            device.want("det", 17, previous=16, deny=[17])
        sleep(seconds)

    monkeypatch.setattr(device.clock, "sleep", deny)
    assert device.run()["det"].waiting_for == "release 17 is denied"
    assert device.clock.seconds - began <= FRESH_SECONDS
    assert device.server.serving == {"det": 16}
    assert events(device)[-2:] == ["switched 17", "rolled_back 17"]
    assert not bad.load(device.layout).entries


@pytest.mark.fault("R1")
@pytest.mark.parametrize("stage", [UpdateStage.SWITCHING, UpdateStage.PROBATION])
@pytest.mark.parametrize("paused", [False, True])
def test_a_denied_release_that_a_run_left_open_is_left_before_other_bundles_are_watched(
    device: Device, monkeypatch: pytest.MonkeyPatch, stage: UpdateStage, paused: bool
) -> None:
    device.publish("abc", 1)
    device.publish(release=17)
    monkeypatch.setattr(device.probation, "interval", lambda: 60.0)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "")] * 1000
    device.run(only=("abc",))
    if stage is UpdateStage.SWITCHING:
        device.server.failures = [ServerError("no reply within 30 s")]
    device.outcomes(only=("det",))
    assert [device.journal(one).next.stage for one in ("abc", "det")] == [UpdateStage.PROBATION, stage]  # type: ignore[union-attr]
    if paused:
        pause.write(device.layout, pause.Pause(NOW))
    device.want("det", 17, previous=16, deny=[17])
    device.server.reloads.clear()
    judge_good_after(device, 600, monkeypatch)
    began = device.clock.seconds
    assert device.run()["det"].release == 16
    left, good = [one for one in history.read(device.layout) if one["event"] in ("rolled_back", "good")][-2:]
    assert (left["release"], left["time"] - began) == (17, 0)
    assert (good["bundle"], good["time"] - began) == ("abc", 600)
    assert device.server.reloads == [(("det",), False)]
    assert device.server.serving == {"abc": 1, "det": 16}


def test_without_a_network_a_device_finishes_what_it_has_begun(device: Device) -> None:
    device.publish(release=17)
    device.server.failures = [ServerError("no reply within 30 s")]
    device.outcomes()
    device.trust.failure = FetchError("the server is down")
    device.probation.verdicts = [(ProbationVerdict.WAIT, "")] * 1000
    with pytest.raises(FetchError):
        device.run()
    assert (device.journal().active, device.journal().next) == (17, None)
    assert status(device)["error"]["message"] == "the server is down"


def watch(device: Device, changes: Mapping[float, OtaError | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch probations for an hour. `changes`: seconds from now -> the state of the network from then on."""
    began = device.clock.seconds

    def judge(entry: Journal, now: float) -> tuple[ProbationVerdict, str]:
        for after, failure in changes.items():
            if now >= began + after:
                device.trust.failure = failure
        return (ProbationVerdict.GOOD if now >= began + 3600 else ProbationVerdict.WAIT), "0 requests"

    monkeypatch.setattr(device.probation, "judge", judge)
    monkeypatch.setattr(device.probation, "interval", lambda: 60.0)


def test_the_error_of_a_refresh_ends_with_a_later_one_of_the_run(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.publish(release=17)
    watch(device, {400: FetchError("the server is down"), 1400: None}, monkeypatch)
    assert device.run()["det"].release == 17
    assert status(device)["error"] is None
    assert status(device)["counters"]["failures"]["refresh/fetch"] > 0


def test_the_error_of_a_bundle_is_shown_though_the_network_fails_later(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.publish("abc", 1)
    device.publish(release=17)
    device.trial.bad.add(("abc", 1))
    watch(device, {400: FetchError("the server is down")}, monkeypatch)
    assert device.outcomes()["det"].release == 17
    assert status(device)["error"]["reason"] == "trial"
    assert status(device)["counters"]["failures"]["refresh/fetch"] > 0


@pytest.mark.fault("L4")
def test_a_silent_network_holds_up_no_judgement(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.publish(release=17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "0 requests")] * 3100
    device.run()
    silent: list[float] = []

    def refresh() -> None:
        silent.append(device.clock.seconds)
        device.clock.sleep(60)
        raise FetchError("the server sends nothing")

    monkeypatch.setattr(device.trust, "refresh", refresh)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "0 requests")] * 3100
    with pytest.raises(FetchError):
        device.outcomes(by_hand=False)
    assert len(silent) == 4, "one in half an hour"
    device.probation.verdicts = [(ProbationVerdict.BAD, "9 of 9 requests failed")]
    silent.clear()
    began = device.clock.seconds
    with pytest.raises(FetchError):
        device.outcomes(by_hand=False)
    back = next(one for one in history.read(device.layout) if one["event"] == "rolled_back")
    assert (back["time"], len(silent)) == (began, 1)
    assert device.server.serving == {"det": 16}


def test_a_pause_stops_updates_but_not_a_probation(device: Device) -> None:
    device.publish(release=17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "")] * 4000
    device.run()
    pause.write(device.layout, pause.Pause(NOW, "the line is inspected"))
    device.probation.verdicts = [(ProbationVerdict.BAD, "slow")]
    found = device.outcomes()
    assert isinstance(found["det"].error, TrialFailed)
    assert device.server.serving == {"det": 16}
    device.publish(release=18)
    assert device.run()["det"].release == 16
    assert status(device)["paused"] == "updates are paused (the line is inspected): 'edge-ota resume'"
    pause.remove(device.layout)
    assert device.run()["det"].release == 18


def test_a_bundle_that_the_fleet_does_not_have_is_refused(device: Device) -> None:
    device.publish(release=17)
    with pytest.raises(UsageError, match="the fleet of this device has no bundle 'detx'; it has: det"):
        device.run(only=("det", "detx"))
    assert device.journal().active == 16
    assert status(device)["state"] == "idle"
    rollout = Update(device.parts()).look()
    with pytest.raises(UsageError, match="no bundle 'detx'"):
        plan(device.parts(), rollout, ["detx"], detailed=False)
    assert [one.wanted for one in plan(device.parts(), rollout, ["det", "system"], detailed=False)] == [17]
    assert device.run(only=("system",))["det"].release == 16


PAUSED = "updates are paused (the line is inspected): 'edge-ota resume'"


@pytest.mark.parametrize(("step", "stage"), [("download", UpdateStage.PLANNED), ("trial", UpdateStage.TESTED)])
def test_a_pause_during_a_run_stops_it_before_the_next_step(
    device: Device, monkeypatch: pytest.MonkeyPatch, step: str, stage: UpdateStage
) -> None:
    def pause_now(*arguments: object) -> None:
        pause.write(device.layout, pause.Pause(NOW, "the line is inspected"))

    device.publish(release=17, models={"det": {**files_of("det", 17), "17/weights.bin": b"more"}})
    device.publish("seg", 1)
    with monkeypatch.context() as patched:
        if step == "download":
            patched.setattr(device.tell, "progress", pause_now)
        else:
            patched.setattr(device.trial, "run", pause_now)
        found = device.run()
    assert {one.waiting_for for one in found.values()} == {PAUSED}
    assert status(device)["paused"] == PAUSED
    assert device.server.serving == {"det": 16}
    assert device.journal().next.stage is stage  # type: ignore[union-attr]  # it is on its way
    pause.remove(device.layout)
    assert {bundle: one.release for bundle, one in device.run().items()} == {"det": 17, "seg": 1}


@pytest.mark.fault("L6")
def test_when_the_release_before_does_not_load_the_one_before_that_serves(device: Device) -> None:
    device.publish(release=17)
    device.run()
    device.publish(release=18)
    device.probation.verdicts = [(ProbationVerdict.BAD, "slow")]
    device.server.bad.add(("det", 17))
    with pytest.raises(TrialFailed):
        device.run()
    assert device.server.serving == {"det": 16}
    assert (device.journal().active, device.journal().previous) == (16, 0)


def test_a_damaged_active_release_is_put_in_place_again(device: Device) -> None:
    (device.layout.release("det", 16) / "16" / "model.onnx").unlink()
    assert device.run()["det"].release == 16
    assert device.server.serving == {"det": 16}
    assert (device.layout.release("det", 16) / "16" / "model.onnx").exists()


def test_a_denied_release_without_another_one_is_withdrawn(device: Device) -> None:
    device.want("det", 16, deny=[16])
    outcome = device.run()["det"]
    assert "no other release is allowed: publish one" in outcome.waiting_for
    assert device.server.serving == {}
    assert list(device.repository.iterdir()) == []
    assert device.journal().active == 0
    device.publish(release=17)
    assert device.run()["det"].release == 17


@pytest.mark.fault("R1")
@pytest.mark.parametrize("failure", ["trial", "network"])
def test_a_denied_release_is_left_at_once_if_the_one_before_may_run(device: Device, failure: str) -> None:
    device.publish(release=17)
    device.run()
    device.publish(release=18)
    device.want("det", 18, previous=15, deny=[17])
    if failure == "trial":
        device.trial.bad.add(("det", 18))
    else:
        device.fetcher.failures = [FetchError("the server is down")] * 9
    for _ in range(2):
        assert device.outcomes(by_hand=False)["det"].release == 16
        assert device.server.serving == {"det": 16}
        device.clock.seconds += 86400
    assert "rolled_back 17" in events(device)
    if failure == "network":
        device.fetcher.failures = []
        assert device.run()["det"].release == 18
        assert device.journal().previous == 16


def test_a_denied_release_is_left_for_one_of_which_another_variant_failed(device: Device) -> None:
    device.publish(release=17)
    device.run()
    failed = bad.BadRelease("det", 16, "trt", "", "trial", "it failed", NOW, permanent=True)
    bad.save(device.layout, bad.BadList([failed]))
    device.publish(release=18)
    device.want("det", 18, deny=[17])
    device.fetcher.failures = [FetchError("the server is down")]
    assert device.outcomes()["det"].release == 16
    assert device.server.serving == {"det": 16}


def test_a_denied_release_is_left_for_one_that_failed_before_the_facts_changed(device: Device) -> None:
    device.publish(release=17)
    device.trial.bad.add(("det", 17))
    device.outcomes()
    device.trial.bad.clear()
    device.facts.print = "facts-2"
    for release in (17, 18):
        device.publish(release=release)
        assert device.run()["det"].release == release
    assert not bad.load(device.layout).entries
    device.publish(release=19)
    device.want("det", 19, deny=[18])
    device.fetcher.failures = [FetchError("the server is down")]
    assert device.outcomes()["det"].release == 17


@pytest.mark.fault("R1")
def test_a_denied_release_that_can_be_replaced_by_none_is_withdrawn(device: Device) -> None:
    device.publish(release=17)
    device.want("det", 17, deny=[16])
    device.fetcher.failures = [FetchError("the server is down")]
    assert device.outcomes(by_hand=False)["det"].release == 16, "until the network is there again"
    assert "not before" in device.run(by_hand=False)["det"].waiting_for
    assert device.server.serving == {"det": 16}
    device.trial.bad.add(("det", 17))
    assert isinstance(device.outcomes()["det"].error, TrialFailed)
    assert (device.journal().active, device.server.serving) == (0, {})
    assert list(device.repository.iterdir()) == []
    assert "'edge-ota retry det' tries it again" in device.run()["det"].waiting_for
    device.publish(release=18)
    assert device.run()["det"].release == 18


@pytest.mark.fault("R1")
def test_a_release_that_is_denied_after_its_replacement_failed_is_withdrawn(device: Device) -> None:
    device.publish(release=17)
    device.trial.bad.add(("det", 17))
    assert isinstance(device.outcomes()["det"].error, TrialFailed)
    device.want("det", 17, deny=[16])
    outcome = device.run(by_hand=False)["det"]
    assert (outcome.release, device.server.serving) == (0, {})
    assert "it failed on this device: trial" in outcome.waiting_for


def test_a_withdrawal_ends_when_the_server_serves_nothing_of_it(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.want("det", 16, deny=[16])
    with monkeypatch.context() as patched:
        patched.setattr(device.server, "_load", lambda model, unload_first: ServerReload(("16",)))
        for _ in range(2):
            with pytest.raises(ServerError, match="edge-serve still serves det 16, which may not run here: restart it"):
                device.run()
            assert device.journal().next.stage is UpdateStage.UNDOING  # type: ignore[union-attr]  # on its way back
    assert device.run()["det"].release == 0
    assert device.server.serving == {}


def test_a_model_that_an_operator_put_in_place_of_a_dropped_one_is_left_alone(device: Device) -> None:
    device.publish("det", 17, {"det": files_of("det", 17), "more": files_of("more", 17)})
    device.run()
    device.publish("det", 18)
    device.run()
    assert device.server.serving == {"det": 18}
    (device.repository / "more").mkdir()
    device.publish("det", 19)
    assert device.run()["det"].release == 19
    assert device.server.reloads[-1] == (("det",), False)


def test_a_model_of_another_bundle_is_refused(device: Device) -> None:
    device.publish("pair", 3, {"det": files_of("det", 3), "post": files_of("post", 3)})
    error = device.outcomes()["pair"].error
    assert isinstance(error, Occupied)
    assert error.message == (
        "pair 3 has the model det, which the bundle det has in release 16: give the model another name, or release det "
        "without it, twice, because a device keeps the release before"
    )
    assert device.server.serving == {"det": 16}


def test_a_release_that_was_damaged_before_its_switch_is_installed_and_tried_again(device: Device) -> None:
    device.publish(release=17)
    device.want("det", 17, window=LATER)
    device.run()
    (device.layout.release("det", 17) / "17" / "model.onnx").unlink()
    device.want("det", 17)
    assert device.run()["det"].release == 17
    assert device.trial.tried == [("det", 16), ("det", 17), ("det", 17)]


def test_a_full_disk_is_looked_at_again_by_each_run(device: Device) -> None:
    """A second try costs nothing, and the operator may have freed space a minute ago."""
    device.publish(release=17)
    device.fetcher.failures = [NoSpace("the disk is full")] * 3
    for _ in range(3):
        with pytest.raises(NoSpace):
            device.run(by_hand=False)
    assert device.run(by_hand=False)["det"].release == 17


def test_a_server_that_was_stopped_gets_the_release_with_the_next_run(device: Device) -> None:
    device.publish(release=17)
    device.server.up = False
    for _ in range(5):
        with pytest.raises(ServerError):
            device.run(by_hand=False)
    device.server.up = True
    assert device.run(by_hand=False)["det"].release == 17
    assert device.trial.tried == [("det", 16), ("det", 17)]


def test_a_way_back_that_was_cut_off_is_finished_by_the_next_run(device: Device) -> None:
    """Without a start of the device in between."""
    device.publish(release=17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "")] * 4000
    device.run()
    device.probation.verdicts = [(ProbationVerdict.BAD, "slow")]
    device.server.failures = [ServerError("the connection was closed")] * 2
    for _ in range(2):
        with pytest.raises(ServerError):
            device.run()
        assert device.journal().next.stage is UpdateStage.UNDOING  # type: ignore[union-attr]  # it is on its way back
        assert device.server.serving == {"det": 17}
    assert device.run()["det"].release == 16
    assert device.server.serving == {"det": 16}


@pytest.mark.fault("C3")
def test_a_candidate_that_is_killed_is_no_verdict(device: Device) -> None:
    program = device.root / "edge-serve"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    fake, device.trial = device.trial, UnitTrial("", str(program))  # type: ignore[assignment]  # the real one
    device.publish(release=17)
    with pytest.raises(ServerError, match="ended with -9 and no result"):
        device.run()
    assert device.server.serving == {"det": 16}
    assert not any(one.permanent for one in bad.load(device.layout).entries)
    device.trial = fake
    assert device.run()["det"].release == 17
