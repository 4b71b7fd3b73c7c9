"""The static files of a repository, and the order in which they are written.

The publisher's state is `state.json` in its own directory: the metadata of each role, and every root. It is written
first, durably; the files of `repository/` are derived from it. After an interruption, the next command completes them.
Files that were changed on the web server are never signed again.

A reader sees only complete states: each file is replaced atomically, and written after the files that it names: blobs,
documents, delegated roles, targets, snapshot, timestamp. New roots come last. Until then, roles with new keys also
carry the signatures of their old keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root, TargetFile, Targets

from ota import files
from ota.documents.names import blob_path
from ota.errors import StoreError, Untrusted, UsageError
from ota.publish.roles import ROOT, SNAPSHOT, TARGETS, TIMESTAMP
from ota.strict_json import parse, to_canonical_json

SCHEMA = 1
MOST_STATE = 256 * 1024 * 1024


@dataclass(slots=True)
class RepositoryState:
    """The metadata of a repository.

    Attributes:
        roots: every version of root, the first one first.
        roles: all other roles by name.
    """

    roots: list[Metadata[Root]] = field(default_factory=list)
    roles: dict[str, Metadata[Any]] = field(default_factory=dict)

    @property
    def root(self) -> Root:
        """The newest root."""
        return self.roots[-1].signed

    @property
    def targets(self) -> Targets:
        """The role that delegates to all others."""
        return cast(Targets, self.roles[TARGETS].signed)

    @property
    def newest(self) -> dict[str, Metadata[Any]]:
        """The newest metadata of each role."""
        return {**self.roles, **({ROOT: self.roots[-1]} if self.roots else {})}

    def with_roles(self, roles: Mapping[str, Metadata[Any]]) -> RepositoryState:
        """Return a state with newer metadata of some roles."""
        others = dict(roles)
        root = [others.pop(ROOT)] if ROOT in others else []
        return RepositoryState([*self.roots, *root], {**self.roles, **others})

    def version(self, role: str) -> int:
        """Return the version of a role; 0 = never published."""
        return int(self.newest[role].signed.version) if role in self.newest else 0

    def delegated(self) -> list[str]:
        """Return the roles that `targets` delegates to."""
        delegations = self.targets.delegations
        return [] if delegations is None or delegations.roles is None else list(delegations.roles)

    def targets_of(self, role: str) -> dict[str, TargetFile]:
        """Return the targets that a delegated role lists, by path.

        Raises:
            UsageError: there is no such role.
        """
        if role not in self.roles:
            known = ", ".join(self.delegated())
            raise UsageError(f"the repository has no role {role}: it has {known} (add one with 'publish family add')")
        return cast("dict[str, TargetFile]", self.roles[role].signed.targets)


def read_state(path: Path) -> RepositoryState:
    """Return the published metadata.

    Raises:
        UsageError: nothing is. Untrusted: the file is damaged.
    """
    data = files.read(path / "state.json", MOST_STATE)
    if data is None:
        refuse_unpublished(path)
    return _state_of(data, f"{path}/state.json")


def refuse_unpublished(path: Path) -> NoReturn:
    """Refuse a publisher's directory without state.json.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"{path} has published nothing yet: the keys of root and targets must sign first "
        "('edge-ota publish request', 'sign', 'collect')"
    )


def _state_of(data: bytes, what: str) -> RepositoryState:
    found = parse(data, what, MOST_STATE)
    try:
        state = RepositoryState(
            [Metadata[Root].from_dict(one) for one in found["roots"]],
            {role: Metadata.from_dict(one) for role, one in found["roles"].items()},
        )
        state.delegated()  # a state without the role that delegates is damaged, too
        return state
    except (KeyError, TypeError, ValueError, RepositoryError) as error:
        raise Untrusted(f"{what} is damaged ({error}): restore it from a backup") from None


def write_state(path: Path, state: RepositoryState) -> None:
    """Store a state as the published one. `put_metadata` then writes it for readers."""
    value = {
        "schema": SCHEMA,
        "roots": [one.to_dict() for one in state.roots],
        "roles": {role: one.to_dict() for role, one in state.roles.items()},
    }
    files.write_durably(path / "state.json", to_canonical_json(value), 0o600)
    files.write_durably(path / "root.json", state.roots[-1].to_bytes())


@files.make_readable()
def put_metadata(repository: Path, state: RepositoryState) -> None:
    """Write the missing files of a state, in the order that readers need."""
    folder = repository / "metadata"
    files.make_directory(folder)
    delegated = [role for role in state.roles if role not in (TARGETS, SNAPSHOT, TIMESTAMP)]
    for role in (*sorted(delegated), TARGETS, SNAPSHOT):
        put(folder / f"{state.version(role)}.{role}.json", state.roles[role].to_bytes())
    put(folder / "timestamp.json", state.roles[TIMESTAMP].to_bytes())
    for root in state.roots:
        put(folder / f"{root.signed.version}.root.json", root.to_bytes())


@files.make_readable()
def put_targets(repository: Path, documents: Mapping[str, bytes]) -> None:
    """Write documents under the names of TUF's consistent snapshots. Each directory is synced once."""
    folders = set()
    for target, data in documents.items():
        path = repository / stored_target(target, hashlib.sha256(data).hexdigest())
        if _has(path, data):
            continue
        files.make_directory(path.parent)
        folders.add(path.parent)
        fresh = path.with_name(f".{path.name}.new")
        with files.wrap_errors(path):
            with files.create(fresh) as file:
                files.write(file, fresh, data)
                files.fsync(file, fresh)
            files.rename(fresh, path)
    for folder in sorted(folders):
        files.sync_directory(folder)


@files.make_readable()
def put(path: Path, data: bytes) -> None:
    """Write a file atomically, unless it already has these bytes. All users may read it, because one serves it."""
    if _has(path, data):
        files.allow_reading(path)
        return
    files.make_directory(path.parent)
    files.write_durably(path, data)


def _has(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


@files.make_readable()
def put_blob(repository: Path, sha256: str, source: Path, *, copy: bool = False) -> bool:
    """Add a blob to the repository, verified. Return False if it is already there. A damaged one is replaced.

    Args:
        copy: the blob is a copy, because `source` is in other hands; else a hard link, so all users may read `source`.

    Raises:
        Untrusted: the source has other bytes.
    """
    target = repository / blob_path(sha256)
    if target.is_file() and files.sha256_of(target)[0] == sha256:
        files.allow_reading(target)
        return False
    files.make_directory(target.parent)
    if copy:
        files.replace_by_copy(source, target, sha256)
    elif files.sha256_of(source)[0] == sha256:
        files.replace_by_link(source, target)
    else:
        raise Untrusted(f"{source} is damaged: its SHA-256 is not {sha256}; make the bundle again")
    files.allow_reading(target)
    return True


def stored_target(target: str, sha256: str) -> str:
    """Return the path of a target's file in the repository."""
    folder, _, base = target.rpartition("/")
    return f"targets/{folder}/{sha256}.{base}"


def read_target(repository: Path, target: str, listed: TargetFile) -> bytes:
    """Return the verified bytes of a document that a role lists.

    Raises:
        StoreError: it does not exist. Untrusted: it has other bytes.
    """
    path = repository / stored_target(target, listed.hashes["sha256"])
    data = files.read(path)
    if data is None:
        raise StoreError(f"{path} does not exist: restore the repository from a backup, or publish it again")
    if hashlib.sha256(data).hexdigest() != listed.hashes["sha256"] or len(data) != listed.length:
        raise Untrusted(f"{path} was changed: it is not what {target} was signed for; restore it from a backup")
    return data


def join_names(roles: Iterable[str]) -> str:
    """Return roles as a phrase: `root and targets`."""
    found = list(roles)
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
