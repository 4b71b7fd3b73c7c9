"""A control group for each worker process, below the service's own, where systemd has given us that (Delegate=).

A group tells for certain that a worker died for want of memory, and may have a limit, so that a model that eats memory
ends alone. Version 2 only. The group that is divided may hold no process itself (cgroups(7), "no internal processes"),
so the front end moves into one below it first, with the workers that run already (`first_workers`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
from pathlib import Path

log = logging.getLogger(__name__)

#: where the front end goes; DelegateSubgroup= of the unit may have put it there already
FRONT = "front"
#: model parameter: bytes that its worker may have, as 2147483648, 2G or 512M
MEMORY_PARAMETER = "EDGE_SERVE_MEMORY_MAX"

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text such as `512M` means.

    Raises:
        ValueError: it is no such text.
    """
    found = re.fullmatch(r"(\d{1,15})([KMG]?)B?", text.strip().upper())
    if found is None:
        raise ValueError(f"found '{text}', expected bytes, as 2147483648, 2G or 512M")
    return int(found[1]) * _UNITS[found[2]]


class ControlGroup:
    """The group of one worker process.

    Args:
        limit: of its memory, bytes; 0 = none.
    """

    def __init__(self, path: Path, limit: int = 0) -> None:
        self._path = path
        self._limit = limit

    def add(self, pid: int) -> None:
        """Make the group, and move a process into it with all that it starts. One that cannot be moved runs without."""
        try:
            self._path.mkdir()
            with contextlib.suppress(OSError):  # a kernel without it kills one process after the other
                (self._path / "memory.oom.group").write_text("1")
            if self._limit:
                (self._path / "memory.max").write_text(str(self._limit))
                with contextlib.suppress(OSError):  # no swap here
                    (self._path / "memory.swap.max").write_text("0")
            (self._path / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            log.warning("worker (pid %d) runs without a control group of its own: %s", pid, error)

    def verdict(self) -> str:
        """Return why the process died, if it died for want of memory; "" = it did not."""
        try:
            events = dict(line.split() for line in (self._path / "memory.events").read_text().splitlines())
        except (OSError, ValueError):
            return ""
        if not int(events.get("oom_kill", 0)):
            return ""
        if self._limit and int(events.get("oom", 0) or events.get("max", 0)):
            return f"was killed because it reached its limit of {self._limit} bytes of memory ({MEMORY_PARAMETER})"
        return "was killed because memory ran out"

    def kill(self) -> None:
        """Kill the processes that are left in the group, wherever they went. Kernels before 5.14 cannot."""
        with contextlib.suppress(OSError):
            fd = os.open(self._path / "cgroup.kill", os.O_WRONLY)
            try:
                os.write(fd, b"1")
            finally:
                os.close(fd)

    def remove(self) -> None:
        """Remove the group of a reaped process. One that still has processes stays until the service ends."""
        with contextlib.suppress(OSError):
            self._path.rmdir()


class Groups:
    """Makes groups below the service's."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._numbers = itertools.count(1)

    def make(self, label: str, limit: int) -> ControlGroup:
        """Return a group for the next process of a worker."""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", label)[:60]
        return ControlGroup(self._base / f"worker-{next(self._numbers)}-{name}", limit)


def find_groups(process: Path = Path("/proc/self")) -> Groups | None:
    """Return the service's group, prepared to be divided; None, with one line in the log, if that is not possible.

    Args:
        process: its directory in /proc.
    """
    try:
        base = _own_group(process)
        if base.name == FRONT:
            base = base.parent
        if not _is_ours(base):
            log.info("models have no memory limits of their own: control group %s is not ours (Delegate=memory)", base)
            return None
        if "memory" not in (base / "cgroup.controllers").read_text().split():
            log.info("models have no memory limits of their own: control group %s does not count memory", base)
            return None
        front = base / FRONT
        front.mkdir(exist_ok=True)
        (front / "cgroup.procs").write_text(str(os.getpid()))
        for worker in (base / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                (front / "cgroup.procs").write_text(worker)
        (base / "cgroup.subtree_control").write_text("+memory")
    except OSError as error:
        log.info("models have no memory limits of their own: %s", error)
        return None
    return Groups(base)


def _own_group(process: Path) -> Path:
    """Return the directory of a process's group in the hierarchy of version 2.

    Raises:
        FileNotFoundError: there is no such hierarchy.
    """
    for line in (process / "mountinfo").read_text().splitlines():
        fields = line.split()
        kind = fields[fields.index("-") + 1]
        if kind != "cgroup2":
            continue
        own = next((one[3:] for one in (process / "cgroup").read_text().splitlines() if one.startswith("0::")), "/")
        return Path(fields[4]) / os.path.relpath(own, fields[3])
    raise FileNotFoundError("this system has no control groups of version 2")


def _is_ours(base: Path) -> bool:
    """Return whether systemd has delegated the group: to root by an attribute, to other users by its owner."""
    if os.geteuid() != 0:
        return os.access(base, os.W_OK) and os.access(base / "cgroup.procs", os.W_OK)
    for attribute in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(base, attribute) == b"1":
                return True
    return False
