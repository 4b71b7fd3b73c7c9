"""Safe mode: the shell around `crash_loop`, which keeps the record in a file and the suspects out of the registry."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge_serve.models.registry import Registry
from edge_serve.models.repository import Repository, fingerprint
from edge_serve.systemd.crash_loop import (
    STABLE_SECONDS,
    Phase,
    Record,
    Suspects,
    as_text,
    from_text,
    next_record,
    stable,
)

log = logging.getLogger(__name__)

FILE = "crashes.json"
_LOCK = "crashes.lock"
_BOOT = "/proc/sys/kernel/random/boot_id"


class CrashWatch:
    """Keeps the record of one server while it runs."""

    def __init__(self, directory: Path, registry: Registry, repository: Repository) -> None:
        self._path = directory / FILE
        self._registry = registry
        self._repository = repository
        self._lock = -1
        self._record = Record()
        self._written: Record | None = None
        self._ready_ns: int | None = None

    def begin(self) -> None:
        """Before anything is loaded: learn from the processes before this one, and leave out whom they accuse."""
        try:
            self._lock = os.open(self._path.with_name(_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            log.warning("crashes are not counted, because %s is in use or cannot be written: %s", self._path, error)
            self._close()
            return
        found = self._repository.scan()
        prints = {name: _print(one.directory) for name, one in found.items()}
        last = from_text(_read(self._path))
        self._record = next_record(last, _boot(), lambda name: prints.get(name, ""), sorted(found))
        incidents = self._registry.incidents
        incidents.left_out.update(self._record.reasons)
        incidents.on_change = self._save
        if self._record.deaths:
            log.warning("the service died %d time(s) in a row before it served for %g s: models are loaded one by one",
                        len(self._record.deaths), STABLE_SECONDS)  # fmt: skip
            self._registry.load_at_once(1)
        for name, reason in self._record.reasons.items():
            log.critical("safe mode: model %s is left out: %s", name, reason)
        self._save()

    def look(self, now_ns: int, busy: Sequence[str]) -> None:
        """Called about once a second; `busy` are the models that have something to do."""
        if self._lock < 0:
            return
        if self._ready_ns is None and not self._registry.incidents.loading():
            self._ready_ns = now_ns
        if self._record.deaths or self._record.helpless:  # else nobody asks, and the file is not worth its writes
            self._record = replace(self._record, now=Suspects(self._record.now.loading, tuple(busy)))
            if self._ready_ns is not None and now_ns - self._ready_ns > STABLE_SECONDS * 1e9:
                self._record = stable(self._record)
        self._save()

    def fail(self, names: Sequence[str]) -> None:
        """The process ends because these models did not load."""
        self._end(Phase.FAILED, Suspects(tuple(names)))

    def end(self) -> None:
        """The process ends because it is to."""
        if self._record.phase is not Phase.FAILED:
            self._end(Phase.ENDED, Suspects())

    def _end(self, phase: Phase, suspects: Suspects) -> None:
        self._registry.incidents.on_change = lambda: None
        self._record = replace(self._record, phase=phase, now=suspects)
        self._write()

    def _save(self) -> None:
        """Write what has changed: what is loading, and who is left out no more."""
        incidents = self._registry.incidents
        if self._record.phase is Phase.ALIVE:
            left_out = {name: seen for name, seen in self._record.left_out.items() if name in incidents.left_out}
            now = replace(self._record.now, loading=tuple(incidents.loading()))
            self._record = replace(self._record, now=now, left_out=left_out)
            self._write()

    def _write(self) -> None:
        """By renaming, and without `fsync`: what counts are ends of the process, which the kernel's cache outlives; a
        power cut is no crash, and a file that it has torn holds nothing."""
        if self._lock < 0 or self._record == self._written:
            return
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_text(as_text(self._record))
            os.replace(fresh, self._path)
            self._written = self._record
        except OSError as error:
            log.warning("crashes are not counted any more: %s cannot be written: %s", self._path, error)
            self._close()

    def _close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def report(directory: Path) -> str:
    """For people: who is left out, and why."""
    record = from_text(_read(directory / FILE))
    lines = [f"{name} is left out: {record.reasons.get(name, '')}" for name in sorted(record.left_out)]
    if record.deaths:
        lines.append(f"the service died {len(record.deaths)} time(s) in a row")
    return "\n".join(lines) or "no model is left out"


def leave(directory: Path) -> None:
    """Forget it all: the next start loads every model.

    Raises:
        OSError: the file cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        (directory / FILE).unlink()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _boot() -> str:
    return _read(Path(_BOOT)).strip()


def _print(directory: Path) -> str:
    try:
        return hashlib.sha256(repr(fingerprint(directory)).encode()).hexdigest()[:16]
    except OSError:
        return ""
