"""The actions of an operator on a device: roll back, retry, pause, resume."""

from __future__ import annotations

from ota.agent import switch
from ota.agent.components import LocalComponents
from ota.documents.names import SYSTEM
from ota.errors import AlreadyRunning, StoreError, TrialFailed, UsageError, Withdrawn
from ota.layout import StateLayout
from ota.store import bad, history, journal, pause
from ota.store.bad import ANY_VARIANT
from ota.store.history import HistoryEvent
from ota.store.journal import Journal, NextRelease, UpdateStage
from ota.store.lock import acquire_lock
from ota.store.pause import Pause

#: seconds to wait for a run that is at work
_PATIENCE = 2.0


def roll_back(components: LocalComponents, bundle: str, why: str, *, serve_none: bool = False) -> Journal:
    """Switch to the previous release, and put the current one on the bad list, so that no run installs it again.

    A repeated rollback continues one that was interrupted.

    Args:
        serve_none: roll back also where no release is left that could serve.

    Raises:
        UsageError: there is no such bundle.
        StoreError: no release serves, or there is none before the one that does.
        TrialFailed: the previous release did not load, so the current one serves.
    """
    entry, error = _journal(components, bundle), Withdrawn(f"rolled back by the operator{f': {why}' if why else ''}")
    following = _switched(entry)
    left, before = (
        (following.release, (entry.active, entry.previous)) if following else (entry.active, (entry.previous,))
    )
    # a rollback that was interrupted has the release that it left as the one before
    older = next(
        (one for one in before if one not in (0, left) and journal.has_complete(components.layout, entry, one)), 0
    )
    if not left:
        raise StoreError(f"no release of {bundle} serves, so nothing is rolled back: see 'edge-ota status'")
    is_begun = following is not None and following.stage is UpdateStage.UNDOING
    if not older and not serve_none and not is_begun:
        raise StoreError(
            f"no release of {bundle} before {left} is on this device: publish another one, pin an older one with "
            "'edge-ota publish rollout pin', or have none serve with 'edge-ota rollback --yes'"
        )
    tried = older
    if following is not None:
        tried = entry.active
        entry = switch.undo(components, entry, error)
    else:
        switch.record_failure(components, bundle, left, ANY_VARIANT, error)
        entry = switch.go_back_to(components, entry, older, error.message, reason=error.reason, fallback=left)
    if entry.active == left:
        failed = TrialFailed(f"{bundle} {tried} did not load, so release {left} serves: see 'edge-serve status'")
        switch.record_failure(components, bundle, tried, ANY_VARIANT, failed)
        raise failed
    return entry


def retry(layout: StateLayout, bundle: str, release: int, now: float) -> int:
    """Remove entries from the bad list. Return how many.

    Raises:
        UsageError: there is no such bundle.
    """
    if bundle == SYSTEM:
        raise UsageError("a version of the system that failed here is not tried again: publish a higher version")
    known = bad.load(layout)
    left = known.without(bundle, release)
    if bundle and bundle not in {one.bundle for one in known.entries}:
        _check_bundle(layout, bundle)
    bad.save(layout, left)
    count = len(known.entries) - len(left.entries)
    if count:
        history.append(layout, HistoryEvent(now, "retried", bundle, release))
    return count


def pause_updates(layout: StateLayout, why: str, now: float) -> bool:
    """Pause updates, also those of a run that is at work: it ends before its next step. Models keep serving, and a
    release in probation is still judged. Return whether the history has it: not if a run is at work.
    """
    pause.write(layout, Pause(now, why))
    return _note(layout, "pause", HistoryEvent(now, "paused", message=why))


def resume_updates(layout: StateLayout, now: float) -> bool:
    """Resume updates. Return whether they were paused."""
    was_paused = pause.remove(layout)
    if was_paused:
        _note(layout, "resume", HistoryEvent(now, "resumed"))
    return was_paused


def _note(layout: StateLayout, command: str, event: HistoryEvent) -> bool:
    try:
        with acquire_lock(layout, command, _PATIENCE):
            history.append(layout, event)
    except AlreadyRunning:
        return False
    return True


def _journal(components: LocalComponents, bundle: str) -> Journal:
    """Return the journal of a bundle; one that is lost or torn as the releases and links on this disk have it."""
    layout = components.layout
    _check_bundle(layout, bundle)
    return journal.read(layout, bundle) or journal.rebuild(layout, components.settings.model_repository, bundle)


def _switched(entry: Journal) -> NextRelease | None:
    """Return the next release if it serves or is on its way back; None = the active one serves, or is reinstalled."""
    following = entry.next
    if following is None or following.release == entry.active:
        return None
    return following if following.stage in journal.UNFINISHED else None


def _check_bundle(layout: StateLayout, bundle: str) -> None:
    if bundle not in (known := journal.bundles(layout)):
        raise UsageError(f"there is no bundle {bundle!r} on this device; there are: {', '.join(known) or 'none'}")
