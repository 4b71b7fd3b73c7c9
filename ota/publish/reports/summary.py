"""Summarizes all reports: releases that run, failures with their reasons, and devices that need attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ota.decide.gate import format_duration
from ota.documents.device import DeviceDocument
from ota.documents.report import Report
from ota.publish.reports.collect import CollectedReports
from ota.publish.reports.history import KeyHistory
from ota.publish.rollouts import format_time

#: names that a line lists
_MOST_NAMES = 10


@dataclass(slots=True)
class Summary:
    """The summary of the reports.

    Attributes:
        releases: bundle -> release -> devices that serve it.
        failures: bundle, release, reason -> devices on which it failed for good.
        doubts: a sentence for each device whose reports do not fit together.
        silent: devices without a report that is new enough.
        errors: word -> devices whose last run ended with that error.
    """

    devices: int = 0
    releases: dict[str, Counter[int]] = field(default_factory=dict)
    under_way: dict[str, Counter[str]] = field(default_factory=dict)
    failures: dict[tuple[str, int, str], list[str]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    floors_lost: list[str] = field(default_factory=list)
    clock_unset: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def summarize(
    devices: Mapping[str, DeviceDocument],
    collected: CollectedReports,
    forked: Mapping[str, KeyHistory],
    silent_seconds: float,
    now: float,
) -> Summary:
    """Return the summary over `devices`."""
    found = Summary(devices=len(devices))
    for device in sorted(devices):
        report = collected.newest.get(device)
        if report is None or now - report.time > silent_seconds:
            found.silent.append(device)
        if report is not None:
            _add(found, device, report)
    found.doubts = list(_doubts(devices, collected, forked))
    return found


def _add(found: Summary, device: str, report: Report) -> None:
    for bundle, one in report.bundles.items():
        found.releases.setdefault(bundle, Counter())[one.release] += 1
        if one.next:
            found.under_way.setdefault(bundle, Counter())[f"{one.next} {one.stage}"] += 1
        if one.result == "failure" and not any((bad.bundle, bad.release) == (bundle, one.wanted) for bad in report.bad):
            found.failures.setdefault((bundle, one.wanted, one.reason), []).append(device)
    for bad in report.bad:
        if bad.permanent:
            names = found.failures.setdefault((bad.bundle, bad.release, bad.reason), [])
            if device not in names:
                names.append(device)
    if report.error:
        found.errors.setdefault(report.error, []).append(device)
    if report.floors_lost:
        found.floors_lost.append(device)
    if report.clock_unset:
        found.clock_unset.append(device)


def _doubts(
    devices: Mapping[str, DeviceDocument], collected: CollectedReports, forked: Mapping[str, KeyHistory]
) -> Iterator[str]:
    for device, keys in sorted(collected.keys.items()):
        if device in devices:
            shown = ", ".join(sorted(key[:8] for key in keys - {devices[device].fingerprint}))
            yield (
                f"{device}: two keys for one device: {devices[device].fingerprint[:8]} was added, and {shown} reports, "
                "too: give one of the devices a name of its own"
            )
    for device, known in sorted(forked.items()):
        if device not in devices:
            continue
        when = format_time(known.since)
        if known.fork == "cloned":
            yield (
                f"{device}: two disks report with one key ({when}): a disk was cloned; "
                "remove identity/key.pem on one of them, and add it again"
            )
        else:
            yield (
                f"{device}: its reports went back to an earlier counter ({when}): its disk was restored from a copy, "
                "or copied: check this device"
            )
    if collected.keyless:
        yield f"reports that do not count, because the device was added without --key: {_names(collected.keyless)}"
    if collected.strangers:
        yield f"reports under names that are no devices here: {_names(collected.strangers)}"


def lines(found: Summary, silent_seconds: float) -> Iterator[str]:
    """Yield the summary as text."""
    reported = found.devices - len(found.silent)
    yield f"{found.devices} devices, {reported} reported in the last {format_duration(silent_seconds)}"
    for bundle, releases in sorted(found.releases.items()):
        runs = ", ".join(f"{count} run {release or 'none'}" for release, count in sorted(releases.items()))
        ways = ", ".join(f"{count} at {stage}" for stage, count in sorted(found.under_way.get(bundle, {}).items()))
        yield f"{bundle}: {runs}" + (f"; {ways}" if ways else "")
    for (bundle, release, reason), names in sorted(found.failures.items()):
        yield f"{bundle} {release} failed ({reason}) on {len(names)}: {_names(names)}"
    for error, names in sorted(found.errors.items()):
        yield f"the last run failed ({error}) on {len(names)}: {_names(names)}"
    for what, names in (
        ("silent", found.silent), ("version floors lost", found.floors_lost), ("clock unset", found.clock_unset)
    ):  # fmt: skip
        if names:
            yield f"{what}: {_names(names)}"
    yield from found.doubts


def document(found: Summary, problems: list[str]) -> dict[str, Any]:
    """Return the summary as JSON."""
    return {
        "devices": found.devices,
        "releases": {
            bundle: {str(release): count for release, count in one.items()} for bundle, one in found.releases.items()
        },
        "under_way": {bundle: dict(one) for bundle, one in found.under_way.items()},
        "failures": [
            {"bundle": bundle, "release": release, "reason": reason, "devices": names}
            for (bundle, release, reason), names in sorted(found.failures.items())
        ],
        "errors": found.errors,
        "silent": found.silent,
        "floors_lost": found.floors_lost,
        "clock_unset": found.clock_unset,
        "doubts": found.doubts,
        "problems": problems,
    }


def _names(found: list[str] | set[str]) -> str:
    names = sorted(found)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
