"""The memory of this machine, or of the control group that limits this process, such as a container."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path("/")
#: a cgroup without a limit says "max", or (version 1) a number close to 2**63
_NO_LIMIT = 1 << 60


def total_memory(root: Path = _ROOT) -> int:
    """Return the bytes that this process and those beside it may use."""
    return read_memory(root)[0] or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_memory(root: Path = _ROOT) -> tuple[int, int]:
    """Return (total, available) bytes, of the machine or of the tightest control group; (0, 0) when unknown.

    Args:
        root: of the file system; another one in tests.
    """
    found = {}
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in ("MemTotal", "MemAvailable"):
                found[key] = int(rest.split()[0]) * 1024
        total, available = found["MemTotal"], found["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        return 0, 0
    for limit, used in _groups(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, available


def _groups(root: Path) -> list[tuple[int, int]]:
    """Return (limit, used) of this process's control groups and their parents. Reclaimable page cache is not counted as
    used."""
    groups = []
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            base, files = mounts, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = mounts / "memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = base / path.strip("/")
        for place in [folder, *folder.parents]:
            if place == base.parent:
                break
            groups += _group(place, *files)
    return groups


def _group(folder: Path, limit_file: str, used_file: str, cache: str) -> list[tuple[int, int]]:
    try:
        limit = int((folder / limit_file).read_text())
        used = int((folder / used_file).read_text())
    except (OSError, ValueError):  # no such group here, or "max"
        return []
    rows = (line.split() for line in _text(folder / "memory.stat").splitlines())
    reclaimable = next((int(row[1]) for row in rows if len(row) == 2 and row[0] == cache), 0)
    return [(limit, max(0, used - reclaimable))] if limit < _NO_LIMIT else []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
