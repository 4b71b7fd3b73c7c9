"""Copies the files of one fleet to a USB stick, in the order in which they are published."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ota import files
from ota.documents.manifest import MOST_BYTES, read_manifest
from ota.documents.names import blob_path
from ota.documents.system import read_system
from ota.errors import NoSpace, UsageError
from ota.publish.release import blobs_of
from ota.publish.repository import RepositoryState, put_blob, put_metadata, put_targets, read_target
from ota.publish.roles import FAMILY_PREFIX
from ota.publish.verify import find_needed_targets
from ota.publish.workspace import Workspace


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of a copy: its releases, its number of blobs, and the bytes of new blobs."""

    releases: list[str]
    blobs: int
    new_bytes: int


def export(workspace: Workspace, state: RepositoryState, fleet: str, out: Path) -> ExportResult:
    """Copy the files of a fleet into a directory. An older copy in it is updated.

    Raises:
        UsageError: there is no such fleet, or the directory has other things. NoSpace: the disk is too small.
    """
    if out.resolve() in (workspace.repository.resolve(), workspace.path.resolve()):
        raise UsageError(f"{out} is the repository itself: name a directory on the stick")
    if out.exists() and (not out.is_dir() or any(one.name not in _OURS for one in out.iterdir())):
        raise UsageError(f"{out} has other files: name an empty directory, or one with an older copy")
    targets = find_needed_targets(workspace.repository, state, fleet)
    documents = {
        target: read_target(workspace.repository, target, entry)
        for role in state.delegated()
        for target, entry in state.targets_of(role).items()
        if target in targets
    }
    blobs: dict[str, int] = {}
    releases = []
    for target, data in documents.items():
        if target.startswith("system/"):
            system = read_system(data, target)
            blobs.update(blobs_of(system.files.values()))
            releases.append(system.title)
        for bundle, release in _release_of(target):
            blobs.update(blobs_of(entry for _, entry in read_manifest(data, bundle, release).every_file()))
            releases.append(f"{bundle} {release}")
    missing = {sha256: size for sha256, size in blobs.items() if not _is_there(out, sha256, size)}
    _check_space(out, sum(missing.values()))
    for sha256 in missing:
        put_blob(out, sha256, workspace.repository / blob_path(sha256))
    put_targets(out, documents)
    families = {target.split("/")[1] for target in targets if target.startswith("bundles/")}
    left_out = {
        role
        for role in state.roles
        if role.startswith(FAMILY_PREFIX) and role.removeprefix(FAMILY_PREFIX) not in families
    }
    put_metadata(
        out, RepositoryState(state.roots, {role: one for role, one in state.roles.items() if role not in left_out})
    )
    return ExportResult(sorted(releases), len(blobs), sum(missing.values()))


_OURS = ("metadata", "targets", "blobs", "lost+found", "System Volume Information")


def _release_of(target: str) -> Iterator[tuple[str, int]]:
    if target.startswith("bundles/") and not target.endswith("/floor.json"):
        bundle, _, number = target.split("/")[2].removesuffix(".json").rpartition(".")
        yield bundle, int(number)


def _is_there(out: Path, sha256: str, size: int) -> bool:
    path = out / blob_path(sha256)
    return path.is_file() and files.sha256_of(path) == (sha256, size)


def _check_space(out: Path, needed_bytes: int) -> None:
    place = out
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed_bytes + MOST_BYTES:
        raise NoSpace(f"{out} has {free} bytes free, and the copy needs {needed_bytes}: use a larger stick")
