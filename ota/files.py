"""Every operation on disk of the agent.

Each operation calls `point`, so that tests can record it, fail it, or end the process there. A file that must survive a
power cut is written by `write_durably`: to a temporary name, fsync, rename, fsync of the directory. The store assembles
a directory tree in `stage/`, syncs it, and renames it into place.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ota.errors import NoSpace, StoreError, Untrusted, UsageError

#: no document of edge-ota is longer
MOST_DOCUMENT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DiskOperation:
    """One change of the disk.

    Attributes:
        kind: create, write, fsync, rename, link, symlink, unlink, mkdir, rmdir, chmod, truncate.
        path: what is changed; target: where it goes (rename, link), or what a link names (symlink).
        data: what is written, at `offset`.
    """

    kind: str
    path: str
    target: str = ""
    data: bytes = b""
    offset: int = 0


def _nothing(operation: DiskOperation) -> None:
    """Do nothing before the operation."""


#: called before each operation; tests replace it
point: Callable[[DiskOperation], None] = _nothing


def read(path: Path, most: int = MOST_DOCUMENT) -> bytes | None:
    """Return the bytes of a regular file; None = there is no such file.

    Raises:
        StoreError: it cannot be read, is longer than `most`, or is not a regular file.
    """
    with wrap_errors(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError(f"{path} is not a regular file")
            data = file.read(most + 1)
    if len(data) > most:
        raise StoreError(f"{path} has more than {most} bytes")
    return data


def read_given(path: Path, expected: str, most: int = MOST_DOCUMENT) -> bytes:
    """Return the bytes of a file that the user named.

    Args:
        expected: what the file should be, for the message.

    Raises:
        UsageError: there is no such file. StoreError: as `read`.
    """
    data = read(path, most)
    if data is None:
        raise UsageError(f"{path} does not exist: expected {expected}")
    return data


def read_pieces(path: Path, size: int = 1024 * 1024) -> Iterator[bytes]:
    """Yield a file in pieces of `size` bytes.

    Raises:
        StoreError: it cannot be read.
    """
    with wrap_errors(path), open(path, "rb") as file:
        while piece := file.read(size):
            yield piece


def write_durably(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace a file, so that after a power cut either the old or the new one is there, complete.

    Raises:
        StoreError: the disk does not take it (NoSpace: it is full).
    """
    fresh = path.with_name(f".{path.name}.new")
    with wrap_errors(path):
        with create(fresh, mode) as file:
            write(file, fresh, data)
            fsync(file, fresh)
        rename(fresh, path)
        sync_directory(path.parent)


def create(path: Path, mode: int = 0o644) -> BinaryIO:
    """Open an empty file for reading and writing. Truncate an existing one."""
    point(DiskOperation("create", str(path)))
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    return open(os.open(path, flags, mode), "r+b", buffering=0)


@contextlib.contextmanager
def make_readable() -> Iterator[None]:
    """Create files and directories that all users may read, whatever the umask is."""
    before = os.umask(0o022)
    os.umask(before & 0o022)
    try:
        yield
    finally:
        os.umask(before)


def allow_reading(path: Path) -> None:
    """Let all users read an existing file. The file system of a stick may have no permissions."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o444 != 0o444:
        with contextlib.suppress(OSError):
            chmod(path, mode | 0o444)


def reopen(path: Path) -> BinaryIO:
    """Open an existing file for reading and writing, at its end."""
    file = open(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), "r+b", buffering=0)  # noqa: SIM115 (the caller closes it)
    file.seek(0, os.SEEK_END)
    return file


def write(file: BinaryIO, path: Path, data: bytes) -> None:
    """Write all of `data` at the position of the file."""
    point(DiskOperation("write", str(path), data=data, offset=file.tell()))
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def truncate(file: BinaryIO, path: Path, size: int) -> None:
    """Truncate a file, and go to its end."""
    point(DiskOperation("truncate", str(path), offset=size))
    file.truncate(size)
    file.seek(size)


def fsync(file: BinaryIO, path: Path) -> None:
    """Make the written bytes durable."""
    point(DiskOperation("fsync", str(path)))
    os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    point(DiskOperation("fsync", str(path)))
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(path: Path, target: Path) -> None:
    """Rename a file, replacing `target`."""
    point(DiskOperation("rename", str(path), str(target)))
    os.rename(path, target)


def link(path: Path, target: Path) -> None:
    """Create a hard link; a copy where the file system has no hard links."""
    point(DiskOperation("link", str(path), str(target)))
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP):
            raise
        shutil.copyfile(path, target, follow_symlinks=False)
        with reopen(target) as file:
            os.fsync(file.fileno())


def replace_by_link(path: Path, target: Path) -> None:
    """Replace a file durably by a hard link to `path`. Safe to repeat after a crash.

    Raises:
        StoreError: `path` does not exist, or the disk does not take the link.
    """
    fresh = target.with_name(f".{target.name}.new")
    with wrap_errors(target):
        with contextlib.suppress(FileNotFoundError):
            unlink(fresh)
        link(path, fresh)
        rename(fresh, target)
        with contextlib.suppress(FileNotFoundError):  # rename(2) leaves both names of one file as they are
            unlink(fresh)
        sync_directory(target.parent)


def replace_by_copy(path: Path, target: Path, sha256: str) -> None:
    """Replace a file durably by a copy of `path`, which another program may change meanwhile.

    Raises:
        StoreError: `path` cannot be read, or the disk does not take the copy.
        Untrusted: the copied bytes have another SHA-256; `target` stays.
    """
    fresh, found = target.with_name(f".{target.name}.new"), hashlib.sha256()
    with wrap_errors(target):
        with contextlib.suppress(FileNotFoundError):
            unlink(fresh)  # perhaps a hard link
        with create(fresh) as file:
            for piece in read_pieces(path):
                found.update(piece)
                write(file, fresh, piece)
            fsync(file, fresh)
        if found.hexdigest() != sha256:
            unlink(fresh)
            raise Untrusted(f"{path} has another SHA-256 than {sha256}: get an undamaged copy, and repeat this command")
        rename(fresh, target)
        sync_directory(target.parent)


def symlink(path: Path, target: str) -> None:
    """Create a symbolic link at `path` to `target`."""
    point(DiskOperation("symlink", str(path), target))
    os.symlink(target, path)


def replace_symlink(path: Path, target: str) -> None:
    """Replace a symbolic link atomically and durably."""
    fresh = path.with_name(f".{path.name}.new")
    with wrap_errors(path):
        try:
            with contextlib.suppress(FileNotFoundError):
                unlink(fresh)
        except OSError:  # another user made a directory of that name: the directory may be shared
            fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        symlink(fresh, target)
        rename(fresh, path)
        sync_directory(path.parent)


def unlink(path: Path) -> None:
    """Remove a file or a link."""
    point(DiskOperation("unlink", str(path)))
    os.unlink(path)


def chmod(path: Path, mode: int) -> None:
    """Set the permissions of an existing file or directory."""
    point(DiskOperation("chmod", str(path), offset=mode))
    os.chmod(path, mode)


def sha256_of(path: Path) -> tuple[str, int]:
    """Return the SHA-256 and the length of a regular file.

    Raises:
        StoreError: it does not exist, is not a regular file, or cannot be read.
    """
    found, size = hashlib.sha256(), 0
    with (
        wrap_errors(path),
        open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file,
    ):
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise StoreError(f"{path} is not a regular file")
        while data := file.read(1024 * 1024):
            found.update(data)
            size += len(data)
    return found.hexdigest(), size


def has_size(path: Path, size: int) -> bool:
    """Return whether a regular file of this length exists. A symbolic link is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Create a directory and its parents, durably. An existing one is left as it is."""
    with wrap_errors(path):
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for one in reversed(missing):
            point(DiskOperation("mkdir", str(one)))
            with contextlib.suppress(FileExistsError):
                os.mkdir(one, mode)
            sync_directory(one.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory with its contents. Links are removed, not followed."""
    with wrap_errors(path):
        for folder, names, files in os.walk(path, topdown=False, followlinks=False):
            for name in files:
                unlink(Path(folder, name))
            for name in names:
                inner = Path(folder, name)
                if inner.is_symlink():
                    unlink(inner)
                else:
                    _remove_directory(inner)
        with contextlib.suppress(FileNotFoundError):
            _remove_directory(path)


def _remove_directory(path: Path) -> None:
    point(DiskOperation("rmdir", str(path)))
    os.rmdir(path)


@contextlib.contextmanager
def wrap_errors(path: Path) -> Iterator[None]:
    """Turn errors of the system into StoreError, with the path."""
    try:
        yield
    except OSError as error:
        raise to_store_error(error, path) from error


def to_store_error(error: OSError, path: Path) -> StoreError:
    """Return the StoreError for an error of the system. A copy, a link, or a rename fails at its new path."""
    text = f"{error.filename2 or error.filename or path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"{text}; free space on that disk, or lower what is kept ('edge-ota gc')")
    if error.errno in (errno.EACCES, errno.EPERM):
        return StoreError(f"{text}; run edge-ota as root, or as the user that owns its state directory")
    return StoreError(text)
