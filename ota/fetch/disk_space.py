"""Checks that files fit on the disk before the first byte is fetched, and whether a retry makes sense.

`reason_not_to_fit` and `has_grown` are pure. OTA.md 4.6.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ota import files
from ota.errors import NoSpace, OtaError
from ota.layout import StateLayout
from ota.strict_json import Members, parse, to_canonical_json

MB = 1_000_000
#: overhead of file systems, as a share of the missing bytes
MARGIN = 0.1
#: free inodes that the rest of the system needs
RESERVED_INODES = 64
#: after a write failed for lack of space, so many more bytes must be free before a retry
GROWTH_BYTES = 64 * MB
#: seconds; after so long the reason may be another one, and a retry costs little
LONGEST_WAIT = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The free and used space of the disk with the state directory.

    Attributes:
        inodes: free ones; None = the file system does not count them.
        used: bytes of blobs, releases, partial files, and plans.
        quota: most bytes of those; 0 = no limit.
        reserve: bytes that stay free.
    """

    free: int
    inodes: int | None = None
    used: int = 0
    quota: int = 0
    reserve: int = 0


def measure(layout: StateLayout, quota: int, reserve: int) -> DiskSpace:
    """Measure the disk."""
    path = layout.state_dir
    while not path.exists() and path != path.parent:
        path = path.parent
    with files.wrap_errors(path):
        found = os.statvfs(path)
    inodes = found.f_favail if found.f_files else None
    return DiskSpace(found.f_bavail * found.f_frsize, inodes, _used(layout) if quota else 0, quota, reserve)


def reason_not_to_fit(room: DiskSpace, missing: int, count: int) -> str:
    """Return why `missing` bytes in `count` files do not fit; "" = they do."""
    if not missing:
        return ""
    needed = int(missing * (1 + MARGIN)) + room.reserve
    if room.quota and room.used + missing > room.quota:
        return (
            f"the releases here use {_mb(room.used)}, {_mb(missing)} are missing, and QUOTA allows {_mb(room.quota)}: "
            "raise QUOTA, or remove what is not needed ('edge-ota gc')"
        )
    if needed > room.free:
        return (
            f"{_mb(missing)} are missing; with 10 % and RESERVE ({_mb(room.reserve)}) {_mb(needed)} must be free, "
            f"and {_mb(room.free)} are: free space on that disk ('edge-ota gc' removes what is not needed)"
        )
    if room.inodes is not None and room.inodes < count + RESERVED_INODES:
        return (
            f"{count} files are missing, and the disk has {room.inodes} inodes left, expected "
            f"{count + RESERVED_INODES}: remove small files on that disk"
        )
    return ""


def has_grown(failed_at: int, free: int, missing: int) -> bool:
    """Return whether a retry makes sense after a write failed for lack of space.

    Args:
        failed_at, free: the bytes that were free then, and that are now.
    """
    return free >= failed_at + min(missing, GROWTH_BYTES)


def check(layout: StateLayout, room: DiskSpace, missing: int, count: int, now: float, *, by_hand: bool = False) -> None:
    """Refuse files that do not fit, or for which a write of the last day found the disk full.

    Args:
        now: seconds since the epoch.
        by_hand: an operator asked, who may have ended the reason of that failure.

    Raises:
        NoSpace: with the figures, and what to do.
    """
    if reason := reason_not_to_fit(room, missing, count):
        raise NoSpace(f"{layout.state_dir}: no space: {reason}")
    failed_at = None if by_hand else _read_failure(layout, now)
    if missing and failed_at is not None and not has_grown(failed_at, room.free, missing):
        raise NoSpace(
            f"{layout.state_dir}: the disk took no more bytes when {_mb(failed_at)} were free (a quota of the file "
            f"system?), and {_mb(room.free)} are now: free {_mb(min(missing, GROWTH_BYTES))} there, "
            "or run 'edge-ota apply' to try at once"
        )


def record_failure(layout: StateLayout, now: float) -> None:
    """Record that a write failed for lack of space. If even this write fails, the disk is visibly full."""
    with contextlib.suppress(OtaError):
        record = {"free": measure(layout, 0, 0).free, "time": int(now)}
        files.write_durably(layout.no_space, to_canonical_json(record))


def remove_failure(layout: StateLayout) -> None:
    """Remove the record, because the files were written."""
    with contextlib.suppress(OSError):
        if layout.no_space.exists():
            files.unlink(layout.no_space)


def _read_failure(layout: StateLayout, now: float) -> int | None:
    try:
        data = files.read(layout.no_space, 1000)
        if data is None:
            return None
        members = Members(parse(data, "no_space.json", 1000), "no_space.json")
        return members.integer("free") if 0 <= now - members.integer("time", 0) < LONGEST_WAIT else None
    except OtaError:
        return None


def _used(layout: StateLayout) -> int:
    """Return the bytes of all files. Releases are hard links to blobs; each file counts once."""
    folders = (layout.state_dir / "blobs", layout.partial, layout.stage, layout.releases, layout.plans)
    return sum(dict(found for folder in folders for found in _sizes(folder)).values())


def _sizes(folder: Path) -> Iterator[tuple[tuple[int, int], int]]:
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(path, name))
                yield (found.st_dev, found.st_ino), found.st_size


def _mb(count: int) -> str:
    return f"{count / MB:.1f} MB" if count < 100 * MB else f"{count / MB:.0f} MB"
