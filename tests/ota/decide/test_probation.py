"""When a release is good, and when it is rolled back."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ota.decide.probation import (
    ProbationLimits,
    ProbationVerdict,
    VersionStatistics,
    judge,
    quantile,
    wilson_low,
)

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.1)
OLD = VersionStatistics(10_000, 0, (9_000, 900, 100, 0, 0, 0))
NEW = VersionStatistics(1_000, 0, (900, 90, 10, 0, 0, 0))
LIMITS = ProbationLimits()
LATE = 601.0


def outcome(now: VersionStatistics, elapsed: float = LATE, before: VersionStatistics = OLD) -> ProbationVerdict:
    return judge(before, now, BOUNDS, elapsed, LIMITS)[0]


def test_a_release_is_good_after_its_time_with_enough_requests() -> None:
    assert outcome(NEW, 599) is ProbationVerdict.WAIT
    assert outcome(NEW) is ProbationVerdict.GOOD
    assert outcome(replace(NEW, requests=499)) is ProbationVerdict.WAIT


@pytest.mark.fault("L8")
def test_without_traffic_it_is_good_after_twice_the_time() -> None:
    assert outcome(VersionStatistics(), 1199) is ProbationVerdict.WAIT
    assert outcome(VersionStatistics(), 1201) is ProbationVerdict.GOOD
    assert outcome(VersionStatistics(ready=False), 1201) is ProbationVerdict.WAIT


@pytest.mark.fault("L4")
def test_failures_crashes_and_slowness_end_it_at_once() -> None:
    assert judge(OLD, replace(NEW, failures=60), BOUNDS, 1, LIMITS) == (
        ProbationVerdict.BAD, "5.7% of 1060 requests failed, at most 2.0% may",
    )  # fmt: skip
    assert "died 1 times" in judge(OLD, replace(NEW, restarts=1), BOUNDS, 1, LIMITS)[1]
    slow = replace(NEW, counts=(0, 0, 0, 1_000, 0, 0))
    assert "99 % of executions take up to 10.0 ms, 2.0 ms" in judge(OLD, slow, BOUNDS, 1, LIMITS)[1]
    assert outcome(replace(NEW, ready=False, unready_seconds=31), 40) is ProbationVerdict.BAD
    assert outcome(replace(NEW, ready=False, unready_seconds=29), 40) is ProbationVerdict.WAIT


def test_requests_that_failed_before_too_are_no_reason() -> None:
    before = replace(OLD, failures=10_000)
    assert outcome(replace(NEW, failures=1_000), before=before) is ProbationVerdict.GOOD
    assert outcome(replace(NEW, failures=1_500), before=before) is ProbationVerdict.BAD


def test_few_failures_among_few_requests_wait() -> None:
    assert [outcome(VersionStatistics(0, count), 1) for count in (1, 4, 5)] == [
        ProbationVerdict.WAIT,
        ProbationVerdict.WAIT,
        ProbationVerdict.BAD,
    ]
    assert outcome(VersionStatistics(195, 5), 1) is ProbationVerdict.WAIT


def test_five_percent_are_found_within_seconds_of_load_and_chance_rolls_nothing_back() -> None:
    dice = random.Random(15)
    found = []
    for _ in range(50):
        requests = failures = 0
        while outcome(VersionStatistics(requests, failures), 1) is not ProbationVerdict.BAD:
            failed = dice.random() < 0.05
            requests, failures = requests + (not failed), failures + failed
        found.append(requests + failures)
    assert max(found) < 3_000
    alarms = 0
    for _ in range(200):
        failures = sum(dice.random() < 0.01 for _ in range(2_000))
        alarms += outcome(VersionStatistics(2_000 - failures, failures), 1) is ProbationVerdict.BAD
    assert alarms == 0


def test_latency_of_few_requests_says_nothing_and_noise_neither() -> None:
    assert outcome(VersionStatistics(1_000, 0, (0, 0, 0, 499, 0, 0))) is ProbationVerdict.GOOD
    fast = VersionStatistics(10_000, 0, (10_000, 0, 0, 0, 0, 0))
    assert outcome(replace(NEW, counts=(0, 1_000, 0, 0, 0, 0)), before=fast) is ProbationVerdict.GOOD, (
        "1 ms more is noise"
    )


def test_quantiles_and_intervals() -> None:
    assert quantile((0, 100, 0, 0, 0, 0), BOUNDS, 0.5) == pytest.approx(0.0015)
    assert quantile((0, 0, 0, 0, 0, 10), BOUNDS, 0.5) == 0.1
    assert quantile((), BOUNDS, 0.5) == 0.0
    assert wilson_low(0, 0) == wilson_low(0, 100) == 0.0
    assert wilson_low(50, 1000) == pytest.approx(0.0399, abs=0.0005)
