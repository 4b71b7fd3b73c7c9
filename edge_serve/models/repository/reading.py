"""Time limits for reading repositories, and the record of entries that cannot be read.

An entry on a file system that does not answer delays only itself: Linux cannot interrupt a thread that waits for such a
file system. So each function runs in a daemon thread. The thread of an entry that does not answer is left behind, and
another one continues with the other entries. An entry that cannot be read is logged once; the index shows the reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from edge_serve.errors import UnreadableEntry
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.repository.names import shown

T = TypeVar("T")

#: how long reading one entry may take, seconds; disks that were asleep take some of them
READ_SECONDS = 10.0
#: if no entry was read for this long, a further thread continues with the remaining entries, seconds
_HELP_AFTER = 0.25
_SILENT = "does not answer: see to the file system that it lies on"
#: threads that may be left behind; when there are so many, no further entry is read
MOST_HANGING = 64


class Reader:
    """Reads entries of repositories. It lives as long as the server, because it tracks the entries that hang."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: entries whose threads were left behind and have not returned
        self._hanging: set[str] = set()

    def read(self, entry: str, function: Callable[[], T], seconds: float = READ_SECONDS) -> T:
        """Return what `function` returns, or raise what it raises.

        Raises:
            UnreadableEntry: it took longer than `seconds`, or an earlier call for this entry has not returned.
        """
        result = self.read_all({entry: function}, seconds)[entry]
        if isinstance(result, Exception):
            raise result
        return result

    def read_all(self, jobs: Mapping[str, Callable[[], T]], seconds: float = READ_SECONDS) -> dict[str, T | Exception]:
        """Return the result of each function, or the exception that it raised, as `read` does for one."""
        return _Round(self._lock, self._hanging, jobs, seconds).run()


class _Round(Generic[T]):
    """One call of `read_all`: one thread reads everything, unless an entry takes long."""

    def __init__(
        self, lock: threading.Lock, hanging: set[str], jobs: Mapping[str, Callable[[], T]], seconds: float
    ) -> None:
        self._lock = lock
        self._hanging = hanging
        self._seconds = seconds
        self._results: dict[str, T | Exception] = {}
        self._left = deque(jobs.items())
        self._count = len(jobs)
        #: entry that is being read -> since when
        self._running: dict[str, float] = {}
        self._done: SimpleQueue[tuple[str, T | Exception]] = SimpleQueue()

    def run(self) -> dict[str, T | Exception]:
        self._start_thread()
        while len(self._results) < self._count:
            try:
                entry, result = self._done.get(timeout=_HELP_AFTER)
            except Empty:
                self._fail_hanging(time.monotonic() - self._seconds)
                if self._left:
                    self._start_thread()
            else:
                self._results[entry] = result
        return self._results

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name="read repository", daemon=True).start()

    def _work(self) -> None:
        while job := self._next():
            entry, function = job
            result: T | Exception
            try:
                result = function()
            except OSError as error:
                result = UnreadableEntry(f"cannot be read: {error.strerror or error}")
            except Exception as error:  # a bug fails this entry, not the others
                result = error
            with self._lock:
                self._hanging.discard(entry)
                if self._running.pop(entry, None) is not None:
                    self._done.put((entry, result))

    def _next(self) -> tuple[str, Callable[[], T]] | None:
        with self._lock:
            while self._left:
                entry, function = self._left.popleft()
                if entry in self._hanging:
                    self._done.put((entry, UnreadableEntry(_SILENT)))
                elif len(self._hanging) >= MOST_HANGING:
                    self._done.put(
                        (entry, UnreadableEntry(f"was not read, because {MOST_HANGING} others do not answer"))
                    )
                else:
                    self._running[entry] = time.monotonic()
                    return entry, function
        return None

    def _fail_hanging(self, since: float) -> None:
        with self._lock:
            for entry in [entry for entry, began in self._running.items() if began < since]:
                del self._running[entry]
                self._hanging.add(entry)
                self._results[entry] = UnreadableEntry(_SILENT)


log = logging.getLogger(__name__)


class ReadStage(Enum):
    """The stage at which reading an entry failed. The reason of the first stage is shown."""

    FIND = auto()
    """Find out whether it is a directory, or leads to one."""
    WALK = auto()
    """Walk through its directory."""
    LOAD = auto()
    """Read what a load needs."""


class Faults:
    """The entries that cannot be read, by the names of their models. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[ReadStage, dict[str, str]] = {stage: {} for stage in ReadStage}

    def reasons(self, stage: ReadStage | None = None) -> dict[str, str]:
        """Return the reason for each model that cannot be read, at one stage or (None) at any."""
        with self._lock:
            return self._all() if stage is None else dict(self._reasons[stage])

    def scanned(self, models: Collection[str], faults: Mapping[str, str]) -> None:
        """Take over the result of a scan: `models`, and the reasons why other entries cannot be read."""
        with self._lock:
            known = self._all()
            for name in faults.keys() - known.keys():
                _log(name, faults[name])
            self._reasons[ReadStage.FIND] = dict(faults)
            for stage in (ReadStage.WALK, ReadStage.LOAD):
                reasons = self._reasons[stage]
                self._reasons[stage] = {name: reasons[name] for name in reasons if name in models}

    def add(self, stage: ReadStage, name: str, reason: str) -> None:
        """Record that a model cannot be read."""
        with self._lock:
            if name not in self._all():
                _log(name, reason)
            self._reasons[stage][name] = reason

    def remove(self, stage: ReadStage, name: str) -> None:
        """Record that a model could be read."""
        with self._lock:
            before = name in self._all()
            self._reasons[stage].pop(name, None)
            if before and name not in self._all():
                log.info("model %s can be read again", shown(name), extra=model_fields(name))

    def _all(self) -> dict[str, str]:
        return {name: reason for stage in reversed(ReadStage) for name, reason in self._reasons[stage].items()}


def _log(name: str, reason: str) -> None:
    log.warning("model %s is left out: %s", shown(name), reason, extra=model_fields(name))
