"""Fetches the files of a release into the store: writes `partial/<sha256>`, verifies, syncs, renames it to the blob.

A blob in the store is complete. A partial file is resumed at its end. Bytes that were not synced before a power cut may
be garbage of the right length, so the whole file is hashed at the end, and a bad piece is fetched again. OTA.md 4.6.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ota import files
from ota.clock import TimeSource
from ota.documents.manifest import FileEntry
from ota.documents.names import blob_path
from ota.errors import FetchError, NoSpace, StoreError, WrongBytes
from ota.fetch import disk_space
from ota.fetch.chunks import ChunkIndex, Piece, pieces_of
from ota.fetch.failures import RequestFailed
from ota.fetch.limiter import DownloadLimiter, Progress, no_progress
from ota.fetch.limits import SpeedWindow
from ota.fetch.mirrors import DownloadRestarted, Mirrors
from ota.layout import StateLayout
from ota.settings import AgentSettings
from ota.source import RepositorySource, StartOver

if TYPE_CHECKING:
    from hashlib import _Hash

#: a request with so many bytes resets the count of consecutive failures
HEADWAY_BYTES = 16 * 1024
#: a source that sends less, averaged over the setting TIMEOUT, fails the request if there is another source
LEAST_BESIDE_OTHERS = 4096
BLOCK_BYTES = 1024 * 1024
FILE_MODE = 0o640
FOLDER_MODE = 0o750


class BlobFetcher:
    """Fetches blobs within the limits of one run. Implements `agent.components.Fetcher`.

    Args:
        sources: the mirrors, in the order in which they are tried.
        apply: an operator asked for it: hours, the metered link, and an earlier full disk do not count.
    """

    def __init__(
        self,
        settings: AgentSettings,
        layout: StateLayout,
        sources: Sequence[RepositorySource],
        clock: TimeSource,
        *,
        apply: bool = False,
    ) -> None:
        self._settings, self._layout, self._clock, self._apply = settings, layout, clock, apply
        self._mirrors = Mirrors(sources, clock)
        self._pace = DownloadLimiter(settings, clock, apply=apply)
        self._index = ChunkIndex()

    def missing(self, entries: Iterable[FileEntry]) -> int:
        """Return the bytes that a fetch would transfer. Pieces that another file on this device has are not
        transferred.

        Raises:
            NoSpace: the disk or the quota has no room for what is missing, or had none in the last day and did not
                grow.
        """
        absent = self._find_absent(entries)
        if not absent:
            return 0
        there = {one.sha256: self._begun(one) for one in absent}
        missing = sum(one.size - there[one.sha256] for one in absent)
        room = disk_space.measure(self._layout, self._settings.quota, self._settings.reserve)
        disk_space.check(self._layout, room, missing, len(absent), self._clock.now(), by_hand=self._apply)
        index = ChunkIndex.stored(self._layout)
        pieces = ((piece, there[one.sha256]) for one in absent for piece in pieces_of(one))
        return sum(
            min(piece.size, piece.end - have) for piece, have in pieces if have < piece.end and not index.find(piece)
        )

    def fetch(self, entries: Iterable[FileEntry], progress: Progress = no_progress) -> None:
        """Fetch files into the store.

        Args:
            progress: called at most twice a second, and at the end.

        Raises:
            NotInRepository: no mirror has one of them.
            FetchError: they did not come; the next call resumes.
            WrongBytes: each mirror delivered something else, or the manifest's chunks do not make up its file.
            StoreError: the disk failed (NoSpace: it is full); what came stays for the next call.
            Postponed: the limits of the run ended it; the next call resumes.
        """
        absent = self._find_absent(entries)
        if not absent:
            return
        self._pace.begin(sum(one.size for one in absent), progress)
        self._index = ChunkIndex.stored(self._layout)
        try:
            for one in absent:
                self._fetch(one)
        except NoSpace:
            disk_space.record_failure(self._layout, self._clock.now())
            raise
        disk_space.remove_failure(self._layout)
        self._pace.finish()

    def _find_absent(self, entries: Iterable[FileEntry]) -> list[FileEntry]:
        """Return the files that the store does not have, each once."""
        found = {one.sha256: one for one in entries}
        return [one for one in found.values() if not files.has_size(self._layout.blob(one.sha256), one.size)]

    def _begun(self, entry: FileEntry) -> int:
        """Return the number of bytes of an earlier download that a fetch would resume."""
        try:
            size = os.lstat(self._layout.partial / entry.sha256).st_size
        except OSError:
            return 0
        return size if size <= entry.size else 0

    def _fetch(self, entry: FileEntry) -> None:
        partial, target = self._layout.partial / entry.sha256, self._layout.blob(entry.sha256)
        files.make_directory(partial.parent, FOLDER_MODE)
        files.make_directory(target.parent, FOLDER_MODE)
        try:
            with _open_partial(partial) as file:
                part = _Part(file, partial, entry)
                self._fill(part)
                self._check(part)
                files.fsync(file, partial)
            files.rename(partial, target)
            files.sync_directory(target.parent)
        except OSError as error:
            raise files.to_store_error(error, partial) from error

    def _fill(self, part: _Part) -> None:
        """Append the missing pieces. Pieces that are complete are verified at the end, all at once."""
        if part.length() > part.entry.size:
            part.empty()
        there = part.length()
        self._pace.done(there)
        for piece in part.pieces:
            if there < piece.end or there == piece.end == 0:
                self._bring(part, piece, max(0, there - piece.offset))
            part.seen.setdefault(piece.sha256, piece)

    def _check(self, part: _Part) -> None:
        """Hash the whole file. Fetch bad pieces again."""
        for again in (False, True):
            if part.digest(0, part.entry.size).hexdigest() == part.entry.sha256:
                return
            bad = [one for one in part.pieces if part.digest(one.offset, one.size).hexdigest() != one.sha256]
            if not bad or again:
                break
            for piece in bad:
                self._pace.done(-piece.size)
                self._bring(part, piece, 0)
        part.empty()
        if bad:
            raise StoreError(f"{part.path}: the disk returns other bytes than were written; check or replace it")
        raise WrongBytes(
            f"the chunks of {part.entry.path} do not make up the file of its manifest: publish a new release"
        )

    def _bring(self, part: _Part, piece: Piece, have: int) -> None:
        """Add a piece whose first `have` bytes are there: copy it from another file on this device, or fetch it."""
        if not have and self._copy(part, piece):
            return
        download = _Download(part, piece, have, self._pace, self._clock, self._settings.timeout)
        if not download.whole():
            self._pace.persist(lambda: self._mirrors.first(download.attempt))

    def _copy(self, part: _Part, piece: Piece) -> bool:
        place = self._index.find(piece)
        twin = part.seen.get(piece.sha256)
        if twin is not None and twin.offset < piece.offset:
            place = part.path, twin.offset
        if place is None:
            return False
        digest, offset = hashlib.sha256(), piece.offset
        for block in _blocks(*place, piece.size):
            part.write(offset, block)
            digest.update(block)
            offset += len(block)
            self._pace.done(len(block))
        if digest.hexdigest() == piece.sha256:
            return True
        self._pace.done(piece.offset - offset)
        part.cut(piece)
        return False


@dataclass(slots=True)
class _Part:
    """A partial file. `seen` has the pieces that are in it."""

    file: BinaryIO
    path: Path
    entry: FileEntry
    seen: dict[str, Piece] = field(default_factory=dict)

    @property
    def pieces(self) -> list[Piece]:
        return pieces_of(self.entry)

    def length(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def write(self, offset: int, data: bytes) -> None:
        self.file.seek(offset)
        files.write(self.file, self.path, data)

    def cut(self, piece: Piece) -> None:
        """Discard a piece at the end of the file. A piece before other pieces stays, and is overwritten."""
        if piece.offset < self.length() <= piece.end:
            files.truncate(self.file, self.path, piece.offset)

    def empty(self) -> None:
        """Discard everything."""
        files.truncate(self.file, self.path, 0)

    def digest(self, offset: int, count: int) -> _Hash:
        """Return the hash of a range on disk, or of its existing part if the file ends early."""
        found = hashlib.sha256()
        while count > 0 and (block := os.pread(self.file.fileno(), min(BLOCK_BYTES, count), offset)):
            found.update(block)
            offset, count = offset + len(block), count - len(block)
        return found


class _Download:
    """The download of a piece. Its state survives failed requests: the next one resumes.

    `_givers` has the sources of the bytes that are there; None = an earlier run.
    """

    def __init__(
        self, part: _Part, piece: Piece, have: int, pace: DownloadLimiter, clock: TimeSource, timeout: float
    ) -> None:
        self._part, self._piece, self._pace, self._clock, self._timeout = part, piece, pace, clock, timeout
        self._have = have
        self._digest = part.digest(piece.offset, have)
        self._givers: set[RepositorySource | None] = {None} if have else set()

    def whole(self) -> bool:
        """Return whether the piece is complete and has the right hash."""
        return self._have == self._piece.size and self._digest.hexdigest() == self._piece.sha256

    def attempt(self, source: RepositorySource, others: bool) -> None:
        """Fetch the rest of the piece from a source.

        Args:
            others: another source may deliver it, too.

        Raises:
            DownloadRestarted: it is wrong, and a part of it was there before; ask again.
            NotInRepository, FetchError: it did not come, or too slowly beside another source.
            WrongBytes: all of it came from this source, in one request or in several, and it is something else.
        """
        if self._have >= self._piece.size:
            self._restart()
        began = self._pace.received
        try:
            try:
                self._receive(source, others)
            except StartOver:
                self._restart()
                self._receive(source, others)
        except FetchError:
            if self._pace.received - began >= HEADWAY_BYTES:
                self._pace.headway()
            raise
        if self.whole():
            self._pace.headway()
            return
        found, alone = self._digest.hexdigest(), self._givers == {source}
        self._restart()
        if not alone:
            raise DownloadRestarted(f"{source}: {self._piece.sha256} was resumed and is wrong; fetching it again")
        raise WrongBytes(f"{source} delivered a file with the SHA-256 {found}, expected {self._piece.sha256}")

    def _receive(self, source: RepositorySource, others: bool) -> None:
        speed = SpeedWindow(LEAST_BESIDE_OTHERS if others else 0, self._timeout)
        started = self._clock.monotonic()
        for block in source.stream(blob_path(self._piece.sha256), self._have, self._piece.size):
            slow = speed.add(len(block), self._clock.monotonic() - started)
            self._givers.add(source)
            self._part.write(self._piece.offset + self._have, block)
            self._digest.update(block)
            self._have += len(block)
            self._pace.came(len(block))
            if slow and self._have < self._piece.size:
                raise RequestFailed(f"{source}: {speed.received} bytes in {speed.seconds:.0f} s; too slow")
            started = self._clock.monotonic()

    def _restart(self) -> None:
        self._pace.done(-self._have)
        self._have, self._digest = 0, hashlib.sha256()
        self._givers.clear()
        self._part.cut(self._piece)


def _open_partial(path: Path) -> BinaryIO:
    with contextlib.suppress(FileNotFoundError):
        return files.reopen(path)
    return files.create(path, FILE_MODE)


def _blocks(path: Path, offset: int, count: int) -> Iterator[bytes]:
    """Yield a range of a file. Ends early where the file cannot be read: the caller checks the hash."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while count > 0 and (block := os.pread(descriptor, min(BLOCK_BYTES, count), offset)):
                offset, count = offset + len(block), count - len(block)
                yield block
        finally:
            os.close(descriptor)
