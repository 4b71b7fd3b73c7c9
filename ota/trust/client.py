"""TUF client: refreshes a repository's signed metadata, and verifies documents. Only this file imports tuf.ngclient.

It adds to that library: version floors, time as an argument, several mirrors, strict JSON, durable files, a lock, and
the errors of edge-ota.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from tuf.api import exceptions
from tuf.api.metadata import Metadata, Root, Signed, TargetFile, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from ota import files
from ota.errors import AlreadyRunning, FetchError, NotInRepository, OtaError, StoreError, Untrusted
from ota.source import RepositorySource
from ota.strict_json import MOST_INTEGER, parse
from ota.trust.floors import Floors
from ota.trust.roles import role_of
from ota.trust.roots import MOST_METADATA, MOST_ROOTS, stored_roots
from ota.trust.tuf_errors import translate_errors
from ota.trust.verified import VerifiedRole, check_delegation, issue_time, verified_roles

#: documents that are kept in metadata/targets; each is small
MOST_CACHED = 64
_COPY_AGAIN = "copy the whole repository again, or wait until it is published completely"
_LATEST = datetime.max.replace(tzinfo=timezone.utc).timestamp() - 86400


class SignedTarget(NamedTuple):
    """The SHA-256 and length of a target in signed metadata."""

    sha256: str
    size: int


class TrustClient:
    """The trusted metadata of a repository at one moment.

    Args:
        metadata_dir: TUF's local metadata; made when it does not exist.
        root: the factory root's bytes.
        source: the repository, or its mirrors in the order in which they are tried.
        floors: the version floors; raised and saved here.
        now: seconds since the epoch; expiry is judged by it, and by the times in `floors` when those are later. A
            refresh may bring a later time.
        grace: seconds for which expired metadata is accepted: an operator at the device asked for it.
    """

    def __init__(
        self,
        metadata_dir: Path,
        root: bytes,
        source: RepositorySource | Sequence[RepositorySource],
        floors: Floors,
        now: float,
        *,
        grace: float = 0.0,
    ) -> None:
        self._dir = metadata_dir
        self._root = root
        self._sources: list[RepositorySource] = list(source) if isinstance(source, Sequence) else [source]
        self._floors = floors
        self._system_now = now
        self._now = self._floored_now()
        self._grace = grace
        self._had_metadata = (metadata_dir / "timestamp.json").exists()
        self._updater: Updater | None = None
        self._seen: dict[str, Signed] = {}

    def _floored_now(self) -> float:
        return min(max(self._system_now, self._floors.issued, self._floors.good_time), _LATEST)

    def refresh(self, now: float | None = None) -> None:
        """Fetch and verify the metadata of root, timestamp, snapshot, and targets. Check the floors, and raise them.

        Args:
            now: seconds since the epoch, by which expiry is judged from here; None = as before.

        Raises:
            FetchError: no mirror delivered.
            Expired, RolledBack, Untrusted: no mirror has metadata that may be relied on.
            StoreError, AlreadyRunning: the metadata directory cannot be written, or another process writes it.
        """
        self._system_now = self._system_now if now is None else now
        self._now = self._floored_now()
        failures: list[OtaError] = []
        for number, source in enumerate(self._sources):
            try:
                self._updater, self._seen = None, {}
                self._refresh(source)
            except (FetchError, Untrusted) as error:
                failures.append(error)
            else:
                self._sources.insert(0, self._sources.pop(number))
                return
        worst = next((one for one in failures if isinstance(one, Untrusted)), failures[0])
        if len(failures) > 1:
            raise type(worst)(f"{worst.message} (all {len(failures)} mirrors failed)") from worst
        raise worst

    def is_refreshed(self) -> bool:
        """Return whether a refresh succeeded, so that targets and documents need no other one."""
        return self._updater is not None

    def target(self, path: str) -> SignedTarget | None:
        """Return hash and length of a target; None = the role that may list it does not.

        Raises:
            OtaError: as `refresh`; also when the targets role lets another role list the path.
        """
        info = self._info(path)
        if info is None:
            return None
        sha256 = info.hashes.get("sha256")
        if sha256 is None:
            raise Untrusted(f"{path} is listed without a SHA-256: the publisher must list it again")
        return SignedTarget(sha256, info.length)

    def document(self, path: str, most_bytes: int) -> bytes:
        """Return the signed bytes of a small target, from the cache or the repository.

        Raises:
            NotInRepository: the metadata does not list it.
            FetchError: no mirror delivered it, or none has the file, although the metadata lists it.
            Untrusted: it is longer than `most_bytes`, or no mirror has the signed bytes.
            OtaError: as `refresh`.
        """
        info = self._info(path)
        if info is None:
            raise NotInRepository(f"the repository's metadata does not list {path}: check its name, or publish it")
        if info.length > most_bytes:
            raise Untrusted(f"{path} is listed with {info.length} bytes, expected at most {most_bytes}")
        with translate_errors(self._now):
            cached = self._dir / "targets" / hashlib.sha256(path.encode()).hexdigest()
            with contextlib.suppress(StoreError, exceptions.RepositoryError):
                if (data := files.read(cached, most_bytes)) is not None:
                    info.verify_length_and_hashes(data)
                    return data
            data = self._fetch(info)
            self._cache(cached, data)
        return data

    def floor(self, name: str, path: str) -> int:
        """Return the stored floor of a value in the document `path`; 0 = none."""
        keys, threshold = self._keys_of(path)
        return self._floors.floor(name, keys, threshold)

    def raise_floor(self, name: str, path: str, value: int) -> None:
        """Raise the floor of a value in the document `path` durably: a rollout's serial, a bundle's release counter.

        The floor ends with the keys of the role that lists the document, as the floors of versions do.

        Args:
            name: such as `serial/plant-a`, `counter/det`.

        Raises:
            RolledBack: the value is below the floor.
        """
        keys, threshold = self._keys_of(path)
        self._floors.check(name, value, keys, threshold)
        self._floors.raise_to(name, value, keys, threshold)
        self._floors.save()

    def versions(self) -> dict[str, int]:
        """Return the version of each role that was verified so far."""
        return {one.role: one.signed.version for one in self._verified()}

    def expires(self) -> dict[str, float]:
        """Return when each role expires (epoch), for the roles that were verified so far."""
        return {one.role: one.signed.expires.timestamp() for one in self._verified()}

    def _refresh(self, source: RepositorySource) -> None:
        with translate_errors(self._now), self._locked():
            before = self._inodes()
            try:
                updater = self._updater_of(source)
                last = updater._trusted_set.root.version + updater.config.max_root_rotations
                try:
                    updater.refresh()
                except exceptions.RepositoryError as error:
                    if updater._trusted_set.root.version == last:
                        text = (
                            f"the repository has more than {MOST_ROOTS} new roots; this run got to {last}, run it again"
                        )
                        raise FetchError(text) from error
                    if not self._discard_issued(updater):
                        raise
                    updater = self._updater_of(source)
                    updater.refresh()
                self._accept(updater)
            finally:
                self._sync(before)
            self._note_lost()
            self._floors.save()
            self._updater = updater

    def _discard_issued(self, updater: Updater) -> bool:
        """Discard the time of a timestamp whose keys the newest root no longer has. Return whether there was one."""
        role = updater._trusted_set.root.roles[Timestamp.type]
        found = self._floors.discard_issued(role.keyids, role.threshold)
        self._now = self._floored_now()
        return found

    def _discard_foreign_metadata(self, version: int) -> None:
        """Discard local metadata that was verified from another factory root: it may be of another publisher.

        Otherwise, a stored root of that publisher would be taken for the successor of this factory root, here or by the
        root side of system updates. `_accept` judges the floors, once the new chain of roots is verified.
        """
        history = self._dir / "root_history"
        known = None
        with contextlib.suppress(StoreError, exceptions.RepositoryError):
            known = _digest(files.read(history / f"{version}.root.json", MOST_METADATA) or b"")
        if known != _digest(self._root):
            for path in (*history.glob("*.root.json"), *self._dir.glob("*.json")):
                files.unlink(path)

    def _roots(self, updater: Updater) -> frozenset[str]:
        """Return the digests of the factory root, and of the newest roots that follow on it."""
        first, newest = Metadata[Root].from_bytes(self._root).signed.version, updater._trusted_set.root.version
        found = {_digest(self._root)}
        for version in range(max(first, newest - MOST_ROOTS) + 1, newest + 1):
            found.add(_digest(files.read(self._dir / "root_history" / f"{version}.root.json", MOST_METADATA) or b""))
        return frozenset(found)

    def _updater_of(self, source: RepositorySource) -> Updater:
        version = Metadata[Root].from_bytes(self._root).signed.version
        self._discard_foreign_metadata(version)
        config = UpdaterConfig(
            max_root_rotations=stored_roots(self._dir, version) + MOST_ROOTS, targets_max_length=MOST_METADATA
        )
        updater = Updater(str(self._dir), "metadata", fetcher=_Fetcher(source), config=config, bootstrap=self._root)
        # private, because there is no argument for it; tests/ota/trust/test_freshness.py fails if it loses its effect
        updater._trusted_set.reference_time = datetime.fromtimestamp(self._now - self._grace, timezone.utc)
        return updater

    def _info(self, path: str) -> TargetFile | None:
        if self._updater is None:
            self.refresh()
        updater = self._updater
        assert updater is not None
        with translate_errors(self._now), self._locked():
            check_delegation(updater._trusted_set.targets, path)
            before = self._inodes()
            try:
                info = updater.get_targetinfo(path)
                self._accept(updater)
            except Untrusted:
                self._updater = None  # it has the refused role; other documents need none of it
                raise
            finally:
                self._sync(before)
            self._floors.save()
        return info

    def _accept(self, updater: Updater) -> None:
        """Check all floors, then raise them. Those of another publisher do not count."""
        roots = self._roots(updater)
        self._floors.discard_others(updater._trusted_set.root.version, roots)
        verified = list(verified_roles(updater._trusted_set, roots))
        for one in verified:
            self._check_unchanged(one)
            self._floors.check(f"role/{one.role}", one.signed.version, one.keys, one.threshold)
        issued_at = issue_time(updater._trusted_set)
        signed_by = updater._trusted_set.root.roles[Timestamp.type]
        for one in verified:
            self._floors.raise_to(f"role/{one.role}", one.signed.version, one.keys, one.threshold, is_deep=one.is_deep)
        self._floors.raise_issued(issued_at, signed_by.keyids, signed_by.threshold)

    def _check_unchanged(self, one: VerifiedRole) -> None:
        """Refuse other metadata for a role that was already verified in this run.

        tuf 7.0.1 keeps one metadata for each name: a role that delegates to the name of another, with keys of its own,
        would replace it, and later questions would be answered from there.
        """
        known = self._seen.setdefault(one.role, one.signed)
        if known is not one.signed and known != one.signed:
            raise Untrusted(
                f"the metadata of {one.role} changed during the run: another role delegates to that name; "
                "revoke the key of the role that does"
            )

    def _note_lost(self) -> None:
        """Record the loss of the floors: there was metadata of earlier runs, and no floors in any place."""
        if not self._floors.found and self._had_metadata:
            self._floors.lost = self._now
        self._floors.found = True

    def _verified(self) -> list[VerifiedRole]:
        return list(verified_roles(self._updater._trusted_set)) if self._updater else []

    def _keys_of(self, path: str) -> tuple[Collection[str], int]:
        """Return the key IDs and the threshold of the role that lists a path."""
        role = role_of(path)
        for one in self._verified():
            if one.role == role:
                return one.keys, one.threshold
        raise Untrusted(f"the role {role} of {path} was not verified yet: ask for the document first")

    def _fetch(self, info: TargetFile) -> bytes:
        """Return a target's verified bytes from the first mirror that has them."""
        folder, slash, name = info.path.rpartition("/")
        where = f"targets/{folder}{slash}{next(iter(info.hashes.values()))}.{name}"
        failures: list[OtaError] = []
        for source in self._sources:
            try:
                with translate_errors(self._now):
                    data = _got(source, where, info.length)
                    info.verify_length_and_hashes(data)
                    return data
            except NotInRepository as error:  # only signed metadata may say that a document does not exist
                failures.append(FetchError(f"{error.message}, but signed metadata lists it: {_COPY_AGAIN}"))
            except (FetchError, Untrusted) as error:
                failures.append(error)
        raise next((one for one in failures if isinstance(one, Untrusted)), failures[0])

    def _cache(self, path: Path, data: bytes) -> None:
        """Store a document for the next run. On a full disk it is fetched again."""
        with contextlib.suppress(StoreError):
            files.make_directory(path.parent)
            files.write_durably(path, data)
            known = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime_ns)
            for old in known[: -MOST_CACHED or None] if len(known) > MOST_CACHED else []:
                files.unlink(old)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the metadata directory, because tuf writes files there."""
        files.make_directory(self._dir)
        with open(os.open(self._dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRunning(f"another edge-ota is working on {self._dir}: wait until it has ended") from None
            yield

    def _inodes(self) -> dict[Path, int]:
        """Return the inodes of the metadata files. tuf replaces a file by a new one."""
        found = {}
        for folder in (self._dir, self._dir / "root_history"):
            with contextlib.suppress(FileNotFoundError):
                for entry in os.scandir(folder):
                    if entry.is_file(follow_symlinks=False) and entry.name.startswith("tmp"):
                        os.unlink(entry.path)  # a process was killed while it wrote
                    elif entry.is_file(follow_symlinks=False):
                        found[Path(entry.path)] = entry.inode()
        return found

    def _sync(self, before: dict[Path, int]) -> None:
        """Sync the files that tuf wrote, because tuf does not."""
        for path, inode in self._inodes().items():
            if before.get(path) != inode:
                with files.reopen(path) as file:
                    files.fsync(file, path)
        for folder in (self._dir / "root_history", self._dir):
            if folder.is_dir():
                files.sync_directory(folder)


class _Fetcher(FetcherInterface):
    """Returns metadata of a `RepositorySource` to tuf, in memory and as strict JSON."""

    def __init__(self, source: RepositorySource) -> None:
        self._source = source

    def _fetch(self, url: str) -> Iterator[bytes]:
        raise NotImplementedError("metadata comes through download_bytes")

    def download_bytes(self, url: str, max_length: int) -> bytes:
        """Return a metadata file.

        Raises:
            tuf.api.exceptions.DownloadHTTPError: there is no such root: the one before is the newest.
            FetchError, Untrusted: it did not come, or is no strict JSON.
        """
        max_length = min(max_length, MOST_METADATA)  # tuf takes any length that the role before has signed
        try:
            data = _got(self._source, url, max_length)
        except NotInRepository as error:
            if url.endswith(".root.json"):
                raise exceptions.DownloadHTTPError(error.message, 404) from error
            raise FetchError(
                f"the repository lacks {url}: check its address, or wait until it is published completely"
            ) from error
        signed = parse(data, url, max_length).get("signed")
        version = signed.get("version") if isinstance(signed, dict) else None
        if isinstance(version, bool) or (isinstance(version, int) and version > MOST_INTEGER):
            text = f"{url} has version {version}, expected a number of at most {MOST_INTEGER}"
            raise Untrusted(f"{text}: its key was misused, rotate it")
        return data


def _digest(root: bytes) -> str:
    """Return the SHA-256 of the signed part of a root, in canonical form: a copy may have other newlines or signatures.

    Raises:
        tuf.api.exceptions.RepositoryError: it is no metadata of TUF.
    """
    return hashlib.sha256(Metadata[Root].from_bytes(root).signed_bytes).hexdigest()


def _got(source: RepositorySource, path: str, most_bytes: int) -> bytes:
    """Return a file of a source. Raise only errors of edge-ota, and refuse more than `most_bytes`."""
    try:
        data = source.get(path, most_bytes)
    except OtaError:
        raise
    except Exception as error:
        raise FetchError(f"cannot fetch {path}: {type(error).__name__}: {error}; the next run tries again") from error
    if len(data) > most_bytes:
        raise FetchError(f"{path} has more than {most_bytes} bytes, which is what signed metadata allows")
    return data
