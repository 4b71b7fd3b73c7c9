"""Switches a bundle to a release and back: writes the journal first, then all links, then reloads the models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ota.agent.components import LocalComponents, ModelServer
from ota.agent.recovery import begin_undo, end_undo
from ota.errors import OtaError, ServerError, StoreError, TrialFailed, Withdrawn
from ota.server.doctor import DOCTOR_SECONDS
from ota.store import bad, history, journal, links
from ota.store.bad import ANY_VARIANT, BadRelease
from ota.store.history import HistoryEvent
from ota.store.journal import Journal, NextRelease, UpdateStage

#: seconds for the facts before a rollback, while the bad release serves
_FACTS_SECONDS = 10.0


def switch(
    components: LocalComponents, entry: Journal, following: NextRelease, *, unload_first: bool = False
) -> Journal:
    """Make the server serve the next release of a bundle. Return the journal in PROBATION. Safe to repeat after a
    crash.

    Raises:
        TrialFailed: a model of the release did not load; nothing is switched back yet.
        Occupied, ServerError, StoreError: as it says; the same holds.
    """
    entry = write_stage(components, entry, replace(following, stage=UpdateStage.SWITCHING))
    apply_links(components, entry)
    load(components, entry, unload_first=unload_first)
    entry = write_stage(components, entry, replace(following, stage=UpdateStage.PROBATION))
    record_event(
        components, HistoryEvent(components.clock.now(), "switched", entry.bundle, following.release, following.variant)
    )
    return entry


def write_stage(components: LocalComponents, entry: Journal, following: NextRelease | None) -> Journal:
    """Write a journal in which the next release has another stage."""
    if following is not None:
        following = replace(following, since=components.clock.now(), mark=components.clock.monotonic())
    entry = replace(entry, next=following)
    journal.write(components.layout, entry)
    return entry


def apply_links(components: LocalComponents, entry: Journal) -> list[str]:
    """Make the links name the releases of the journal. Return the changed models."""
    return links.apply(components.layout, components.settings.model_repository, entry.wanted_links())


def load(components: LocalComponents, entry: Journal, *, unload_first: bool = False) -> None:
    """Make the server load the models of the serving release, and unload those that only other releases have.

    Raises:
        TrialFailed: a model does not serve its release; with the server's reason.
        ServerError: the server did not answer, or still serves a model of a release that was taken back.
    """
    load_models(components.server, components.settings.model_repository, entry, unload_first=unload_first)


def load_models(server: ModelServer, repository: Path, entry: Journal, *, unload_first: bool = False) -> None:
    """Load and unload the models of a bundle in a server. Raises as `load`."""
    wanted = entry.wanted_links()
    models = sorted(model for model, release in wanted.items() if release)
    # where a model of that name exists, someone else put it there
    removed = sorted(wanted.keys() - set(models) - {one for one in wanted if (repository / one).exists()})
    if not models and not removed:
        return
    found = server.reload(models, removed=removed, unload_first=unload_first)
    for model in (*models, *removed):
        release, result = wanted[model], found.get(model)
        if result is None:
            raise ServerError(f"edge-serve returned no result for {model}: is it older than this edge-ota?")
        if release and (str(release) not in result.versions or result.reason):
            reason = result.reason or f"versions {', '.join(result.versions) or 'none'} serve"
            raise TrialFailed(f"edge-serve did not load {model} {release}: {reason}")
        # a new release is not to blame for it
        if not release and result.versions and entry.next is not None and entry.next.stage is UpdateStage.UNDOING:
            raise ServerError(
                f"edge-serve still serves {model} {', '.join(result.versions)}, which may not run here: restart it "
                "(systemctl restart edge-serve)"
            )


def undo(components: LocalComponents, entry: Journal, error: OtaError, variant: str = ANY_VARIANT) -> Journal:
    """Put the next release on the bad list, and go back to the active one. Return the journal without the next one.

    Args:
        variant: what is bad; "" = the release in all its variants.

    Raises:
        StoreError, ServerError: the disk or edge-serve did not do its part. The journal says UNDOING: the next run, or
            the boot step, goes on.
    """
    following = entry.next
    assert following is not None
    if following.stage not in journal.UNFINISHED:
        record_failure(components, entry.bundle, following.release, variant, error)
        return write_stage(components, entry, None)
    try:
        record_failure(components, entry.bundle, following.release, variant, error, _FACTS_SECONDS)
    except StoreError as failure:  # the bad release must not serve on for it
        components.tell(f"the bad list lacks {entry.bundle} {following.release}: {failure.message}")
    entry = begin_undo(components.layout, entry)
    _note_way_back(components, entry, error.message, error.reason)
    return go_back(components, entry)


def undo_denied(components: LocalComponents, entry: Journal) -> Journal:
    """Go back from a release in probation that the rollout now denies. Return the journal. The release is not bad here.

    Raises:
        StoreError, ServerError: as `undo`.
    """
    entry = begin_undo(components.layout, entry)
    assert entry.next is not None
    _note_way_back(components, entry, f"release {entry.next.release} is denied")
    return go_back(components, entry)


def go_back_to(
    components: LocalComponents, entry: Journal, release: int, why: str, *, reason: str = "", fallback: int = 0
) -> Journal:
    """Go back from the active release to another one that was GOOD here. Return the journal.

    Args:
        release: serves from now on; 0 = none, so that all links are removed.
        reason: the word of an error, for the history.
        fallback: serves if `release` does not load; 0 = none.

    Raises:
        StoreError, ServerError: as `undo`.
    """
    following = NextRelease(entry.active, "", UpdateStage.UNDOING, 0, components.clock.now())
    entry = replace(entry, active=release, previous=fallback, next=following)
    journal.write(components.layout, entry)
    _note_way_back(components, entry, why, reason)
    return go_back(components, entry)


def _note_way_back(components: LocalComponents, entry: Journal, why: str, reason: str = "") -> None:
    assert entry.next is not None
    event = "rolled_back" if entry.active else "withdrawn"
    now, left = components.clock.now(), entry.next.release
    record_event(components, HistoryEvent(now, event, entry.bundle, left, reason=reason, message=why))
    to = f"release {entry.active}" if entry.active else "no release"
    components.tell(f"{entry.bundle}: rolling back to {to}: {why}")


def go_back(components: LocalComponents, entry: Journal) -> Journal:
    """Change the links back, and reload the active release. If that fails, reload the release before it, which may be
    the one that an operator left.
    """
    apply_links(components, entry)
    try:
        load(components, entry)
    except TrialFailed as error:
        older = entry.previous
        if not older or not journal.has_complete(components.layout, entry, older):
            end_undo(components.layout, entry)
            text = "and no release before it is on this disk: see 'edge-serve status', or publish one that works"
            raise ServerError(f"{error.message}; {text}") from error
        components.tell(f"{entry.bundle}: {error.message}; back to release {older}")
        entry = end_undo(components.layout, replace(entry, active=older, previous=0))
        apply_links(components, entry)
        load(components, entry)
        return entry
    return end_undo(components.layout, entry)


def record_failure(
    components: LocalComponents, bundle: str, release: int, variant: str, error: OtaError, limit: float = DOCTOR_SECONDS
) -> None:
    """Put a failure on the bad list: permanently, or for a time.

    Args:
        limit: seconds for the facts of the device; without them, no other facts give the release another chance.
    """
    now = components.clock.now()
    fingerprint = "" if isinstance(error, Withdrawn) else components.device.fingerprint(limit)
    found = BadRelease(bundle, release, variant, fingerprint, error.reason, error.message, now, error.permanent)
    bad.save(components.layout, bad.load(components.layout).add(found))
    if error.permanent:
        record_event(components, HistoryEvent(now, "bad", bundle, release, variant, error.reason, error.message))


def accept(components: LocalComponents, entry: Journal) -> Journal:
    """Make the release in probation the active one: it is GOOD. Remove it from the bad list, where it may be since it
    failed under other facts of the device.
    """
    following = entry.next
    assert following is not None
    known = bad.load(components.layout)
    kept = known.without_variant(entry.bundle, following.release, following.variant)
    if kept.entries != known.entries:  # before the journal: after a power cut in between, the next run comes here again
        bad.save(components.layout, kept)
    previous = entry.active if entry.active != following.release else entry.previous
    entry = replace(entry, active=following.release, previous=previous, next=None, baseline={})
    journal.write(components.layout, entry)
    record_event(
        components, HistoryEvent(components.clock.now(), "good", entry.bundle, following.release, following.variant)
    )
    return entry


def record_event(components: LocalComponents, event: HistoryEvent) -> None:
    """Add an event to the history. A full disk must not fail an update for it."""
    try:
        history.append(components.layout, event)
    except OtaError as error:
        components.tell(f"the history lacks an event: {error.message}")
