"""One noisy kind of line must not bury the others: a rate for each group of like lines. Time is an argument."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from edge_serve.messages.about import CHATTER, FIELDS
from edge_serve.workers.output import Rate

Line = TypeVar("Line")

_NUMBER = re.compile(r"[0-9]+")
#: characters that tell one kind of a model's lines from another
_TELLING = 120


@dataclass(slots=True)
class _Group(Generic[Line]):
    rate: Rate
    suppressed: int = 0
    since: float = 0.0
    last: Line | None = None


class Limiter(Generic[Line]):
    """Lets `burst` lines of a group pass at once and `per_second` after that, and counts the others.

    Args:
        summary_seconds: how long after the first line that did not pass the number of them is due.
        most_groups: how many are remembered; the one that was silent for longest is forgotten first.
    """

    def __init__(
        self, burst: int = 100, per_second: float = 10.0, summary_seconds: float = 5.0, most_groups: int = 1000
    ) -> None:
        self._burst = burst
        self._per_second = per_second
        self._summary_seconds = summary_seconds
        self._most_groups = most_groups
        self._groups: OrderedDict[Hashable, _Group[Line]] = OrderedDict()
        self._evicted: list[tuple[int, Line]] = []

    def take(self, key: Hashable, line: Line, now: float) -> bool:
        """Whether `line` of the group `key` may pass at `now` (seconds)."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(Rate(self._per_second, self._burst))
            if len(self._groups) > self._most_groups:
                self._note(self._groups.popitem(last=False)[1])
        self._groups.move_to_end(key)
        if group.rate.take(now):
            return True
        if not group.suppressed:
            group.since = now
        group.suppressed += 1
        group.last = line
        return False

    def due(self, now: float, *, all: bool = False) -> list[tuple[int, Line]]:
        """(how many did not pass, the last of them) of each group that has waited long enough, or of all groups."""
        for group in self._groups.values():
            if group.suppressed and (all or now - group.since >= self._summary_seconds):
                self._note(group)
        found, self._evicted = self._evicted, []
        return found

    def _note(self, group: _Group[Line]) -> None:
        if group.suppressed and group.last is not None:
            self._evicted.append((group.suppressed, group.last))
        group.suppressed, group.last = 0, None


def kind_of(record: logging.LogRecord) -> Hashable:
    """What makes records alike: the same line of our code, about the same model, equally severe. What a model prints or
    logs is alike when it reads alike, numbers aside: how much it may say in all, the worker's own limit decides."""
    place = (record.pathname, record.lineno, record.levelno)
    of = tuple(getattr(record, name, "") for name in FIELDS[:2])
    said = _NUMBER.sub("0", record.getMessage())[:_TELLING] if record.name in CHATTER else ""
    return (place, of, said)
