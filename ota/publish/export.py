"""Copies files of a repository: those of one fleet to a USB stick, and all of them back from a web server (`recover`).
Only files that signed metadata lists are copied, in the order in which they are published.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuf.api.metadata import TargetFile

from ota import files
from ota.documents.manifest import MOST_BYTES, Manifest
from ota.documents.names import blob_path, rollout_target
from ota.documents.system import SystemDocument
from ota.documents.targets import files_of, has_document, read_document
from ota.errors import NoSpace, OtaError, StoreError, Untrusted, UsageError
from ota.publish.release import blobs_of
from ota.publish.repository import (
    RepositoryState,
    join_names,
    put_blob,
    put_metadata,
    put_targets,
    read_state,
    read_target,
    write_state,
)
from ota.publish.roles import FAMILY_PREFIX, ROLLOUT, ROOT
from ota.publish.verify import check_newest, find_needed_targets, load, parse_metadata
from ota.publish.workspace import Workspace
from ota.trust.roots import MOST_METADATA


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of a copy: its fleets and releases, its number of blobs, and the bytes of new blobs."""

    fleets: list[str]
    releases: list[str]
    blobs: int
    new_bytes: int


def export(workspace: Workspace, state: RepositoryState, fleet: str, out: Path) -> ExportResult:
    """Copy the files of a fleet into a directory. An older copy in it is updated, for its other fleets, too: all fleets
    share one timestamp, so a part that stays as it is could not be verified.

    Raises:
        UsageError: there is no such fleet, or the directory has other things. NoSpace: the disk is too small.
    """
    if out.resolve() in (workspace.repository.resolve(), workspace.path.resolve()):
        raise UsageError(f"{out} is the repository itself: name a directory on the stick")
    if out.exists() and (not out.is_dir() or any(one.name not in _OURS for one in out.iterdir())):
        raise UsageError(f"{out} has other files: name an empty directory, or one with an older copy")
    fleets = sorted({fleet, *_fleets_on(out, state)})
    targets = set().union(*(find_needed_targets(workspace.repository, state, one) for one in fleets))
    documents = {
        target: read_target(workspace.repository, target, entry)
        for role in state.delegated()
        for target, entry in state.targets_of(role).items()
        if target in targets
    }
    blobs: dict[str, int] = {}
    releases = []
    for target, data in documents.items():
        document = read_document(target, data)
        blobs.update(blobs_of(files_of(document)))
        if isinstance(document, SystemDocument):
            releases.append(document.title)
        if isinstance(document, Manifest):
            releases.append(f"{document.bundle} {document.release}")
    missing = {sha256: size for sha256, size in blobs.items() if not _is_there(out, sha256, size)}
    _check_space(out, sum(missing.values()), fleets)
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
    return ExportResult(fleets, sorted(releases), len(blobs), sum(missing.values()))


_OURS = ("metadata", "targets", "blobs", "lost+found", "System Volume Information")


def _fleets_on(out: Path, state: RepositoryState) -> list[str]:
    """Return the fleets of an older copy that the repository still has."""
    names = [path.name.partition(".")[2].removesuffix(".json") for path in out.glob("targets/rollout/*.json")]
    return [one for one in names if rollout_target(one) in state.targets_of(ROLLOUT)]


def _is_there(out: Path, sha256: str, size: int) -> bool:
    path = out / blob_path(sha256)
    return files.has_size(path, size) and files.sha256_of(path) == (sha256, size)


def _check_space(out: Path, needed_bytes: int, fleets: Sequence[str]) -> None:
    place = out
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed_bytes + MOST_BYTES:
        raise NoSpace(
            f"{out} has {free} bytes free, and the copy for {join_names(fleets)} needs {needed_bytes}: use a larger "
            "stick, or empty this one first, which removes its other fleets and their old releases"
        )


def recover(workspace: Workspace, repository: Path, root: bytes) -> tuple[RepositoryState, list[str]]:
    """Make the files of the web server the publisher's state, which is lost or older.

    The web server is not trusted: of its files, those that verified metadata lists are copied, if they have its hashes.

    Returns:
        The state, and the paths of listed documents and blobs that the copy lacks or has with other bytes.

    Raises:
        UsageError: the copy is older than the publisher's own state. RolledBack: it is older than the published files.
        Untrusted, StoreError: as `load`.
    """
    first = files.read(repository / "metadata" / "1.root.json", MOST_METADATA)
    if first is None:
        raise StoreError(f"{repository / 'metadata'} has no 1.root.json: copy all of metadata/")
    state = load(repository, first)
    if parse_metadata(root, "the root that is trusted").to_bytes() not in [one.to_bytes() for one in state.roots]:
        raise Untrusted(f"the root that is trusted is none of those in {repository}: it is another repository")
    missing = sorted(set(state.delegated()) - set(state.roles))
    if missing:
        raise UsageError(f"{repository} lacks the metadata of {', '.join(missing)}: copy all of metadata/")
    if (workspace.path / "state.json").exists():
        known = read_state(workspace.path)
        older = [role for role in (ROOT, *known.roles) if state.version(role) < known.version(role)]
        if older:
            raise UsageError(f"{repository} is older than what this publisher knows: see {', '.join(older)}")
    check_newest(workspace, state, str(repository))
    workspace.adopt()
    left_out = _copy_listed(repository, workspace.repository, state)
    write_state(workspace.path, state)
    put_metadata(workspace.repository, state)
    return state, left_out


def _copy_listed(source: Path, out: Path, state: RepositoryState) -> list[str]:
    """Copy the documents and blobs that metadata lists. Return the paths of those that no place has undamaged."""
    documents: dict[str, bytes] = {}
    missing = []
    for role in state.delegated():
        for target, listed in state.targets_of(role).items():
            if has_document(target):
                data = _find_document((out, source), target, listed)
                documents |= {target: data} if data is not None else {}
                missing += [target] if data is None else []
    put_targets(out, documents)
    blobs: dict[str, int] = {}
    for target, data in documents.items():
        with contextlib.suppress(OtaError):  # `verify` complains of a document that cannot be read
            blobs.update(blobs_of(files_of(read_document(target, data))))
    for sha256, size in blobs.items():
        if _is_there(out, sha256, size):
            continue
        if _is_there(source, sha256, size):
            put_blob(out, sha256, source / blob_path(sha256), copy=True)
        else:
            missing.append(blob_path(sha256))
    return missing


def _find_document(places: Iterable[Path], target: str, listed: TargetFile) -> bytes | None:
    """Return a document from the first place that has it with the listed bytes; None = none has."""
    for place in places:
        with contextlib.suppress(OtaError):
            return read_target(place, target, listed)
    return None
