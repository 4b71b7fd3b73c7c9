"""Decisions about slots: the entries, the record, and the server's state in, the next action out. No side effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from image.device.slots import BootEntry, Failure, Slots

#: seconds between two questions to the server
POLL_SECONDS = 2.0
#: seconds in which the server must answer, or a model that failed must be ready
ANSWER_SECONDS = 180.0
#: seconds that models may load: an engine may be built in that time (EDGE_SERVE_BUILD_ENGINE)
LOAD_SECONDS = 2700.0
#: seconds that a failure must last, because a worker may restart
FAILED_SECONDS = 30.0

#: failures that condemn the content of a slot, not its version, if that version was found good before
_OF_THE_SLOT = ("root", "disk", "")


def others(entries: Iterable[BootEntry], running: int) -> list[BootEntry]:
    """Return the entries that systemd-boot would start in place of the running one, best first."""
    found = [one for one in entries if one.version != running and one.usable]
    return sorted(found, key=lambda one: one.version, reverse=True)


def state_of(entry: BootEntry, slots: Slots) -> str:
    """Return a word for an entry: good, trying, or bad."""
    if not entry.usable or entry.version in slots.bad:
        return "bad"
    return "good" if entry.left is None or entry.version in slots.confirmed else "trying"


def note_failure(
    entries: Sequence[BootEntry], slots: Slots, running: int, failure: Failure | None
) -> tuple[Slots, Failure | None]:
    """Return the record after a boot, and the failure of the version that this boot fell back from.

    A version that was found good before is not called bad because of its disk or of power cuts: it may be installed
    again.
    """
    for entry in entries:
        if entry.usable or entry.version == running:
            continue
        if failure is None or failure.version != entry.version:
            failure = Failure(entry.version, "", _unreported(entry.version in slots.confirmed))
        if entry.version not in slots.confirmed or failure.kind not in _OF_THE_SLOT:
            slots = slots.with_bad(entry.version, failure.reason)
    return without_stale_pending(entries, slots, running), failure


def _unreported(confirmed: bool) -> str:
    times = "several times in a row" if confirmed else "in any of its tries"
    return f"it did not start {times}: a kernel panic, a hang, or power cuts"


def confirm(entries: Sequence[BootEntry], slots: Slots, running: int) -> Slots:
    """Return the record when the running version was found good."""
    others_here = [one.version for one in entries if one.version != running and one.usable]
    previous = max((one for one in others_here if one in slots.confirmed), default=None)
    bad = {version: reason for version, reason in slots.bad.items() if version != running}
    kept = tuple(one for one in slots.confirmed if one != running and one in others_here)
    pending = slots.pending if slots.pending in others_here else None  # installed meanwhile: it waits for the restart
    return slots._replace(confirmed=(*kept, running), bad=bad, pending=pending, previous=previous)


def refuse_install(entries: Sequence[BootEntry], slots: Slots, running: int, version: int) -> str:
    """Return why a version must not be installed now; "" if it may be."""
    if running not in slots.confirmed and others(entries, running):
        return (
            f"system {running} is not yet confirmed, and the update would replace the one to go back to: "
            "wait until it is good, 'edge-ota system status' shows it"
        )
    if version in slots.bad:
        return f"system {version} failed on this device ({slots.bad[version]}): publish a higher version"
    highest = max((running, *slots.bad))
    if version <= highest:
        word = "runs" if highest == running else "failed"
        return f"system {version} is not newer: {highest} {word} on this device; publish a higher version"
    return ""


def waits_for_restart(entries: Iterable[BootEntry], slots: Slots, running: int, version: int) -> bool:
    """Return whether a version is installed, and only the restart into it is missing."""
    return slots.pending == version and any(one.version == version for one in others(entries, running))


def with_pending(slots: Slots, version: int, data_lasted: bool) -> Slots:
    """Return the record while a version is installed, which is new even if it was good in a slot before.

    The version in the other slot is good until its entry is removed: an installation may end before.

    Args:
        data_lasted: whether /var is on the data partition now.
    """
    confirmed = tuple(one for one in slots.confirmed if one != version)
    return slots._replace(pending=version, confirmed=confirmed, data_lasted=data_lasted)


def without_stale_pending(entries: Iterable[BootEntry], slots: Slots, running: int) -> Slots:
    """Return the record without a pending version that neither waits for its restart nor is tried.

    One without an entry was cut off while it was installed, or only a copy of the record still has it. The running one
    is tried until it is confirmed, and only while there is another one to go back to: without that, no verdict would
    ever end the try.
    """
    waiting = {one.version for one in others(entries, running)}
    is_tried = slots.pending == running and running not in slots.confirmed and bool(waiting)
    return slots if is_tried or slots.pending in waiting else slots._replace(pending=None)


def without_pending(entries: Iterable[BootEntry], slots: Slots, running: int) -> Slots:
    """Return the record after the entry of the pending version was removed.

    If no other entry is left, that version had replaced the other good system, so none is left to go back to.
    """
    return slots._replace(pending=None) if others(entries, running) else without_others(slots, running)


def without_others(slots: Slots, running: int) -> Slots:
    """Return the record when the other slot has no system."""
    return slots._replace(pending=None, confirmed=tuple({running}.intersection(slots.confirmed)), previous=None)


def target_of_rollback(entries: Iterable[BootEntry], slots: Slots, running: int) -> int | None:
    """Return the version that a rollback starts; None if no other one is good."""
    return next((one.version for one in others(entries, running) if state_of(one, slots) == "good"), None)


def baseline_of(running: int, version: int, status: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the server's state before an update, for the comparison after it.

    Args:
        version: the version that will be compared; status: the server's status document, None if it does not answer.
    """
    return {
        "schema": 1,
        "from": running,
        "version": version,
        "live": status is not None,
        "models": sorted(ready_models(status)) if status is not None else [],
    }


def lacks_data(entries: Iterable[BootEntry], slots: Slots, running: int, lasting: bool) -> bool:
    """Return whether a new system does not use the data that the old one used, to which the device can go back.

    Args:
        lasting: whether /var is on the data partition. The copy of the record on the boot partition names the update
            in any case.
    """
    is_lost = slots.pending == running and slots.data_lasted and not lasting
    return is_lost and target_of_rollback(entries, slots, running) is not None


def is_settled(status: Mapping[str, Any] | None) -> bool:
    """Return whether the server answers, and no model is about to become ready."""
    if status is None or status["server"]["state"] in ("starting", "stopping"):
        return False
    return not any(one["condition"] in ("loading", "restarting") for one in status["models"])


def ready_models(status: Mapping[str, Any]) -> set[str]:
    """Return the models of which a version serves. A load runs the golden test, so their answers were right."""
    return {one["name"] for one in status["models"] if one["condition"] in ("ready", "busy")}


class Verdict(NamedTuple):
    """The health of the system: `good`, `bad`, or `wait`, and why."""

    word: str
    reason: str = ""


def judge(
    baseline: Mapping[str, Any] | None, status: Mapping[str, Any] | None, seconds: float, failed_seconds: float = 0.0
) -> Verdict:
    """Return the verdict about a new system.

    Args:
        baseline: of the old system; None = there was none, and models do not count.
        status: the server's status document; None = it does not answer.
        seconds: since the health check began, or since the last answer of a server that does not answer.
        failed_seconds: since each model that is missing has failed.
    """
    if baseline is not None and not baseline["live"]:
        return Verdict("good", "the server did not answer under the old system either")
    if status is None:
        text = f"the server did not answer within {ANSWER_SECONDS:.0f} s"
        return Verdict("bad", text) if seconds >= ANSWER_SECONDS else Verdict("wait", "the server does not answer yet")
    if status["server"]["state"] == "stopping":
        return Verdict("wait", "the server is stopping")
    lacking = missing_models(baseline, status)
    if not lacking:
        return Verdict("good")
    text = f"models that were ready under the old system are not: {', '.join(lacking.values())}"
    loading = any(one["name"] in lacking and one["condition"] == "loading" for one in status["models"])
    limit = LOAD_SECONDS if loading or status["server"]["state"] == "starting" else ANSWER_SECONDS
    if seconds >= limit or failed_seconds >= FAILED_SECONDS:
        return Verdict("bad", text)
    return Verdict("wait", text)


def missing_models(baseline: Mapping[str, Any] | None, status: Mapping[str, Any]) -> dict[str, str]:
    """Return the models that were ready before and are not now, with a text for each."""
    wanted = set(baseline["models"]) if baseline is not None else set()
    rows = {one["name"]: one for one in status["models"]}
    found = {}
    for name in sorted(wanted - ready_models(status)):
        row = rows.get(name, {"condition": "missing", "reason": ""})
        found[name] = f"{name} ({': '.join(part for part in (row['condition'], row['reason']) if part)})"
    return found


def all_failed(baseline: Mapping[str, Any] | None, status: Mapping[str, Any] | None) -> bool:
    """Return whether models are missing and none of them will become ready by itself."""
    if status is None or not (lacking := missing_models(baseline, status)):
        return False
    conditions = {one["name"]: one["condition"] for one in status["models"]}
    return all(conditions.get(name) == "failed" for name in lacking)
