"""Probations out of status documents as edge-serve makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ota.agent.probation import StatusProbation, figures_of
from ota.decide.probation import ProbationVerdict
from ota.errors import ServerError
from ota.settings import AgentSettings
from ota.store.journal import Journal, NextRelease, UpdateStage
from tests.ota.clock import FakeClock
from tests.ota.device import Device

NOW = 1_800_000_000.0
SETTINGS = AgentSettings(probation_seconds=60, probation_requests=100)


def row(
    name: str = "det", version: str = "17", requests: int = 0, failed: int = 0, own: int = 0, **members: Any
) -> dict[str, Any]:
    failures = {"REJECTED": 50, "CANCELED": 50, "BACKEND": failed, "OTHER": 0, "MODEL": own}
    totals = {"requests": requests, "failures": failures, "compute_counts": [requests, 0, 0]}
    return {"name": name, "version": version, "condition": "ready", "reason": "",
            "client_errors": 1_000, "totals": totals, **members}  # fmt: skip


class FakeServer:
    """Says what a test wants."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)
        self.workers: list[dict[str, Any]] = []
        self.error: ServerError | None = None
        self.server: object = {"pid": 7, "uptime_seconds": 900.0}

    def status(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        members = {"workers": self.workers, "duration_bounds_seconds": [0.01, 0.1]}
        return {"models": self.rows, "server": self.server, **members}


def entry(*models: str, **members: Any) -> Journal:
    following = NextRelease(17, "onnx", UpdateStage.PROBATION, 3, NOW, mark=NOW)
    return Journal("det", {16: models or ("det",), 17: models or ("det",)}, 16, 15, following, **members)


def verdict(server: FakeServer, elapsed: float, journal: Journal | None = None) -> ProbationVerdict:
    return StatusProbation(server, SETTINGS).judge(journal or entry(), NOW + elapsed)[0]


def test_a_probation_needs_its_requests_and_its_time() -> None:
    server = FakeServer(row(requests=100))
    assert [verdict(server, seconds) for seconds in (59, 61)] == [ProbationVerdict.WAIT, ProbationVerdict.GOOD]


def test_failures_of_the_model_count_and_refusals_and_mistakes_of_clients_do_not() -> None:
    assert verdict(FakeServer(row(requests=100)), 1) is ProbationVerdict.WAIT
    assert verdict(FakeServer(row(requests=100, failed=20)), 1) is ProbationVerdict.BAD
    own_errors = row(requests=120, own=20)
    assert verdict(FakeServer(own_errors), 1) is ProbationVerdict.BAD
    before = {"det": {"requests": 100, "failures": 20, "counts": [100, 0, 0]}}
    assert verdict(FakeServer(row(requests=100, failed=20)), 61, entry(baseline=before)) is ProbationVerdict.GOOD


def test_one_model_of_a_bundle_decides_for_all() -> None:
    server = FakeServer(row("a", requests=100), row("b", requests=100, failed=20))
    found = StatusProbation(server, SETTINGS).judge(entry("a", "b"), NOW + 61)
    assert (found[0], found[1].startswith("b: 16.7% of 120 requests failed")) == (ProbationVerdict.BAD, True)
    server.rows[1] = row("b", requests=1)
    assert verdict(server, 61, entry("a", "b")) is ProbationVerdict.WAIT


@pytest.mark.fault("C3")
def test_death_of_a_private_worker_is_bad_and_of_a_shared_one_is_not() -> None:
    server = FakeServer(row(requests=100))
    server.workers = [{"models": ["det:17", "other:1"], "restarts": 1}]
    assert verdict(server, 1) is ProbationVerdict.WAIT
    server.workers.append({"models": ["det:17"], "restarts": 1})
    assert verdict(server, 1) is ProbationVerdict.BAD


def test_a_release_that_does_not_serve_is_bad_after_half_a_minute() -> None:
    server = FakeServer(row(condition="restarting", reason="its worker is started again"))
    subject = StatusProbation(server, SETTINGS)
    assert subject.judge(entry(), NOW + 1)[0] is ProbationVerdict.WAIT
    assert subject.judge(entry(), NOW + 30)[0] is ProbationVerdict.WAIT
    assert subject.judge(entry(), NOW + 32) == (
        ProbationVerdict.BAD, "det: it has not served for 31 s: its worker is started again",
    )  # fmt: skip
    server.rows = [row()]
    assert subject.judge(entry(), NOW + 40)[0] is ProbationVerdict.WAIT
    server.rows = []
    assert subject.judge(entry(), NOW + 41)[0] is ProbationVerdict.WAIT


@pytest.mark.fault("L4")
def test_a_release_that_the_server_loads_again_has_the_time_of_a_load() -> None:
    """The service was restarted during the probation."""
    server = FakeServer(row(condition="loading"))
    subject = StatusProbation(server, SETTINGS)
    assert [subject.judge(entry(), NOW + seconds)[0] for seconds in (1, 40, 900)] == [ProbationVerdict.WAIT] * 3
    server.rows = [row(condition="unready", reason="it warms up")]
    assert [subject.judge(entry(), NOW + seconds)[0] for seconds in (901, 930)] == [ProbationVerdict.WAIT] * 2
    assert subject.judge(entry(), NOW + 932)[0] is ProbationVerdict.BAD
    server.rows = [row(condition="loading")]
    assert subject.judge(entry(), NOW + 940)[0] is ProbationVerdict.WAIT
    assert subject.judge(entry(), NOW + 1841) == (ProbationVerdict.BAD, "det: it has not served for 901 s: loading")


@pytest.mark.fault("L5")
def test_starts_of_the_server_that_the_boot_step_could_not_count_are_counted() -> None:
    server = FakeServer(row(requests=100))
    subject = StatusProbation(server, SETTINGS)
    assert subject.judge(entry(), NOW + 1)[0] is ProbationVerdict.WAIT
    for pid, uptime in ((8, 901.0), (8, 903.0), (8, 1.0)):  # two starts: another process, and a container's process 1
        server.server = {"pid": pid, "uptime_seconds": uptime}
        assert subject.judge(entry(), NOW + 2)[0] is ProbationVerdict.WAIT
    server.server = {"pid": 9, "uptime_seconds": 1.0}
    other = replace(entry(), bundle="seg")
    assert subject.judge(other, NOW + 3)[0] is ProbationVerdict.WAIT, "each bundle has starts of its own"
    assert subject.judge(entry(), NOW + 3) == (
        ProbationVerdict.BAD, "edge-serve was started again 3 times while it was new",
    )  # fmt: skip


@pytest.mark.fault("L8")
def test_time_in_which_the_server_is_down_or_loads_is_no_probation() -> None:
    server = FakeServer(row(load_seconds=20.0))
    subject = StatusProbation(server, SETTINGS)
    server.server = {"pid": 7, "uptime_seconds": 5000.0}
    assert subject.judge(entry(), NOW + 2)[0] is ProbationVerdict.WAIT
    server.error = ServerError("no edge-serve answers")
    assert subject.judge(entry(), NOW + 1600)[0] is ProbationVerdict.WAIT
    server.error = None
    for run in (subject, StatusProbation(server, SETTINGS)):
        for uptime, verdict in ((23.0, ProbationVerdict.WAIT), (139.0, ProbationVerdict.WAIT)):
            server.server = {"pid": 8, "uptime_seconds": uptime}
            assert run.judge(entry(), NOW + 1600 + uptime)[0] is verdict
    server.server = {"pid": 8, "uptime_seconds": 141.0}
    assert subject.judge(entry(), NOW + 1741) == (
        ProbationVerdict.GOOD, "det: 0 requests in 121 s, and its golden test passed",
    )  # fmt: skip


def test_a_release_whose_switch_used_up_all_tries_is_judged_like_any_other() -> None:
    following = entry().next
    assert following is not None
    assert verdict(FakeServer(row(requests=100)), 61, replace(entry(), next=replace(following, tries=0))) is (
        ProbationVerdict.GOOD
    )


@pytest.mark.parametrize("found", [None, 7, {}, {"uptime_seconds": "x"}])
def test_a_server_without_an_uptime_is_no_fault(found: object) -> None:
    server = FakeServer(row(requests=100))
    server.server = found
    assert verdict(server, 61) is ProbationVerdict.GOOD


def test_a_server_that_does_not_answer_gives_no_verdict_and_no_baseline() -> None:
    server = FakeServer(row())
    server.error = ServerError("no edge-serve answers")
    assert verdict(server, 9_999) is ProbationVerdict.WAIT
    assert StatusProbation(server, SETTINGS).baseline(["det"]) == {}


def test_the_baseline_is_of_the_highest_version_that_serves() -> None:
    server = FakeServer(
        row(version="9", requests=1), row(version="16", requests=7, failed=2), row(version="17", condition="failed")
    )
    assert StatusProbation(server, SETTINGS).baseline(["det", "absent"]) == {
        "det": {"requests": 7, "failures": 2, "counts": [7, 0, 0]}
    }


@pytest.mark.parametrize("document", [{}, {"models": [7, {}]}, {"models": "x", "workers": [1]}])
def test_a_document_that_lacks_members_is_no_fault(document: dict[str, Any]) -> None:
    assert not figures_of(document, "det", "17").ready
    replaced = replace(entry(), baseline={"det": "x"})
    assert verdict(FakeServer(), 1, replaced) is ProbationVerdict.WAIT


class Jumping(FakeClock):
    """A clock that is set to another time in the first sleep, which then ends the run where `dies` is set."""

    offset = 0.0
    jump = 0.0
    dies = False

    def now(self) -> float:
        return self.seconds + self.offset

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.offset, self.jump = self.offset + self.jump, 0.0
        if self.dies:
            self.dies = False
            raise InterruptedError


def probing(folder: Path, clock: Jumping) -> Device:
    """Return a device that serves 16 and wants 17, with real probations of 60 s or 100 requests."""
    device = Device(folder, probation_seconds=60, probation_requests=100)
    device.clock = clock
    device.publish(release=16)
    device.run()
    device.probation = StatusProbation(FakeServer(row(requests=100)), device.settings)  # type: ignore[assignment]
    device.publish(release=17)
    return device


@pytest.mark.fault("K1")
@pytest.mark.parametrize("years", [10, -10])
def test_a_clock_that_jumps_neither_ends_nor_prolongs_a_probation(tmp_path: Path, years: int) -> None:
    clock = Jumping()
    device = probing(tmp_path, clock)
    clock.jump = years * 365 * 86400.0
    began = clock.monotonic()
    assert device.run()["det"].release == 17
    assert 60 <= clock.monotonic() - began < 65


@pytest.mark.fault("K1")
@pytest.mark.parametrize("years", [10, -10])
def test_a_clock_that_jumps_between_two_runs_neither_ends_nor_prolongs_a_probation(tmp_path: Path, years: int) -> None:
    clock = Jumping()
    device = probing(tmp_path, clock)
    clock.jump, clock.dies = years * 365 * 86400.0, True
    began = clock.monotonic()
    with pytest.raises(InterruptedError):
        device.run()
    assert device.run()["det"].release == 17
    assert 60 <= clock.monotonic() - began < 65


@pytest.mark.fault("K1")
def test_a_probation_restarts_at_boot(tmp_path: Path) -> None:
    clock = Jumping()
    device = probing(tmp_path, clock)
    clock.dies = True
    with pytest.raises(InterruptedError):
        device.run()
    clock.offset, clock.seconds = NOW, 5.0
    assert device.run()["det"].release == 17
    assert 60 <= clock.monotonic() < 65


@pytest.mark.fault("L4")
@pytest.mark.parametrize(
    "members",
    [
        {"totals": [1]}, {"totals": {"requests": "x"}}, {"totals": {"failures": 5}},
        {"totals": {"requests": float("inf")}}, {"totals": {"failures": {"MODEL": "x"}}},
    ],
)  # fmt: skip
def test_a_status_document_of_another_structure_is_no_verdict(members: dict[str, Any]) -> None:
    server = FakeServer({**row(requests=100), **members})
    subject = StatusProbation(server, SETTINGS)
    assert subject.baseline(["det"]) == {}
    found, why = subject.judge(entry(), NOW + 61)
    assert found is ProbationVerdict.WAIT
    assert "status document of edge-serve is malformed at det 17" in why
