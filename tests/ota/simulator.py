"""A signed repository in memory: an `ota.source.Source` made with tuf.api. It records what is fetched.

    repository = Repository()
    repository.add("bundles/det/det.1.json", b"...")     # the role follows from the path
    repository.publish()
    Trust(tmp_path / "metadata", repository.root(1), repository, floors, NOW).refresh()
    repository.fetched                                   # ["metadata/2.root.json", "metadata/timestamp.json", ...]

Attacks change `signed[role]` (values of tuf.api), `signers[role]`, or `files`, and sign with `write(role)`; a `write`
raises no version, `publish` raises those of the roles named, of snapshot, and of timestamp.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner, Signer
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Key,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from ota.documents.names import blob_path
from ota.errors import FetchError, NotInRepository
from ota.trust.roles import role_of

#: the time of all tests, unless they move it
NOW = datetime(2026, 11, 1, tzinfo=timezone.utc).timestamp()
DAY = 86400.0
#: role -> keys, threshold, days until it expires. OTA.md 4.2
ROLES = {
    "root": (3, 2, 365),
    "targets": (3, 2, 180),
    "models": (2, 1, 90),
    "engines": (3, 2, 90),
    "system": (3, 2, 180),
    "rollout": (2, 1, 14),
    "snapshot": (1, 1, 14),
    "timestamp": (1, 1, 3),
}


class Repository:
    """A repository whose keys are at hand.

    Args:
        families: model families; each gets a role models-<family>.
        now: when it is signed.

    Attributes:
        files: everything that a device can fetch, by path.
        fetched: the paths that were asked for, in order.
        signed: role -> its metadata, to be changed; signers: role -> its keys.
        before_get: called with each path before it is answered; tests publish, or raise, from there.
    """

    def __init__(self, families: tuple[str, ...] = ("det",), now: float = NOW) -> None:
        self.now = now
        self.files: dict[str, bytes] = {}
        self.fetched: list[str] = []
        self.signed: dict[str, Any] = {}
        self.signers: dict[str, list[Signer]] = {}
        self.before_get: Callable[[str], None] | None = None
        self.signed["root"] = Root(expires=self._expiry("root"), consistent_snapshot=True)
        for role in ("root", "timestamp", "snapshot", "targets"):
            count, threshold, _ = ROLES[role]
            self.signed["root"].roles[role].threshold = threshold
            for _ in range(count):
                self.add_key(role)
        self.signed["timestamp"] = Timestamp(expires=self._expiry("timestamp"))
        self.signed["snapshot"] = Snapshot(expires=self._expiry("snapshot"))
        self.signed["targets"] = Targets(expires=self._expiry("targets"), delegations=Delegations({}, {}))
        for family in families:
            self.delegate(f"models-{family}", [f"bundles/{family}/*"], terminating=True)
        self.delegate("engines", ["engines/*/*"])
        self.delegate("rollout", ["rollout/*", "devices/*"])
        self.delegate("system", ["system/*/*"])
        self.write("root")
        self.publish(*self.delegated(), raise_versions=False)

    # what devices do

    def get(self, path: str, most_bytes: int) -> bytes:
        """Return a file, as `Source.get`."""
        self.fetched.append(path)
        if self.before_get is not None:
            self.before_get(path)
        if path not in self.files:
            raise NotInRepository(f"{path} is not in the repository")
        if len(self.files[path]) > most_bytes:
            raise FetchError(f"{path} has more than {most_bytes} bytes")
        return self.files[path]

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield a file in pieces, as `Source.stream`."""
        data = self.get(path, length)
        for start in range(offset, len(data), 65536):
            yield data[start : start + 65536]

    # what publishers do

    def delegate(self, role: str, paths: list[str], *, terminating: bool = False, by: str = "targets") -> None:
        """Make a role with keys of its own, and let `by` delegate paths to it."""
        count, threshold, _ = ROLES.get(role.partition("-")[0], (1, 1, 90))
        delegations = self.signed[by].delegations
        delegations.roles[role] = DelegatedRole(role, [], threshold, terminating, paths)
        if role not in self.signed:
            self.signed[role] = Targets(expires=self._expiry(role), delegations=Delegations({}, {}))
            for _ in range(count):
                self.add_key(role, by)
        else:
            for signer in self.signers[role]:
                self.signed[by].add_key(_key_of(signer), role)

    def delegated(self) -> list[str]:
        """Return the delegated roles."""
        return [role for role in self.signed if role not in ("root", "timestamp", "snapshot", "targets")]

    def add_key(self, role: str, by: str = "root") -> Signer:
        """Give a role one more key."""
        signer = CryptoSigner.generate_ed25519()
        self.signers.setdefault(role, []).append(signer)
        self.signed[by].add_key(_key_of(signer), role)
        return signer

    def rotate(self, role: str, by: str = "root") -> list[Signer]:
        """Give a role new keys, as many as it had; its old ones are returned. Publish `by` and the role afterwards."""
        old = self.signers.pop(role)
        for signer in old:
            self.signed[by].revoke_key(_key_of(signer).keyid, role)
        for _ in old:
            self.add_key(role, by)
        return old

    def publish_root(self, *more_signers: Signer) -> None:
        """Publish a new root, signed by today's keys and by `more_signers` (the old ones, after a rotation)."""
        self.signed["root"].version += 1
        self.write("root", *more_signers)

    def add(self, path: str, data: bytes, role: str | None = None) -> None:
        """List a target, and store its file."""
        role = role or role_of(path) or "targets"
        target = TargetFile.from_data(path, data, ["sha256"])
        self.signed[role].targets[path] = target
        for hashed in target.get_prefixed_paths():
            self.files[f"targets/{hashed}"] = data

    def add_document(self, path: str, value: Mapping[str, Any]) -> None:
        """List one of our documents."""
        self.add(path, json.dumps(value).encode())

    def add_blob(self, data: bytes) -> str:
        """Store a blob; its SHA-256."""
        sha256 = hashlib.sha256(data).hexdigest()
        self.files[blob_path(sha256)] = data
        return sha256

    def publish(self, *roles: str, raise_versions: bool = True) -> None:
        """Sign the roles named (none = targets and all delegated ones), then snapshot and timestamp."""
        for role in roles or ("targets", *self.delegated()):
            if raise_versions:
                self.signed[role].version += 1
            self.write(role)
        if roles and not raise_versions:
            self.write("targets")
        self.publish_snapshot(raise_version=raise_versions)

    def publish_snapshot(self, *, raise_version: bool = True) -> None:
        """Sign a snapshot of the versions that there are, and a timestamp."""
        snapshot = self.signed["snapshot"]
        for role in ("targets", *self.delegated()):
            snapshot.meta[f"{role}.json"] = MetaFile(self.signed[role].version)
        snapshot.version += raise_version
        self.write("snapshot")
        self.publish_timestamp(raise_version=raise_version)

    def publish_timestamp(self, *, raise_version: bool = True) -> None:
        """Sign a timestamp for the snapshot that there is."""
        timestamp = self.signed["timestamp"]
        data = self.files[f"metadata/{self.signed['snapshot'].version}.snapshot.json"]
        timestamp.snapshot_meta = MetaFile.from_data(self.signed["snapshot"].version, data, ["sha256"])
        timestamp.version += raise_version
        timestamp.unrecognized_fields.setdefault("x-issued", _text(self.now))
        self.write("timestamp")

    def write(self, role: str, *more_signers: Signer) -> bytes:
        """Sign a role as it is, and store it under its name."""
        data = self.sign(self.signed[role], [*self.signers[role], *more_signers])
        name = "timestamp" if role == "timestamp" else f"{self.signed[role].version}.{role}"
        self.files[f"metadata/{name}.json"] = data
        return data

    def sign(self, signed: Any, signers: Sequence[Signer]) -> bytes:
        """Return metadata with signatures."""
        metadata: Metadata[Any] = Metadata(signed)
        for signer in signers:
            metadata.sign(signer, append=True)
        return metadata.to_bytes()

    def advance(self, seconds: float) -> None:
        """Let time pass, and set the expiry and the issued time of all roles anew. Publish afterwards."""
        self.now += seconds
        for role, signed in self.signed.items():
            signed.expires = self._expiry(role)
        self.signed["timestamp"].unrecognized_fields["x-issued"] = _text(self.now)

    def root(self, version: int = 1) -> bytes:
        """Return a root as a device was given it."""
        return self.files[f"metadata/{version}.root.json"]

    def copy(self) -> Repository:
        """Return the repository as it is now, to be served again later."""
        other = copy.copy(self)
        other.files, other.fetched = dict(self.files), []
        other.signed, other.signers = copy.deepcopy(self.signed), {k: list(v) for k, v in self.signers.items()}
        other.before_get = None
        return other

    def dump(self, directory: Path) -> None:
        """Write all files to disk: to look at, or to be served."""
        for path, data in self.files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(data)

    def _expiry(self, role: str) -> datetime:
        days = ROLES.get(role, ROLES.get(role.partition("-")[0], (1, 1, 90)))[2]
        return datetime.fromtimestamp(self.now, timezone.utc).replace(microsecond=0) + timedelta(days=days)


def _key_of(signer: Signer) -> Key:
    key: Key = signer.public_key
    return key


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
