"""Safe mode: the shell around `crash_loop`, which keeps the record in a file and the suspects out of the registry."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import start_task
from edge_serve.errors import EdgeServeError
from edge_serve.files import read_small
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.control.registry import Registry
from edge_serve.models.repository.repository import Repository
from edge_serve.supervision.crash_loop import (
    DEATHS,
    STABLE_SECONDS,
    Record,
    StartPhase,
    Suspects,
    as_text,
    from_text,
    next_record,
    retry_ns,
    stable,
    try_again,
)

log = logging.getLogger(__name__)

FILE = "crashes.json"
LOCK = "crashes.lock"
#: attempts to lock the record, and the seconds between them
_TRIES, _TRY_SECONDS = 10, 0.1
_BOOT = "/proc/sys/kernel/random/boot_id"


class CrashWatch:
    """Writes the record of one server while it runs, in the directory that `open` names."""

    def __init__(self, registry: Registry, repository: Repository) -> None:
        self._path = Path(FILE)
        self._registry = registry
        self._repository = repository
        self._lock = -1
        self._record = Record()
        self._written: Record | None = None
        #: the last write failed, which was logged
        self._unwritable = False
        self._ready_ns: int | None = None
        #: there are models that are not left out
        self._others = False
        #: loads the models that were left out
        self._load: asyncio.Task[list[str]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether this process has the record open, and writes it."""
        return self._lock >= 0

    async def open(self, directory: Path, now_ns: int) -> None:
        """Open the record in `directory`, and leave out the models that it names as suspects.

        Called before the first load. The repository is read in a thread.
        """
        self._path = directory / FILE
        if not await self._acquire():
            return
        last, boot = from_text(_read_or_nothing(self._path)), _read_or_nothing(Path(_BOOT)).strip()
        found, prints = await offload(self._models, last)
        self._record = next_record(last, boot, lambda name: prints.get(name, ""), sorted(found), now_ns)
        self._others = not set(found) <= self._record.left_out.keys()
        self._registry.load_history.on_change = self._save
        if self._record.deaths or self._record.trying:
            self._registry.load_one_by_one(True)
        if self._record.deaths:
            log.warning("%s, before it served for %g s: models are loaded one by one", self._record.count_deaths(),
                        STABLE_SECONDS)  # fmt: skip
        if self._record.trying:
            log.warning("safe mode: models that were left out are tried again, because the machine has booted since: "
                        "%s", ", ".join(self._record.left_out))  # fmt: skip
        else:
            self._exclude_suspects()
        self._save()

    def _models(self, last: Record) -> tuple[Collection[str], Mapping[str, str | None]]:
        """Return the models of the repository, and their fingerprints if `last` makes them necessary.

        While the repository, or a model in it, cannot be read, it does not count as changed.
        """
        try:
            found = self._repository.scan()
        except EdgeServeError:  # the load of the models fails of the same, and says so
            return (), dict.fromkeys(last.left_out)
        if not (last.left_out or len(last.deaths) + 1 >= DEATHS):
            return found, {}
        rows = self._repository.fingerprints(found.values())
        prints = {name: hashlib.sha256(repr(some).encode()).hexdigest()[:16] for name, some in rows.items()}
        return found, {**dict.fromkeys([*found, *self._repository.faults]), **prints}

    def check(self, now_ns: int, busy: Sequence[str], *, started: bool = True) -> None:
        """Update the record: models that load or are busy, and the end of a series of crashes. Called about once a
        second.

        Args:
            busy: the models that have unanswered requests.
            started: the models of the start are loaded, failed to load, or make no progress.
        """
        if not self.is_open or self._record.phase is not StartPhase.ALIVE:
            return
        if self._removed():
            log.info("%s was removed", self._path)
            self.leave_safe_mode()
        reloads = self._load is not None and not self._load.done()
        settled = started and not reloads and not self._registry.load_history.loading_in_time()
        if settled and self._ready_ns is None:
            self._ready_ns = now_ns
        record = self._record
        in_series = record.deaths or record.helpless or record.trying  # else the file is not worth a write each second
        self._record = replace(record, now=Suspects(record.now.loading, tuple(busy) if in_series else None))
        if in_series and self._ready_ns is not None and now_ns - self._ready_ns > STABLE_SECONDS * 1e9:
            self._record = stable(self._record)
            self._registry.load_one_by_one(False)
            if record.trying:
                log.info("safe mode is over: the service has run for %g s with %s", STABLE_SECONDS,
                         ", ".join(record.left_out))  # fmt: skip
        due = retry_ns(self._record, self._others)
        if settled and due is not None and now_ns >= due:
            self._try_again()
        self._save()

    def leave_safe_mode(self) -> list[str]:
        """Leave safe mode: clear the record, load the models that were left out, and return their names. A process that
        is about to end loads nothing."""
        if self._record.phase is not StartPhase.ALIVE:
            return []
        self._record = Record(self._record.boot, StartPhase.ALIVE, self._record.now)
        self._registry.load_one_by_one(False)
        names = self._readmit()
        if names:
            log.info("safe mode is left: loading %s", ", ".join(names))
        self._written = None
        self._save()
        return names

    def record_failed_load(self, names: Sequence[str]) -> None:
        """Record that the process ends because these models failed to load. They are suspects."""
        self._record_end(StartPhase.FAILED, Suspects(tuple(names), ()))

    def record_clean_stop(self) -> None:
        """Record an end of the process that is no crash, and cancel the load of models that were left out."""
        if self._load is not None:
            self._load.cancel()
        self._record_end(StartPhase.ENDED, Suspects())

    def freeze_record(self) -> None:
        """Write the record no more, because the process ends by an unexpected error: the models that were loading or
        busy stay suspects in it."""
        self._registry.load_history.on_change = lambda: None

    # ---- inside -------------------------------------------------------------------------------------------------

    def _exclude_suspects(self) -> None:
        for name, one in self._record.left_out.items():
            self._registry.load_history.left_out[name] = one.reason
            log.critical("safe mode: model %s is left out: %s", name, one.reason, extra=model_fields(name))
        if self._record.left_out:
            log.warning("safe mode: change a model's directory and reload to load it, or all of them by "
                        "'edge-serve safe-mode --leave'")  # fmt: skip

    def _try_again(self) -> None:
        """Load the models that are left out; a death now leaves them out again at once."""
        self._record = try_again(self._record)
        self._write()  # before anything is loaded
        self._registry.load_one_by_one(True)
        log.warning("safe mode: models that were left out are tried again: %s", ", ".join(self._readmit()))

    def _readmit(self) -> list[str]:
        """Load the models that the start skipped in safe mode. Return the names of all that were left out."""
        load_history = self._registry.load_history
        names, skipped = sorted(load_history.left_out), sorted(load_history.skipped)
        load_history.readmit(names)
        if skipped:
            # beside nothing else they share a worker, as at a start
            beside = bool(self._registry.served())
            self._load = start_task(self._registry.load_all(skipped, own_worker=beside), "load models left out")
        self._ready_ns = None
        return names

    def _record_end(self, phase: StartPhase, suspects: Suspects) -> None:
        if self._record.phase is not StartPhase.ALIVE:  # this process has not begun its record, or has ended it
            return
        self._registry.load_history.on_change = lambda: None
        self._record = replace(self._record, phase=phase, now=suspects)
        self._write()

    def _save(self) -> None:
        """Write changes of the record: models that load, and models that are no longer left out."""
        load_history = self._registry.load_history
        if self._record.phase is StartPhase.ALIVE:
            left_out = self._record.left_out
            if not self._record.trying:
                left_out = {name: one for name, one in left_out.items() if name in load_history.left_out}
            now = replace(self._record.now, loading=tuple(load_history.loading_in_time()))
            self._record = replace(self._record, now=now, left_out=left_out)
            self._write()

    def _write(self) -> None:
        """Write the record by renaming, without `fsync`.

        The record counts ends of the process, which the kernel's cache outlives. A power cut is no crash, and a file
        that it has torn reads as an empty record. A write that fails is tried again at the next check.
        """
        is_current = self._record == self._written and not self._unwritable
        if not self.is_open or is_current or self._removed():
            return
        fresh, text = self._path.with_suffix(".new"), as_text(self._record)
        try:
            fresh.write_text(text)
            os.replace(fresh, self._path)
        except OSError as error:
            if not self._unwritable:
                log.warning("crashes are not counted until %s can be written, which is tried each second: %s",
                            self._path, error)  # fmt: skip
            self._unwritable = True
            if self._record.phase is StartPhase.ENDED:  # in place, which a full disk allows; a torn record is empty
                with contextlib.suppress(OSError):
                    self._path.write_text(text)
            return
        if self._unwritable:
            log.warning("crashes are counted again: %s is written", self._path)
        self._unwritable = False
        self._written = self._record

    def _removed(self) -> bool:
        """Return whether an operator has removed the file that this process wrote, which clears the record
        (`remove`)."""
        return self._written is not None and not self._path.exists()

    async def _acquire(self) -> bool:
        """Lock the record, which one server may write at a time. Return whether that succeeded; failures are logged."""
        path = self._path.with_name(LOCK)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = await _lock(path)
        except BlockingIOError:
            log.warning("crashes are not counted: another server keeps its record in %s; give each server a "
                        "--state-directory of its own", path.parent)  # fmt: skip
        except OSError as error:
            log.warning("crashes are not counted: cannot open or make %s: %s; --state-directory must name a directory "
                        "that the server may write", error.filename or path, error.strerror)  # fmt: skip
        return self.is_open


async def _lock(path: Path) -> int:
    """Lock a file, and try for a second: `is_in_use` has the lock for a moment. Return the descriptor.

    Raises:
        OSError: it cannot be opened. BlockingIOError: another server has the lock.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(_TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            await asyncio.sleep(_TRY_SECONDS)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _read_or_nothing(path: Path) -> str:
    try:
        return read_small(path).decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        log.warning("the record of crashes cannot be read, it begins anew: %s", error)
        return ""


def read(directory: Path) -> Record:
    """Return the record of the server with this state directory.

    Raises:
        OSError: it cannot be read. FileNotFoundError: no server has written one there.
    """
    path = directory / FILE
    try:
        return from_text(read_small(path).decode(errors="replace"))
    except FileNotFoundError:
        if not (directory / LOCK).exists():
            raise
        return Record()  # cleared


def remove(directory: Path) -> None:
    """Remove the record. A running server notices that and leaves safe mode (`CrashWatch.check`).

    Raises:
        OSError: it cannot be removed.
    """
    (directory / FILE).unlink(missing_ok=True)


def is_in_use(directory: Path) -> bool:
    """Return whether a running server writes the record.

    Raises:
        OSError: its lock cannot be opened.
    """
    try:
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
