"""Operations on disk that survive a power cut.

Each operation calls `point` first, so that tests can record it, and try each state that a power cut could leave. A file
is replaced by: temporary name, fsync, rename, fsync of the directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple


class FileStep(NamedTuple):
    """One change of the disk.

    Attributes:
        kind: create, write, fsync, rename, symlink, unlink, mkdir, rmdir.
        target: new name (rename), or the path that a link names (symlink).
    """

    kind: str
    path: str
    target: str = ""
    data: bytes = b""


def _ignore(step: FileStep) -> None:
    """Do nothing."""


#: called before each operation; tests replace it
point: Callable[[FileStep], None] = _ignore


class NotRegular(OSError):
    """A path is not a regular file. The text names what it is."""


class TooLong(OSError):
    """A file is longer than its limit."""


def read(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        OSError: it cannot be read. NotRegular, TooLong: as they say.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise NotRegular("a directory" if stat.S_ISDIR(mode) else "no regular file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise TooLong(f"more than {most} bytes")
    return data


def read_if_there(path: Path, most: int) -> bytes | None:
    """Return the content of a regular file; None if it cannot be read for any reason."""
    try:
        return read(path, most)
    except OSError:
        return None


def replace(path: Path, data: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Replace a file durably: after a power cut it has the old content or the new one.

    Args:
        owner: (uid, gid) of the new file; None = this process's.
    """
    fresh = path.with_name(f".{path.name}.new")
    _write(fresh, data, mode, owner)
    rename(fresh, path)
    sync_directory(path.parent)


def _write(path: Path, data: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    try:
        _write_through(path, data, mode, owner)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk is found by write(2), which knows no name
        raise


def _write_through(path: Path, data: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    point(FileStep("create", str(path)))
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb") as file:
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        with contextlib.suppress(PermissionError):  # FAT has no permissions
            os.fchmod(file.fileno(), mode)
        point(FileStep("write", str(path), data=data))
        file.write(data)
        file.flush()
        point(FileStep("fsync", str(path)))
        os.fsync(file.fileno())


def write_directory(path: Path, content: Mapping[str, bytes]) -> None:
    """Create a directory with private files durably: after a power cut it is complete, or not there."""
    fresh = path.with_name(f".{path.name}.new")
    remove_directory(fresh)
    point(FileStep("mkdir", str(fresh)))
    fresh.mkdir(mode=0o700)
    for name, data in content.items():
        _write(fresh / name, data, 0o600, None)
    sync_directory(fresh)
    rename(fresh, path)
    sync_directory(path.parent)


def remove_directory(path: Path) -> None:
    """Remove a directory and the files in it, if it exists."""
    if not path.is_dir():
        return
    for one in sorted(path.iterdir()):
        point(FileStep("unlink", str(one)))
        one.unlink()
    point(FileStep("rmdir", str(path)))
    path.rmdir()


def replace_link(path: Path, target: str) -> None:
    """Replace a symbolic link durably."""
    fresh = path.with_name(f".{path.name}.new")
    if os.path.lexists(fresh):
        point(FileStep("unlink", str(fresh)))
        fresh.unlink()
    point(FileStep("symlink", str(fresh), target))
    fresh.symlink_to(target)
    rename(fresh, path)
    sync_directory(path.parent)


def rename(path: Path, target: Path) -> None:
    """Rename a file, replacing `target`.

    The file is synced under its new name, too: Linux writes a new entry of FAT first without size and place
    (vfat_rename of namei_vfat.c), and these with the inode, seconds later. Syncing the directory alone would make a
    file of 0 bytes durable.
    """
    point(FileStep("rename", str(path), str(target)))
    path.rename(target)
    if not target.is_symlink():
        _sync(target)


def remove(path: Path) -> bool:
    """Remove a file durably. Return whether it existed."""
    if not os.path.lexists(path):
        return False
    point(FileStep("unlink", str(path)))
    path.unlink()
    sync_directory(path.parent)
    return True


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Create a directory and its parents durably. An existing one is left as it is."""
    if path.is_dir():
        return
    make_directory(path.parent)
    point(FileStep("mkdir", str(path)))
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    _sync(path)


def _sync(path: Path) -> None:
    point(FileStep("fsync", str(path)))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
