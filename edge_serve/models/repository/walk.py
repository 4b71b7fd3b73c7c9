"""Walks through a model directory, links followed, within limits that end every walk."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from edge_serve.config.model.layout import refusal_of
from edge_serve.errors import UnreadableEntry
from edge_serve.records import frozen

#: limits of one model directory; an unpacked Python environment has some ten thousand entries
MOST_ENTRIES = 100_000
MOST_LEVELS = 64
MOST_SECONDS = 8.0

#: file systems that show the kernel's data structures, which change all the time and refer to each other without end
_KERNELS = frozenset((
    "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl", "mqueue", "nsfs",
    "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "smackfs", "sysfs", "tracefs",
))  # fmt: skip
_MOUNTS = Path("/proc/self/mountinfo")

#: the size of a file that the server may not read, because another mode of a file changes neither its time nor its size
UNREADABLE = -1

#: path below the model directory, modification time ns (0 of directories), size (0 of directories), inode
Row = tuple[str, int, int, int]


@frozen
class _Folder:
    """A directory that is still to be read.

    Attributes:
        path: below the model directory, with a slash at the end; "" = the model directory itself.
        above: device and inode of the directory itself and of those that lead there.
    """

    place: str
    path: str
    device: int
    above: frozenset[tuple[int, int]]


def walk(directory: Path) -> list[tuple[Row, int]]:
    """Return the row of each entry below `directory`, and its change time; by path.

    Links are followed, except links to a directory that leads to the link, and links to the kernel's file systems.
    An entry that cannot be read is left out. A directory that does not exist has no entries.

    Raises:
        UnreadableEntry: the directory itself cannot be read, belongs to the kernel, or exceeds a limit.
    """
    end = time.monotonic() + MOST_SECONDS
    rows: list[tuple[Row, int]] = []
    try:
        left = [_first(directory)]
    except FileNotFoundError:
        return rows
    except OSError as error:
        raise UnreadableEntry(f"cannot be read: {refusal_of(error, directory)}") from error
    while left:
        folder = left.pop()
        for name, status in _entries(folder):
            is_directory = stat.S_ISDIR(status.st_mode)
            if is_directory and name == "__pycache__":
                continue
            path = folder.path + name
            time_ns, size = (0, 0) if is_directory else (status.st_mtime_ns, status.st_size)
            if not (is_directory or _may_read(folder, name)):
                size = UNREADABLE
            rows.append(((path, time_ns, size, status.st_ino), status.st_ctime_ns))
            _check(len(rows), path, end)
            if is_directory and (below := _below(folder, name, status)):
                left.append(below)
    return sorted(rows)


def kernel_type(device: int) -> str:
    """Return the type of a file system that belongs to the kernel, such as `proc`; "" for any other."""
    try:
        lines = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:  # proc_pid_mountinfo(5): the device is the third field, the type the first one after a "-"
        if line.split()[2] == number:
            found = line.partition(" - ")[2].partition(" ")[0]
            return found if found in _KERNELS else ""
    return ""


def _first(directory: Path) -> _Folder:
    os.scandir(directory).close()
    chain = [os.stat(place) for place in (directory, *directory.parents)]
    kind = kernel_type(chain[0].st_dev) if chain[0].st_dev != os.stat("/").st_dev else ""
    if kind:
        raise UnreadableEntry(f"leads to {directory}, which belongs to the kernel ({kind}): expected a model directory")
    above = frozenset((status.st_dev, status.st_ino) for status in chain)
    return _Folder(str(directory), "", chain[0].st_dev, above)


def _below(folder: _Folder, name: str, status: os.stat_result) -> _Folder | None:
    """Return the directory `name` of `folder`; None if it must not be read."""
    identity = status.st_dev, status.st_ino
    if identity in folder.above or (status.st_dev != folder.device and kernel_type(status.st_dev)):
        return None
    place = os.path.join(folder.place, name)
    return _Folder(place, f"{folder.path}{name}{os.sep}", status.st_dev, folder.above | {identity})


def _may_read(folder: _Folder, name: str) -> bool:
    """Return whether the server may read a file. Only files from which models are loaded are checked."""
    return folder.path.count(os.sep) > 1 or os.access(os.path.join(folder.place, name), os.R_OK)


def _check(count: int, path: str, end: float) -> None:
    """Raise UnreadableEntry if the walk has come to a limit."""
    if count > MOST_ENTRIES:
        raise UnreadableEntry(f"holds more than {MOST_ENTRIES} files and directories")
    if path.count(os.sep) >= MOST_LEVELS:
        raise UnreadableEntry(f"holds directories in more than {MOST_LEVELS} levels")
    if time.monotonic() > end:
        raise UnreadableEntry(f"could not be looked through within {MOST_SECONDS:g} s")


def _entries(folder: _Folder) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(folder.place) as entries:
            for entry in entries:
                try:
                    yield entry.name, entry.stat()
                except OSError:
                    continue
    except OSError:
        return
