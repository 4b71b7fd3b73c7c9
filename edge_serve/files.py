"""Reads the small files that an operator names: regular ones of bounded size, so no read blocks or fills memory.

Writes files so that a power cut leaves the old or the new one. Locks directories, and entries of a cache.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

#: bytes; a file of tokens for ten thousand clients takes one
LONGEST = 16 << 20
#: files of /proc refuse to be asked for megabytes
_AT_ONCE = 64 << 10


def read_small(path: str | os.PathLike[str]) -> bytes:
    """Return what a regular file holds. Opening a FIFO would wait for its writer, and a device may have no end.

    Raises:
        OSError: it cannot be read, is no regular file, or is longer than `LONGEST`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        data = bytearray()
        while block := file.read(_AT_ONCE):
            data += block
            if len(data) > LONGEST:
                raise OSError(errno.EFBIG, f"it is longer than {LONGEST} bytes", path)
    return bytes(data)


def find_within(directory: Path, name: str) -> Path | None:
    """Return the path of `name` in a directory; None if it leads out of it. A link there may lead anywhere: its author
    could write to the directory."""
    path = Path(os.path.normpath(directory / name))
    return path if path.is_relative_to(os.path.normpath(directory)) else None


def path_of(error: OSError) -> str:
    """Return the path that an error is about: of a copy, a link, or a rename the new one; "" = the error names none."""
    return os.fsdecode(error.filename2 or error.filename or "")


def write_durably(path: Path, blocks: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write a file beside its place, bring it to the disk, and rename it.

    Raises:
        OSError: the disk does not take it; nothing is left.
    """
    stage = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with stage.open("wb") as file:
            for block in blocks:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        stage.replace(path)
    except BaseException:
        stage.unlink(missing_ok=True)
        raise


def sync_tree(directory: Path) -> None:
    """Bring a directory and everything in it to the disk."""
    for folder, _, names in os.walk(directory):
        for name in names:
            _sync(os.path.join(folder, name))
        _sync(folder, os.O_DIRECTORY)


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    _sync(directory, os.O_DIRECTORY)


def _sync(path: str | os.PathLike[str], flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(directory: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock on a directory.

    Raises:
        OSError: it is not there; or another process has the lock, and `how` says not to wait.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def lock_shared(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Keep an entry of a cache until the descriptor that this returns is closed.

    Raises:
        OSError: it is gone, or is being removed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise FileNotFoundError(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
