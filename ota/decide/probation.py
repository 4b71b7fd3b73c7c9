"""Judges a new release: compares its failures, latency, and crashes with those of the previous release.

Rejected and cancelled requests do not count, nor do mistakes of clients. A share is judged by the lower end of its
Wilson interval, so that a few failures among few requests cause no rollback, and many failures cause one within
seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

#: standard normal quantile: 1 in 20 judgements of a release exactly at the limit is wrong
_Z = 1.645
#: fewer failures are not significant
LEAST_FAILURES = 5
#: fewer requests give no meaningful 99th percentile
LEAST_REQUESTS = 500
#: seconds; smaller differences are noise
LEAST_SECONDS = 0.005
#: without traffic, a probation lasts longer by so many times PROBATION_SECONDS
IDLE_SPANS = 1.0


class ProbationVerdict(Enum):
    """The verdict on a release in probation."""

    WAIT = "wait"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """Counters of one model version.

    Attributes:
        requests: answered; failures: those that the model itself failed.
        counts: requests by the duration of their execution; `bounds` are the ends of the buckets, seconds, and the last
            one has no end.
        restarts: of its worker processes.
        ready: it serves now; unready_seconds: for how long it has not.
        loading: the server loads it, as after a restart; `unready_seconds` then counts from the start of the load.
        served_seconds: for how long it can have served at most, by the start of the server; inf = unknown.
    """

    requests: int = 0
    failures: int = 0
    counts: tuple[int, ...] = ()
    restarts: int = 0
    ready: bool = True
    unready_seconds: float = 0.0
    reason: str = ""
    loading: bool = False
    served_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class ProbationLimits:
    """The limits of a probation. The names are those of the settings."""

    probation_seconds: float = 600.0
    probation_requests: int = 500
    most_failures: float = 0.02
    most_slower: float = 1.5
    unready_seconds: float = 30.0
    loading_seconds: float = 900.0


def judge(
    before: VersionStatistics, now: VersionStatistics, bounds: Sequence[float], elapsed: float, limits: ProbationLimits
) -> tuple[ProbationVerdict, str]:
    """Return the verdict on one model, and its reason.

    Time before the last start of the server does not count: nothing served then, or nothing is known about it. Starts
    that go on without end are limited by the tries of the release.

    Args:
        before: of the release that served before, as it was at the switch; without requests = unknown.
        now: of the new release, counted since it was loaded.
        elapsed: seconds since the switch.
    """
    elapsed = min(elapsed, now.served_seconds)
    if trouble := _trouble(before, now, bounds, limits):
        return ProbationVerdict.BAD, trouble
    if elapsed < limits.probation_seconds:
        return ProbationVerdict.WAIT, f"{elapsed:.0f} of {limits.probation_seconds:.0f} s, {now.requests} requests"
    if not now.ready:
        return ProbationVerdict.WAIT, f"it does not serve: {now.reason}"
    if now.requests >= limits.probation_requests:
        return ProbationVerdict.GOOD, f"{now.requests} requests in {elapsed:.0f} s, {now.failures} failed"
    if elapsed < limits.probation_seconds * (1 + IDLE_SPANS):
        return ProbationVerdict.WAIT, f"{now.requests} of {limits.probation_requests} requests"
    return ProbationVerdict.GOOD, f"{now.requests} requests in {elapsed:.0f} s, and its golden test passed"


def _trouble(
    before: VersionStatistics, now: VersionStatistics, bounds: Sequence[float], limits: ProbationLimits
) -> str:
    if now.unready_seconds > (limits.loading_seconds if now.loading else limits.unready_seconds):
        return f"it has not served for {now.unready_seconds:.0f} s: {now.reason or 'no reason is known'}"
    if now.restarts:
        return f"its worker process died {now.restarts} times"
    allowed = share(before.failures, before.requests + before.failures) + limits.most_failures
    lowest = wilson_low(now.failures, now.requests + now.failures)
    if now.failures >= LEAST_FAILURES and lowest > allowed:
        found = share(now.failures, now.requests + now.failures)
        return f"{found:.1%} of {now.requests + now.failures} requests failed, at most {allowed:.1%} may"
    return _slower(before, now, bounds, limits)


def _slower(before: VersionStatistics, now: VersionStatistics, bounds: Sequence[float], limits: ProbationLimits) -> str:
    if sum(before.counts) < LEAST_REQUESTS or sum(now.counts) < LEAST_REQUESTS:
        return ""
    old, new = quantile(before.counts, bounds, 0.99), quantile(now.counts, bounds, 0.99)
    if new <= old * limits.most_slower or new - old < LEAST_SECONDS:
        return ""
    return f"99 % of executions take up to {new * 1000:.1f} ms, {old * 1000:.1f} ms with the release before"


def share(part: int, whole: int) -> float:
    """Return part / whole; 0 if whole is 0."""
    return part / whole if whole else 0.0


def wilson_low(part: int, whole: int) -> float:
    """Return the lower end of the Wilson score interval of a share (Wilson 1927)."""
    if not whole:
        return 0.0
    found, z = part / whole, _Z * _Z / whole
    return max(0.0, (found + z / 2 - _Z * math.sqrt((found * (1 - found) + z / 4) / whole)) / (1 + z))


def quantile(counts: Sequence[int], bounds: Sequence[float], wanted: float) -> float:
    """Return a quantile of durations in seconds, interpolated in its bucket. In the last bucket, return its start."""
    rank, seen = wanted * sum(counts), 0
    for number, count in enumerate(counts):
        if count and seen + count >= rank:
            start = bounds[number - 1] if number else 0.0
            end = bounds[number] if number < len(bounds) else start
            return start + (end - start) * (rank - seen) / count
        seen += count
    return 0.0
