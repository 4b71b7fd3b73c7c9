"""When a rollout may take its next step, waits, and is halted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ota.decide.gate import GateDecision, GateLimits, Tally, count, decide
from ota.documents.device import DeviceDocument
from ota.documents.report import BundleReport, FailedRelease, Report
from ota.documents.rollout import BundleRollout, RolloutStep

NOW = 1_800_000_000
WISH = BundleRollout("det", "vision", 17, previous=16, salt="s", steps=(RolloutStep("prod", 100),))
BOUNDS = GateLimits(success=0.95, errors=0.02, soak_seconds=86400)
GOOD = BundleReport("det", 17, 16, wanted=17, since=NOW - 90_000, result="success")


@pytest.mark.parametrize(
    ("tally", "answer", "why"),
    [
        (Tally(100, 96, 95), GateDecision.GO, "95 of 100 devices (95 %) have been good for 24 h, expected 95 %"),
        (Tally(100, 96, 94), GateDecision.WAIT, "94 of 100 devices (94 %) have been good for 24 h, expected 95 %"),
        (Tally(100, 94, 94, 0, 6), GateDecision.WAIT, "100 devices included: 94 good (94 for long enough), 0 failed"),
        (Tally(100, 98, 98, 2), GateDecision.GO, "98 of 100"),
        (Tally(100, 97, 97, 3), GateDecision.HALT, "3 of 100 devices that tried it failed (3 %), at most 2 % may"),
        (Tally(1000, 9, 9, 1), GateDecision.WAIT, "1 of 10 devices that tried it failed (10 %), at most 2 % may: more"),
        (Tally(1000, 7, 7, 3), GateDecision.HALT, "3 of 10 devices that tried it failed (30 %)"),
        (Tally(1000, 400, 400, 8), GateDecision.WAIT, "400 of 1000"),
        (Tally(3, 2, 2, 1), GateDecision.HALT, "1 of 3 devices that tried it failed (33.3 %)"),
        (Tally(0), GateDecision.GO, "the steps include no device yet"),
        (Tally(50), GateDecision.WAIT, "0 of 50 devices (0 %)"),
    ],
)  # fmt: skip
def test_the_ruling_and_its_figures(tally: Tally, answer: GateDecision, why: str) -> None:
    found = decide(tally, BOUNDS)
    assert (found.answer, why in found.why) == (answer, True), found


def test_limits_of_nothing_and_of_everything() -> None:
    assert decide(Tally(1000, 500, 500, 1), replace(BOUNDS, errors=0.0)).answer is GateDecision.HALT
    assert decide(Tally(10, 0, 0, 10), replace(BOUNDS, errors=1.0, success=0.0)).answer is GateDecision.GO


@pytest.mark.parametrize("tried", [10, 100, 1000, 100_000])
def test_a_fleet_within_the_limit_is_not_halted_early(tried: int) -> None:
    failed = tried // 100
    assert decide(Tally(200_000, tried - failed, 0, failed), BOUNDS).answer is GateDecision.WAIT
    failed = max(3, tried // 20 * 2)
    assert decide(Tally(200_000, tried - failed, 0, failed), BOUNDS).answer is GateDecision.HALT


def report(device: str, bundle: BundleReport | None = GOOD, **members: Any) -> Report:
    bundles = {bundle.bundle: bundle} if bundle else {}
    return Report(device, "plant", "prod", NOW - 60, 1, "n", bundles=bundles, **members)


def counted(*reports: Report, wish: BundleRollout = WISH, devices: int = 1) -> Tally:
    documents = [DeviceDocument(f"dev-{number}", "plant", "prod") for number in range(devices)]
    return count(wish, documents, {one.device: one for one in reports}, BOUNDS, NOW)


def test_devices_are_counted_by_what_they_say() -> None:
    failed = FailedRelease("det", 17, "", "trial", NOW, True)
    assert counted(report("dev-0")) == Tally(1, 1, 1)
    assert counted(report("dev-0", replace(GOOD, since=NOW - 60))) == Tally(1, 1, 0)
    assert counted(report("dev-0", replace(GOOD, since=0))) == Tally(1, 1, 0)
    assert counted(report("dev-0", replace(GOOD, next=17, stage="PROBATION"))) == Tally(1)
    assert counted(report("dev-0", replace(GOOD, release=16), bad=(failed,))) == Tally(1, failed=1)
    assert counted(report("dev-0", bad=(failed,))) == Tally(1, 1, 1), "another variant of it serves"
    assert counted(report("dev-0", replace(GOOD, release=16), bad=(replace(failed, permanent=False),))) == Tally(1)
    assert counted(report("dev-0", replace(GOOD, release=16), bad=(replace(failed, release=15),))) == Tally(1)
    unsuitable = replace(GOOD, release=16, result="failure", reason="unsuitable")
    assert counted(report("dev-0", unsuitable)) == Tally(1, failed=1)
    assert counted(report("dev-0", None)) == Tally(1)


def test_silence_counts_against_success_and_never_hides_a_failure() -> None:
    assert counted() == Tally(1, silent=1)
    assert counted(replace(report("dev-0"), time=NOW - 3 * 86400)) == Tally(1, silent=1)
    failed = FailedRelease("det", 17, "", "trial", NOW, True)
    old = replace(report("dev-0", replace(GOOD, release=16), bad=(failed,)), time=NOW - 3 * 86400)
    assert counted(old) == Tally(1, failed=1)


def test_only_devices_count_that_the_steps_include() -> None:
    reports = [report(f"dev-{number}") for number in range(1000)]
    assert 30 < counted(*reports, wish=replace(WISH, steps=(RolloutStep("prod", 5),)), devices=1000).included < 70
    assert counted(*reports, wish=replace(WISH, steps=(RolloutStep("lab", 100),)), devices=10).included == 0
    pins = {"dev-1": 16, "dev-2": 17}
    assert counted(*reports, wish=replace(WISH, pin=pins), devices=10).included == 9
    assert counted(*reports, wish=replace(WISH, pin=pins, steps=()), devices=10).included == 1
