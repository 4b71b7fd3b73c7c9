"""Garbage collection: marks all releases and blobs that journals, links, rollouts, and pins name, and removes the
others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ota import files
from ota.errors import StoreError
from ota.layout import StateLayout
from ota.store import journal, links, releases, system_stage

#: nothing younger is removed
YOUNG = 3600.0
#: a file from so far in the future was written while the clock was wrong: its age is unknown, and only marks count
_WRONG_CLOCK = 24 * 3600.0
#: an unused plan is kept so long: after an update of the system, the previous system slot may need it
PLAN_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Reachable:
    """The marked names, which are kept.

    Attributes:
        releases: model and release. manifests: bundle and release. blobs: SHA-256.
    """

    releases: set[tuple[str, int]] = field(default_factory=set)
    manifests: set[tuple[str, int]] = field(default_factory=set)
    blobs: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class GarbageRemoved:
    """The removed paths, and the bytes that were freed. Hard links count once.

    Attributes:
        failures: why other paths could not be removed.
    """

    paths: tuple[str, ...]
    freed: int
    failures: tuple[str, ...] = ()


def collect(
    layout: StateLayout, repository: Path, now: float, wanted: Iterable[tuple[str, int]] = ()
) -> GarbageRemoved:
    """Remove unused files. The caller holds the lock.

    Args:
        wanted: bundle and release of wishes and pins.

    Raises:
        StoreError: the disk cannot be read.
    """
    marked = mark(layout, repository, wanted)
    removed: list[str] = []
    failures: list[str] = []
    freed = 0
    for path in list(_garbage(layout, marked, now)):
        size = _size(path)
        try:
            _remove(path)
        except StoreError as error:  # a bad block stays, and must not keep the rest of the disk full
            failures.append(error.message)
        else:
            freed += size
            removed.append(str(path))
    return GarbageRemoved(tuple(removed), freed, tuple(failures))


def _remove(path: Path) -> None:
    with files.wrap_errors(path):
        if path.is_dir() and not path.is_symlink():
            files.remove_tree(path)
        else:
            files.unlink(path)


def mark(layout: StateLayout, repository: Path, wanted: Iterable[tuple[str, int]] = ()) -> Reachable:
    """Return the names to keep."""
    marked = Reachable(manifests=set(wanted))
    marked.releases.update(links.read_links(layout, repository).items())
    for bundle in journal.bundles(layout):
        entry = journal.read(layout, bundle) or journal.rebuild(layout, repository, bundle)
        for release in entry.releases():
            marked.manifests.add((bundle, release))
            marked.releases.update((model, release) for model in entry.models.get(release, ()))
    for record in releases.every_release(layout):
        if (record.bundle, record.release) in marked.manifests:
            marked.releases.add((record.model, record.release))
        if (record.model, record.release) in marked.releases:
            marked.blobs.update(sha256 for sha256, _ in record.files.values())
    for one in system_stage.every_file(layout):
        marked.blobs.update((one.sha256, *one.chunks))
    for bundle, release in marked.manifests:
        marked.blobs.update(_blobs_of_manifest(layout, bundle, release))
    return marked


def _blobs_of_manifest(layout: StateLayout, bundle: str, release: int) -> Iterator[str]:
    """Yield the blobs of a release that is being fetched, with those of its chunks."""
    manifest = releases.find_manifest(layout, bundle, release)
    for _, entry in manifest.every_file() if manifest else ():
        yield entry.sha256
        yield from entry.chunks


def _garbage(layout: StateLayout, marked: Reachable, now: float) -> Iterator[Path]:
    for model in _inside(layout.releases):
        for release in _inside(model):
            text = release.name.partition("@")[0]  # a copy for a system stays as long as its release
            number = int(text) if text.isdecimal() else 0
            if (model.name, number) not in marked.releases and not _is_young(release, now):
                yield release
    for folder in _inside(layout.state_dir / "blobs" / "sha256"):
        yield from (one for one in _inside(folder) if one.name not in marked.blobs and not _is_young(one, now))
    for one in _inside(layout.partial):
        if one.name.lstrip(".")[:64] not in marked.blobs and not _is_young(one, now):
            yield one
    yield from _old_plans(layout, now)
    for one in _inside(layout.manifests):
        bundle, _, text = one.name.removesuffix(".json").rpartition(".")
        number = int(text) if text.isdecimal() else 0
        if (bundle, number) not in marked.manifests and not _is_young(one, now):
            yield one


def _old_plans(layout: StateLayout, now: float) -> Iterator[Path]:
    """Yield plans that no release has as a hard link, each with its seal, and copies of plans that were cut off."""
    for one in _inside(layout.plans):
        found = one.lstat()
        if one.suffix == ".new" and not _is_young(one, now):
            yield one
        if one.suffix == ".plan" and found.st_nlink == 1 and now - found.st_mtime > PLAN_SECONDS:
            yield from (path for path in (one, one.with_suffix(".seal")) if path.exists())


def _inside(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _is_young(path: Path, now: float) -> bool:
    try:
        age = now - path.lstat().st_mtime
    except OSError:
        return True
    return -_WRONG_CLOCK < age < YOUNG


def _size(path: Path) -> int:
    """Return the bytes that the removal frees: those of files without another hard link."""
    try:
        if not path.is_dir() or path.is_symlink():
            found = path.lstat()
            return found.st_size if found.st_nlink == 1 else 0
        inside = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
        # a blob of the same inode is removed after the release, and counted with it
        return sum(one.lstat().st_size for one in inside if one.lstat().st_nlink == 1)
    except OSError:
        return 0
