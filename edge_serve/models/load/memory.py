"""The machine's memory, and the memory that each model took when it was loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from edge_serve.messages.log_fields import model_fields
from edge_serve.models.load.admission import MemoryFigures, Way, decide

log = logging.getLogger(__name__)

#: a worker process before it has loaded anything
WORKER_BYTES = 40 << 20
#: a model without its files in a worker that runs already
SHARING_BYTES = 4 << 20
#: a cgroup without a limit says "max", or (version 1) a number close to 2**63
_NO_LIMIT = 1 << 60


class Memory:
    """Accounts for memory, and decides whether loads fit.

    Args:
        reserve: bytes that must stay available; 0 = a twentieth of the total.
        root: the root of the file system; another one in tests.
    """

    def __init__(self, reserve: int, root: Path = Path("/")) -> None:
        self._reserve = reserve
        self._root = root
        self._measured: dict[str, int] = {}
        self.promised = 0
        self._promise_ended = asyncio.Event()  #: set when a promise ends, then replaced

    @asynccontextmanager
    async def admit(self, name: str, files: int, replaced: int, *, joins: bool) -> AsyncIterator[Way]:
        """Promise memory to one load while the context lasts.

        Waits while only promises to other loads are in the way: the memory that they really take is known when they
        end.

        Args:
            files, replaced, joins: as in `figures`.

        Raises:
            Unavailable: the model does not fit, with the figures.
        """
        way, needed = self._decide(name, files, replaced, joins)
        if way is Way.LATER:
            log.info("model %s waits for memory that is promised to loads under way", name, extra=model_fields(name))
        while way is Way.LATER:
            await self._promise_ended.wait()
            way, needed = self._decide(name, files, replaced, joins)
        self.promised += needed
        try:
            yield way
        finally:
            self.promised -= needed
            self._promise_ended.set()
            self._promise_ended = asyncio.Event()

    def _decide(self, name: str, files: int, replaced: int, joins: bool) -> tuple[Way, int]:
        figures = self.figures(name, files, replaced, joins=joins)
        return (decide(name, figures), figures.needed) if figures is not None else (Way.BESIDE, 0)

    def figures(self, name: str, files: int, replaced: int, *, joins: bool = False) -> MemoryFigures | None:
        """Return the figures of a load; None when the machine does not say how much memory it has.

        Args:
            files: bytes of the model's files.
            replaced: bytes that are free once the versions that serve are unloaded.
            joins: the model is loaded into a worker that already runs.
        """
        total, available = self.read()
        if not total:
            return None
        measured = self._measured.get(name, 0)
        estimated = files + (SHARING_BYTES if joins else WORKER_BYTES)
        return MemoryFigures(
            max(measured, estimated),
            measured >= estimated,
            available,
            self.promised,
            self._reserve or total // 20,
            replaced,
        )

    def measured(self, name: str, nbytes: int) -> None:
        """Record the memory that a model takes now that it is loaded."""
        self._measured[name] = nbytes

    def read(self) -> tuple[int, int]:
        """Return (total, available) bytes, of the machine or of the tightest control group; (0, 0) when unknown."""
        found = {}
        try:
            for line in (self._root / "proc/meminfo").read_text().splitlines():
                key, _, rest = line.partition(":")
                if key in ("MemTotal", "MemAvailable"):
                    found[key] = int(rest.split()[0]) * 1024
            total, available = found["MemTotal"], found["MemAvailable"]
        except (OSError, ValueError, KeyError, IndexError):
            return 0, 0
        for limit, used in self._groups():
            total, available = min(total, limit), min(available, max(0, limit - used))
        return total, available

    def _groups(self) -> list[tuple[int, int]]:
        """Return (limit, used) of this process's control groups and their parents. Reclaimable page cache is not
        counted as used."""
        groups = []
        mounts = self._root / "sys/fs/cgroup"
        for line in _text(self._root / "proc/self/cgroup").splitlines():
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
