"""Unpacks the archive of a Python environment into a cache: `python -m edge_serve.workers.launch.unpack ARCHIVE CACHE`.

A process of its own, because an archive has gigabytes. It prints a line of JSON: `{"directory": ...}` or
`{"error": ...}`.

    CACHE/<digest>/         an unpacked archive; its users hold a shared lock on the directory
    CACHE/<digest>.json     which archives have these bytes: path -> what `stat` said of it
    CACHE/<digest>.part/    one that is being unpacked, or that a lost process left

A process that changes the cache directory locks it, and waits for others that do. Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
from pathlib import Path

from edge_serve.errors import EdgeServeError, InvalidArgument, Unavailable
from edge_serve.files import locked, path_of

MOST_MEMBERS = 1_000_000
#: of all files together; the disk's free space is the other limit
MOST_BYTES = 64 << 30
#: free space that is left to others
SPARE_BYTES = 64 << 20
_CHUNK = 1 << 20
_DIGEST_LETTERS = 32

State = list[int]


def unpack_archive(archive: Path, cache: Path) -> Path:
    """Return the directory with the contents of `archive`. Unpack it, if that was not done before. Remove stale ones.

    Raises:
        InvalidArgument: it is no archive, or one that may not be unpacked.
        Unavailable: there is no room for it.
    """
    known = find_unpacked(archive, cache)
    if known is not None:
        with contextlib.suppress(BlockingIOError), locked(cache, fcntl.LOCK_EX | fcntl.LOCK_NB):
            remove_stale(cache, keep=known.name)
        return known
    archive = archive.resolve()
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(cache):
        while True:
            state = _state(archive)
            name = _known(cache, archive, state) or _digest(archive)
            directory = cache / name
            if directory.is_dir() or _unpack(archive, state, directory):
                break
        _record(cache, name, archive, state)
        remove_stale(cache, keep=name)
    return directory


def find_unpacked(archive: Path, cache: Path) -> Path | None:
    """Return the directory of an archive that has not changed since it was unpacked; None = there is none. It needs no
    lock, because `remove_stale` keeps such a directory."""
    archive = archive.resolve()
    name = _known(cache, archive, _state(archive))
    return cache / name if name is not None and (cache / name).is_dir() else None


def _unpack(archive: Path, state: State, directory: Path) -> bool:
    """Unpack the archive whose digest is the name of the new `directory`. Return False, and leave nothing, if it has
    changed since it had `state`: it may have been replaced after its digest was computed.

    Raises:
        InvalidArgument, Unavailable: see `unpack_archive`.
    """
    part = directory.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        extract(archive, part)
        if _state(archive) != state:
            return False
        os.sync()  # before the rename: after a power cut it is complete, or not there
        part.rename(directory)
        return True
    finally:
        shutil.rmtree(part, ignore_errors=True)


# ---- what is in the cache -------------------------------------------------------------------------------------------


def _state(archive: Path) -> State:
    """Return a value that changes when the file does."""
    found = archive.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _records(cache: Path) -> dict[str, dict[str, State]]:
    records: dict[str, dict[str, State]] = {}
    for path in cache.glob("*.json"):
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(document, dict):
            records[path.stem] = document
    return records


def _known(cache: Path, archive: Path, state: State) -> str | None:
    """Return the digest of an archive that has not changed since it was last read; None = it was not, or has."""
    for name, archives in _records(cache).items():
        if archives.get(str(archive)) == state:
            return name
    return None


def _digest(archive: Path) -> str:
    digest = hashlib.sha256()
    with open(archive, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()[:_DIGEST_LETTERS]


def _record(cache: Path, name: str, archive: Path, state: State) -> None:
    archives = _records(cache).get(name, {})
    if archives.get(str(archive)) == state:
        return
    path = cache / f"{name}.json"
    written = path.with_suffix(".json.part")
    written.write_text(json.dumps({**archives, str(archive): state}))
    written.replace(path)


def remove_stale(cache: Path, keep: str) -> None:
    """Remove unused environments whose archives have changed or disappeared. The cache must be locked."""
    records = _records(cache)
    for path in list(cache.iterdir()):
        if path.suffix == ".part" and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_dir() and path.name != keep and not _current(records.get(path.name, {})):
            with contextlib.suppress(OSError), locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                path.rename(part := path.with_suffix(".part"))
                path.with_suffix(".json").unlink(missing_ok=True)
                shutil.rmtree(part, ignore_errors=True)


def _current(archives: dict[str, State]) -> bool:
    for path, state in archives.items():
        with contextlib.suppress(OSError):
            if _state(Path(path)) == state:
                return True
    return False


# ---- the archive ----------------------------------------------------------------------------------------------------


def extract(archive: Path, target: Path) -> None:
    """Unpack into the new directory `target`: files, directories and links that stay inside; nothing else.

    Raises:
        InvalidArgument, Unavailable: see `unpack_archive`.
    """
    target.mkdir(mode=0o700)
    room = min(MOST_BYTES, shutil.disk_usage(target).free - SPARE_BYTES)
    try:
        with tarfile.open(archive, "r:*", tarinfo=_Member) as tar:
            _extract_all(tar, _Target(archive, target, room))
            _check_end(tar)
    except EdgeServeError:
        raise
    except Exception as error:  # the libraries of the compressions have types of their own, OSError without errno too
        if isinstance(error, OSError) and error.errno is not None:
            text = f"'{archive}' cannot be unpacked into {target.parent}: {error.strerror}"
            raise Unavailable(text) from error
        reason = str(error).partition("\n")[0].rstrip(":")  # for what is no archive, a line of each format follows
        raise InvalidArgument(f"'{archive}' is not a whole tar archive (gzip, bzip2, xz or plain): {reason}") from error


class _Member(tarfile.TarInfo):
    """A member, whose header must be right: tarfile takes a damaged one for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if any(buf):
                raise tarfile.ReadError(f"a member is damaged: {error}") from error
            raise


def _extract_all(tar: tarfile.TarFile, target: _Target) -> None:
    for count, member in enumerate(tar, 1):
        if count > MOST_MEMBERS:
            raise InvalidArgument(f"'{target.archive}' has more than {MOST_MEMBERS} members")
        if member.isdir():
            target.add_directory(member)
        elif member.isreg():
            target.add_file(tar, member)
        elif member.issym() or member.islnk():
            target.add_link(member)
        else:
            raise target.refusal(member, "is neither a file nor a directory nor a link")


def _check_end(tar: tarfile.TarFile) -> None:
    """Check that the members end as those of a whole archive, and read the rest, which has the compression's checksum.

    Raises:
        tarfile.ReadError: the archive ends too soon.
    """
    assert tar.fileobj is not None, "the archive is open"
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # the second of two; tarfile has read the first
        raise tarfile.ReadError("unexpected end of data")
    while tar.fileobj.read(_CHUNK):
        pass


class _Target:
    """The directory that an archive is unpacked into. Every path is resolved before it is written to: a link that was
    unpacked before must not lead out."""

    def __init__(self, archive: Path, root: Path, room: int) -> None:
        self.archive = archive
        self._root = os.path.realpath(root)
        self._room = room
        self._parents: dict[str, str] = {}

    def refusal(self, member: tarfile.TarInfo, reason: str) -> InvalidArgument:
        return InvalidArgument(f"'{self.archive}' is not unpacked: its member '{member.name}' {reason}")

    def add_directory(self, member: tarfile.TarInfo) -> None:
        path = self._place(member)
        if not os.path.isdir(path) or os.path.islink(path):
            self._clear(member, path)
            os.mkdir(path, 0o755)

    def add_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = self._place(member)
        self._room -= member.size
        if self._room < 0:
            raise Unavailable(f"'{self.archive}' holds more than fits on the disk of {self._root}, or than is allowed")
        self._clear(member, path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            source = tar.extractfile(member)
            assert source is not None, "a regular member has bytes"
            with source:
                shutil.copyfileobj(source, file, _CHUNK)
            os.fchmod(fd, 0o755 if member.mode & stat.S_IXUSR else 0o644)
        os.utime(path, (member.mtime, member.mtime))  # byte code says which time its source had

    def add_link(self, member: tarfile.TarInfo) -> None:
        path = self._place(member)
        if member.issym():
            if os.path.isabs(member.linkname) or not self._inside(os.path.join(os.path.dirname(path), member.linkname)):
                reason = f"is a link to '{member.linkname}', outside of the archive"
                if Path(member.name).match("bin/python*"):
                    reason += "; this is a virtual environment: name its directory, or pack a conda environment"
                raise self.refusal(member, reason)
            self._clear(member, path)
            os.symlink(member.linkname, path)
            self._parents.clear()
            return
        original = os.path.realpath(os.path.join(self._root, member.linkname))
        if os.path.isabs(member.linkname) or not self._inside(original) or not os.path.isfile(original):
            raise self.refusal(member, f"is a link to '{member.linkname}', which is no file of the archive")
        if original != path:
            self._clear(member, path)
            os.link(original, path)

    def _place(self, member: tarfile.TarInfo) -> str:
        """Return the path for a member, and make its directory, which must lie inside."""
        name = os.path.normpath(member.name)
        if name == ".":
            return self._root
        if os.path.isabs(name) or name == ".." or name.startswith("../") or "\0" in name:
            raise self.refusal(member, "lies outside of the archive")
        parent, last = os.path.split(name)
        real = self._parents.get(parent)
        if real is None:
            real = os.path.realpath(os.path.join(self._root, parent))
            if not self._inside(real):
                raise self.refusal(member, "lies outside of the archive")
            os.makedirs(real, 0o755, exist_ok=True)
            self._parents[parent] = real
        return os.path.join(real, last)

    def _inside(self, path: str) -> bool:
        real = os.path.realpath(path)
        return real == self._root or real.startswith(self._root + os.sep)

    def _clear(self, member: tarfile.TarInfo, path: str) -> None:
        """Remove an earlier member at this path. A directory is not replaced."""
        if path == self._root or (os.path.isdir(path) and not os.path.islink(path)):
            raise self.refusal(member, "has the name of a directory that came before")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            self._parents.clear()


def main(arguments: list[str]) -> None:
    """Print where the archive is unpacked, or why it is not."""
    try:
        answer = {"directory": str(unpack_archive(Path(arguments[0]), Path(arguments[1])))}
    except EdgeServeError as error:
        answer = {"error": error.message}
    except OSError as error:
        answer = {"error": _failure(Path(arguments[0]), Path(arguments[1]), error)}
    print(json.dumps(answer))


def _failure(archive: Path, cache: Path, error: OSError) -> str:
    """Return the text for an archive that cannot be read, or a cache that cannot be written."""
    place, reason = path_of(error) or str(cache), error.strerror or error
    if place == str(archive.resolve()):
        return f"'{archive}' cannot be read: {reason}"
    return (
        f"'{archive}' cannot be unpacked into '{cache}': '{place}': {reason}; name a directory that the server may "
        "write with --execution-env-directory"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
