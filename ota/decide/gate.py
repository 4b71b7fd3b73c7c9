"""Decides whether a rollout may take its next step, must wait, or is halted. OTA.md 4.4.

Signed reports and metrics give the same decision: both are first counted into a `Tally`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ota.decide.rollout import steps_include
from ota.documents.device import DeviceDocument
from ota.documents.report import Report
from ota.documents.rollout import BundleRollout

#: significance level: halt if this many failures are less likely than this at the allowed failure rate
UNLIKELY = 0.01


@dataclass(frozen=True, slots=True)
class GateLimits:
    """The limits that an operator sets for a step.

    Attributes:
        success: share of the included devices that are good, and have been for `soak_seconds`.
        errors: share that may fail.
        silent_seconds: a report that is older says nothing any more.
    """

    success: float = 0.95
    errors: float = 0.02
    soak_seconds: float = 86400.0
    silent_seconds: float = 2 * 86400.0


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of devices that the steps of a rollout include, by their state.

    Attributes:
        good: the wanted release serves, and passed its probation. soaked: those of them that did so long enough ago.
        failed: the release failed there for good.
        silent: no report, or an old one; 0 where metrics are asked, which do not name devices.
    """

    included: int
    good: int = 0
    soaked: int = 0
    failed: int = 0
    silent: int = 0

    @property
    def under_way(self) -> int:
        """The number of devices that have neither succeeded nor failed."""
        return max(0, self.included - self.good - self.failed - self.silent)

    def __str__(self) -> str:
        parts = [f"{self.good} good ({self.soaked} for long enough)", f"{self.failed} failed"]
        parts += [f"{self.under_way} under way"] + ([f"{self.silent} silent"] if self.silent else [])
        return f"{self.included} devices included: {', '.join(parts)}"


class GateDecision(Enum):
    """The decision of the gate."""

    GO = "go"
    WAIT = "wait"
    HALT = "halt"


@dataclass(frozen=True, slots=True)
class GateRuling:
    """The decision of the gate, and its reason with figures."""

    answer: GateDecision
    why: str


def is_included(wish: BundleRollout, device: DeviceDocument) -> bool:
    """Return whether a device should have the wanted release: by its pin, else by the steps."""
    pinned = wish.pin.get(device.device)
    return pinned == wish.want if pinned is not None else steps_include(wish, device)


def count(
    wish: BundleRollout,
    devices: Iterable[DeviceDocument],
    reports: Mapping[str, Report],
    bounds: GateLimits,
    now: float,
) -> Tally:
    """Count the included devices by their newest verified reports."""
    included = good = soaked = failed = silent = 0
    for device in devices:
        if not is_included(wish, device):
            continue
        included += 1
        report = reports.get(device.device)
        is_good, since = _good(wish, report)
        if report is None or (now - report.time > bounds.silent_seconds and not _failed(wish, report)):
            silent += 1
        elif is_good:
            good += 1
            soaked += bool(not bounds.soak_seconds or (since and now - since >= bounds.soak_seconds))
        elif _failed(wish, report):
            failed += 1
    return Tally(included, good, soaked, failed, silent)


def _good(wish: BundleRollout, report: Report | None) -> tuple[bool, int]:
    """Return whether the wanted release is GOOD, and since when."""
    found = report.bundles.get(wish.bundle) if report else None
    if found is None:
        return False, 0
    return found.release == wish.want and not found.next, found.since


def _failed(wish: BundleRollout, report: Report) -> bool:
    """Return whether the wanted release failed permanently, and no other variant of it serves."""
    if _good(wish, report)[0]:
        return False
    found = report.bundles.get(wish.bundle)
    said = found is not None and (found.wanted, found.result) == (wish.want, "failure")
    return said or any(
        one.permanent and (one.bundle, one.release) == (wish.bundle, wish.want) for one in report.bad
    )  # fmt: skip


def decide(tally: Tally, bounds: GateLimits) -> GateRuling:
    """Return whether the next step is allowed.

    A rollout halts when more devices failed than the limit allows of all that are included. It halts earlier, too, when
    so many failures among those that tried are very unlikely within the limit; one early failure alone is not.
    """
    tried = tally.good + tally.failed
    errors = f"{tally.failed} of {tried} devices that tried it failed"
    if tally.failed:
        share = tally.failed / tried
        limit = f"at most {_percent(bounds.errors)} may"
        if tally.failed > bounds.errors * tally.included or _chance(tally.failed, tried, bounds.errors) < UNLIKELY:
            return GateRuling(GateDecision.HALT, f"{errors} ({_percent(share)}), {limit}; {tally}")
        if share > bounds.errors:
            return GateRuling(
                GateDecision.WAIT, f"{errors} ({_percent(share)}), {limit}: more devices must try it; {tally}"
            )
    if not tally.included:
        return GateRuling(GateDecision.GO, "the steps include no device yet")
    share = tally.soaked / tally.included
    text = f"{tally.soaked} of {tally.included} devices ({_percent(share)}) have been good for"
    text += f" {format_duration(bounds.soak_seconds)}, expected {_percent(bounds.success)}"
    return GateRuling(GateDecision.GO if share >= bounds.success else GateDecision.WAIT, f"{text}; {tally}")


def _chance(failed: int, tried: int, share: float) -> float:
    """Return the probability of at least `failed` failures when `share` of all devices fail (binomial)."""
    if not 0 < share < 1:
        return 0.0 if share <= 0 else 1.0
    below = sum(
        math.exp(
            math.lgamma(tried + 1) - math.lgamma(one + 1) - math.lgamma(tried - one + 1)
            + one * math.log(share) + (tried - one) * math.log1p(-share)
        )
        for one in range(failed)
    )  # fmt: skip
    return max(0.0, 1.0 - below)


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def format_duration(seconds: float) -> str:
    """Return `24 h`, `90 min`, or `45 s`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
