"""Rate limit for each group of like lines, so that one noisy kind does not bury the others."""

from __future__ import annotations

import copy
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Generic, TypeVar

from edge_serve.messages.log_fields import CHATTER, FIELDS, RECURS
from edge_serve.records import slotted
from edge_serve.workers.front.output import Rate

Line = TypeVar("Line")

#: a number, or an address in memory: neither makes lines of a model differ
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")
#: characters of a model's line that determine its kind
_TELLING = 120
#: after so many seconds of repetition a group may write one line in as many seconds
SLOW_SECONDS = 60.0
#: silence after which the repetition of a group is over
QUIET_SECONDS = 600.0


@slotted
class _Group(Generic[Line]):
    """Like lines.

    Attributes:
        begun: when the lines began to repeat; None = they do not.
        seen: time of the newest line; written: of the newest one that passed, or was reported with a count.
        since: time of the first of the `suppressed` lines.
    """

    rate: Rate
    begun: float | None = None
    seen: float = 0.0
    written: float = 0.0
    suppressed: int = 0
    since: float = 0.0
    last: Line | None = None

    def is_slow(self, now: float) -> bool:
        return self.begun is not None and now - self.begun >= SLOW_SECONDS


@slotted
class Limiter(Generic[Line]):
    """Lets `burst` lines of a group pass at once and `per_second` after that, and counts the others.

    A group that continues for `SLOW_SECONDS` gets one line a minute, with the count of the others, until it is silent
    for `QUIET_SECONDS`. A group of errors continues with each repetition; other groups continue only while there are
    more lines than `per_second`.

    Attributes:
        summary_seconds: how long after the first line that did not pass the number of them is due.
        most_groups: how many are remembered; the one that was silent for longest is forgotten first.
        lenient: before a group is slowed down, all its lines pass.
    """

    burst: int = 100
    per_second: float = 10.0
    summary_seconds: float = 5.0
    most_groups: int = 1000
    lenient: bool = field(default=False, kw_only=True)
    _groups: OrderedDict[Hashable, _Group[Line]] = field(default_factory=OrderedDict, init=False)
    _evicted: list[tuple[int, Line]] = field(default_factory=list, init=False)

    def take(self, key: Hashable, line: Line, now: float, *, error: bool = True) -> bool:
        """Return whether `line` of the group `key` may pass at `now` (seconds).

        Args:
            error: each repetition counts, not only those above the rate.
        """
        group = self._group(key)
        if now - group.seen >= QUIET_SECONDS:
            group.begun = None
        group.seen = now
        within = group.rate.take(now)
        if not error and group.rate.is_rested:
            group.begun = None
        elif group.begun is None and (error or not within):
            group.begun = now
        if group.is_slow(now):
            passes = not group.suppressed and now - group.written >= SLOW_SECONDS
        else:
            passes = within or self.lenient
        if passes:
            group.written = now
            return True
        if not group.suppressed:
            group.since = now
        group.suppressed += 1
        group.last = line
        return False

    def _group(self, key: Hashable) -> _Group[Line]:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(Rate(self.per_second, self.burst))
            if len(self._groups) > self.most_groups:
                self._note(self._groups.popitem(last=False)[1])
        self._groups.move_to_end(key)
        return group

    def due(self, now: float, *, all: bool = False) -> list[tuple[int, Line]]:
        """Return (how many did not pass, the last of them) of each group that has waited long enough, or of all."""
        for group in self._groups.values():
            due = group.written + SLOW_SECONDS if group.is_slow(now) else group.since + self.summary_seconds
            if group.suppressed and (all or now >= due):
                self._note(group)
                group.written = now
        found, self._evicted = self._evicted, []
        return found

    def _note(self, group: _Group[Line]) -> None:
        if group.suppressed and group.last is not None:
            self._evicted.append((group.suppressed, group.last))
        group.suppressed, group.last = 0, None


def kind_of(record: logging.LogRecord) -> Hashable:
    """Return the kind of a record. Records of one kind come from the same line of code, about the same model, equally
    severe. What a model prints or
    logs is alike when it reads alike, numbers aside: how much it may say in all, the worker's own limit decides."""
    place = (record.pathname, record.lineno, record.levelno)
    of = tuple(getattr(record, name, "") for name in FIELDS[:2])
    said = _NUMBER.sub("0", record.getMessage())[:_TELLING] if record.name in CHATTER else ""
    return (place, of, said)


class LikeLines(logging.Filter):
    """Filter of one handler: of like records (`kind_of`) only as many pass as the limiter allows.

    In a text log, lines below a warning pass, because events of the server cause them and not single requests; those
    that come again with each restart of a worker do not. What models print passes within the worker's limit
    (workers/front/output.py), until it has been the same for a minute. In the journal, the limit is for all lines.

    Args:
        handler: writes how many lines were suppressed.
        journal: whether the handler writes to the journal. There the line with the number keeps its traceback.
    """

    def __init__(
        self,
        handler: logging.Handler,
        limiter: Limiter[logging.LogRecord] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        journal: bool = False,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._journal = journal
        self._limiter = limiter or Limiter()
        self._of_models = self._limiter if journal else Limiter[logging.LogRecord](lenient=True)
        self._clock = clock
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        # each repetition counts of a warning, an error, and what a worker says that was just restarted
        error = record.levelno >= logging.WARNING or hasattr(record, RECURS)
        chatter = record.name in CHATTER
        if not (error or chatter or self._journal):
            return True
        limiter = self._of_models if chatter else self._limiter
        with self._lock:
            return limiter.take(kind_of(record), record, self._clock(), error=error)

    def tick(self, *, all: bool = False) -> None:
        """Write how many lines were suppressed; to be called about once a second, and with `all` at the end."""
        with self._lock:
            now = self._clock()
            due = self._limiter.due(now, all=all) + self._of_models.due(now, all=all)
        for count, record in due:
            line = copy.copy(record)
            text = record.getMessage()
            line.msg, line.args = f"{count} more like this suppressed: {text}" if count > 1 else text, ()
            if not self._journal:
                line.exc_info = line.exc_text = None
            with self._handler.lock or threading.Lock():
                self._handler.emit(line)
