"""Describes the progress of a bundle in the words of reports (hawkBit's DDI)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ota.agent import desired
from ota.agent.components import Components
from ota.decide.rollout import ReleaseChoice
from ota.documents.report import MOST_BAD, BundleReport, FailedRelease
from ota.documents.rollout import Rollout
from ota.errors import OtaError
from ota.store.bad import BadList, BadRelease
from ota.store.journal import Journal, UpdateStage

_EXECUTIONS = {UpdateStage.PLANNED: "download", UpdateStage.INSTALLED: "downloaded"}
_WORD = re.compile("[a-z_]{1,64}")


def bundle_report(
    components: Components,
    entry: Journal,
    rollout: Rollout | None,
    known: BadList,
    events: Sequence[Mapping[str, Any]],
    error: OtaError | None,
) -> BundleReport:
    """Return the report on a bundle.

    Args:
        rollout: None = this run could not read it.
        error: with which this run ended for the bundle.
    """
    following, choice = entry.next, _choice(components, entry, rollout)
    wanted = choice.release if choice else (following.release if following else entry.active)
    failure = _failure(known, entry.bundle, wanted) if wanted != entry.active else None
    execution, result, reason = _words(entry, wanted, choice, failure, error)
    requests, failures = _counts(components, entry)
    return BundleReport(
        bundle=entry.bundle,
        release=entry.serving(),
        previous=entry.previous,
        next=following.release if following else 0,
        stage=following.stage.value if following else "",
        wanted=wanted,
        since=_since(events, entry),
        execution=execution,
        result=result,
        reason=reason,
        requests=requests,
        failures=failures,
    )


def failed_releases(known: BadList) -> tuple[FailedRelease, ...]:
    """Return the newest entries of the bad list for a report, without their messages."""
    return tuple(
        FailedRelease(one.bundle, one.release, one.variant, one.reason[:64], max(0, int(one.time)), one.permanent)
        for one in known.entries[-MOST_BAD:]
    )


def _choice(components: Components, entry: Journal, rollout: Rollout | None) -> ReleaseChoice | None:
    if rollout is None or entry.bundle not in rollout.wishes():
        return None
    try:
        return desired.choose(components, rollout, entry.bundle, entry)
    except OtaError:
        return None


def _words(
    entry: Journal, wanted: int, choice: ReleaseChoice | None, failure: BadRelease | None, error: OtaError | None
) -> tuple[str, str, str]:
    """Return execution, result, and reason."""
    following = entry.next
    reason = error.reason if error else failure.reason if failure else ""
    if (failure is not None and failure.permanent) or (error is not None and error.permanent):
        return "closed", "failure", reason
    if following is not None:
        waits = choice is not None and not choice.may_switch and following.stage is UpdateStage.TESTED
        execution = "scheduled" if waits else _EXECUTIONS.get(following.stage, "proceeding")
        word = reason or (following.reason if _WORD.fullmatch(following.reason) else "")
        return execution, "none", word or ("window" if waits else "")
    if wanted == entry.active:
        return "closed", "success" if entry.active else "none", reason
    return "scheduled", "none", reason


def _failure(known: BadList, bundle: str, release: int) -> BadRelease | None:
    """Return the newest failure of a release; a permanent one first."""
    found = [one for one in known.entries if (one.bundle, one.release) == (bundle, release)]
    return max(found, key=lambda one: (one.permanent, one.time), default=None)


def _counts(components: Components, entry: Journal) -> tuple[int, int]:
    """Return the requests of the serving release and those that failed, summed over its models."""
    models = entry.models.get(entry.serving(), ())
    rows = [row for row in components.probation.baseline(models).values() if isinstance(row, Mapping)] if models else []

    def total(member: str) -> int:
        return sum(found for row in rows if isinstance(found := row.get(member), int))

    return total("requests"), total("failures")


def _since(events: Sequence[Mapping[str, Any]], entry: Journal) -> int:
    """Return when the serving release became GOOD; 0 = it is not GOOD, or the history no longer has the event."""
    if entry.serving() != entry.active:
        return 0
    for one in reversed(events):
        if (one.get("event"), one.get("bundle"), one.get("release")) == ("good", entry.bundle, entry.active):
            found = one.get("time")
            return max(0, int(found)) if isinstance(found, (int, float)) else 0
    return 0
