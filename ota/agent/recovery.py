"""Repairs a bundle after a crash or a disk error, offline: reads or rebuilds its journal, and corrects its links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ota import files
from ota.errors import Withdrawn
from ota.layout import StateLayout
from ota.store import bad, journal, links
from ota.store.journal import Journal, NextRelease, UpdateStage


@dataclass(frozen=True, slots=True)
class RestoredBundle:
    """A bundle after its repair.

    Attributes:
        changed: models whose links were healed.
        found: what was wrong, in sentences; () = nothing.
    """

    entry: Journal
    changed: tuple[str, ...] = ()
    found: tuple[str, ...] = ()


def tidy(layout: StateLayout) -> None:
    """Remove unfinished files of an earlier run. The caller holds the lock."""
    for place in (layout.stage, layout.trial):
        for one in sorted(place.iterdir()) if place.is_dir() else ():
            if one.is_dir() and not one.is_symlink():
                files.remove_tree(one)
            else:
                with files.wrap_errors(one):
                    files.unlink(one)


def restore(layout: StateLayout, repository: Path, bundle: str) -> RestoredBundle:
    """Return the repaired journal of a bundle: it is on disk, its release is complete, and the links name that release.

    Raises:
        Occupied: a link was replaced by a model of the same name.
        StoreError: the disk does not take it.
    """
    found: list[str] = []
    entry = journal.read(layout, bundle)
    before = entry
    if entry is None:
        entry = journal.rebuild(layout, repository, bundle)
        found.append(f"the journal of {bundle} was missing or torn: rebuilt from the releases and links on this disk")
    for text, better in _corrections(layout, repository, entry):
        found.append(text)
        entry = better
    changed = links.apply(layout, repository, entry.wanted_links())
    if changed and not found and entry.next is None:
        found.append(f"the links of {', '.join(changed)} named another release: turned back to {entry.serving()}")
    if entry != before:
        journal.write(layout, entry)
    return RestoredBundle(entry, tuple(changed), tuple(found))


def _corrections(layout: StateLayout, repository: Path, entry: Journal) -> Iterator[tuple[str, Journal]]:
    """Yield each fault that a journal has by the releases on disk, with the corrected journal."""
    following = entry.next
    if following is not None and following.stage in journal.SWITCHED and (why := _why_undo(layout, entry, following)):
        yield (
            f"{entry.bundle} {following.release} {why}: back to {entry.active or 'none'}",
            entry := replace(entry, next=replace(following, stage=UpdateStage.UNDOING)),
        )
    if journal.has_complete(layout, entry, entry.active):
        return
    if entry.previous and journal.has_complete(layout, entry, entry.previous):
        text = f"{entry.bundle} {entry.active} is damaged or missing on this disk: back to {entry.previous}"
        yield text, replace(entry, active=entry.previous, previous=0)
        return
    if entry.serving() != entry.active:  # the next release is whole, and its probation must still judge it
        text = f"{entry.bundle} {entry.active} is damaged or missing on this disk: {entry.serving()} has none before it"
        yield text, replace(entry, active=0, previous=0)
        return
    rebuilt = journal.rebuild(layout, repository, entry.bundle)
    if rebuilt.active:
        yield f"the journal of {entry.bundle} names no release that is on this disk: rebuilt", rebuilt
        return
    # the link stays: edge-serve may have the files open
    yield (
        f"{entry.bundle} {entry.active} is damaged or missing, with no other release here: 'edge-ota apply' fetches it",
        entry,
    )


def _why_undo(layout: StateLayout, entry: Journal, following: NextRelease) -> str:
    """Return why the release that serves may not: it is not whole, or a crash ended its rollback before the journal
    had it; "" = it may.
    """
    if not journal.can_serve(layout, entry):
        return "is damaged or missing on this disk"
    found = bad.load(layout).find(entry.bundle, following.release, following.variant, "", 0.0)  # whatever the facts are
    return f"is on the bad list ({found.reason})" if found else ""


def begin_undo(layout: StateLayout, entry: Journal) -> Journal:
    """Write UNDOING as the stage of the next release."""
    assert entry.next is not None
    entry = replace(entry, next=replace(entry.next, stage=UpdateStage.UNDOING))
    journal.write(layout, entry)
    return entry


def end_undo(layout: StateLayout, entry: Journal) -> Journal:
    """Write the journal without the next release, to which no way back leads. The release that serves is not withdrawn:
    it may be the one that an operator left, if the older one cannot serve.
    """
    assert entry.next is not None
    previous = entry.previous if entry.previous != entry.next.release else 0
    known = bad.load(layout)
    kept = known.without(entry.bundle, entry.active, Withdrawn.reason) if entry.active else known
    if kept.entries != known.entries:  # before the journal: after a power cut in between, the next run comes here again
        bad.save(layout, kept)
    entry = replace(entry, previous=previous, next=None)
    journal.write(layout, entry)
    return entry
