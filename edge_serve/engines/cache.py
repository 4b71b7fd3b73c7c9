"""The directory of built engines: each under a key of everything that it depends on, the least recently used out first.

An engine is a plan and its description (`backends/tensorrt/plan`). The description is written last, so that a plan
without one, or of another size, is the rest of a build that was killed. Only the holder of the lock writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from edge_serve.backends.tensorrt.plan import PlanMeta, meta_path, read_meta, write_meta
from edge_serve.errors import EdgeServeError
from edge_serve.files import lock_shared, sync_directory, write_durably

_LOCK = "build.lock"
_PLAN = ".plan"
_BLOCK = 1 << 20
#: keys and stage files of this cache: other files in the directory stay
_KEY = re.compile(r"[0-9a-f]{64}")
_STAGED = re.compile(rf"\.({_KEY.pattern}\.plan|timing\.cache).*\.\d+\.new")


class EngineLease:
    """An engine that is served: it stays in the cache until `release`.

    Attributes:
        plan: its file.
        seconds: that its build took; 0 = it was in the cache.

    Raises:
        OSError: it is gone.
    """

    def __init__(self, plan: str, seconds: float) -> None:
        self.plan = plan
        self.seconds = seconds
        self._descriptor = lock_shared(plan)

    def release(self) -> None:
        """Let the cache remove the engine. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class EngineCache:
    """One directory of engines.

    Args:
        most_bytes: size above which engines are removed after a build.
    """

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self.directory = directory
        self._most_bytes = most_bytes

    def find(self, key: str) -> tuple[Path, PlanMeta] | None:
        """Return an engine, and mark it as used; None = it is not there, or was not written to its end."""
        plan = self._path(key)
        found = self._whole(plan)
        if found is not None:
            with contextlib.suppress(OSError):  # a cache that is read-only
                os.utime(meta_path(plan))
            return plan, found
        return None

    @contextlib.contextmanager
    def locked(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Lock the cache: one build at a time. Two at once would measure each other's load, not the kernels.

        Args:
            on_wait: called if another build holds the lock.

        Raises:
            OSError: the directory cannot be made or written.
        """
        self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._clean()
            yield
        finally:
            os.close(descriptor)

    def store(self, key: str, content: memoryview, meta: PlanMeta) -> Path:
        """Write an engine durably, and remove others above the size of the cache. The caller holds the lock.

        Raises:
            OSError: the disk does not take it.
        """
        plan = self._path(key)
        write_durably(plan, [content])
        write_meta(plan, meta)
        sync_directory(self.directory)
        self._evict(plan)
        return plan

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_PLAN}"

    def _whole(self, plan: Path) -> PlanMeta | None:
        """Return the description of a plan that was written to its end."""
        try:
            meta = read_meta(plan, plan.stem)
            return meta if meta is not None and plan.stat().st_size == meta.plan_bytes else None
        except (OSError, EdgeServeError):
            return None

    def _clean(self) -> None:
        """Remove the incomplete files of killed builds."""
        for path in self.directory.iterdir():
            if _STAGED.fullmatch(path.name):
                path.unlink(missing_ok=True)
        for plan in self._plans():
            if self._whole(plan) is None:
                _remove(plan)

    def _plans(self) -> list[Path]:
        """Return the plans that are ours, whole or not."""
        return [plan for plan in self.directory.glob(f"*{_PLAN}") if _KEY.fullmatch(plan.stem)]

    def make_room(self, least: int) -> int:
        """Remove engines until the disk has `least` free bytes. If all that no server serves are too small for that,
        remove none. The caller holds the lock.

        Returns:
            The free bytes of the disk.
        """
        free = shutil.disk_usage(self.directory).free
        chosen = []
        with contextlib.ExitStack() as locks:
            for size, plan in self._oldest_first():
                if free >= least:
                    break
                descriptor = _lock_unless_held(plan)
                if descriptor is not None:
                    locks.callback(os.close, descriptor)
                    chosen.append(plan)
                    free += size
            for plan in chosen if free >= least else ():
                _remove(plan)
        return shutil.disk_usage(self.directory).free

    def _evict(self, newest: Path) -> None:
        engines = self._oldest_first()
        total = sum(size for size, _ in engines)
        for size, plan in engines:
            if total <= self._most_bytes:
                return
            if plan != newest and _remove_unless_held(plan):
                total -= size

    def _oldest_first(self) -> list[tuple[int, Path]]:
        """Return the size and the plan of each engine, the one that was not used for longest first."""
        found = []
        for plan in self._plans():
            with contextlib.suppress(OSError):
                found.append((meta_path(plan).stat().st_mtime_ns, plan.stat().st_size, plan))
        return [(size, plan) for _, size, plan in sorted(found)]


def export(plan: Path, meta: PlanMeta, target: Path) -> None:
    """Copy a plan out of the cache, with its description. A reader never sees a description of another plan.

    Raises:
        OSError: the disk does not take it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    meta_path(target).unlink(missing_ok=True)
    with plan.open("rb") as file:
        write_durably(target, iter(partial(file.read, _BLOCK), b""))
    write_meta(target, meta)
    sync_directory(target.parent)


def _remove_unless_held(plan: Path) -> bool:
    """Remove an engine that no server serves. Return whether it was. No server can lock it meanwhile."""
    descriptor = _lock_unless_held(plan)
    if descriptor is None:
        return False
    try:
        _remove(plan)
    finally:
        os.close(descriptor)
    return True


def _lock_unless_held(plan: Path) -> int | None:
    """Lock an engine that no server serves, so that none can. Return the descriptor of the lock, and its disk space is
    free once that is closed; None = a server serves the engine, or it is gone."""
    try:
        descriptor = os.open(plan, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(plan: Path) -> None:
    """Remove an engine, its description first, so that no half is ever used."""
    meta_path(plan).unlink(missing_ok=True)
    plan.unlink(missing_ok=True)
