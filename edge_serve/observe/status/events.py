"""The newest lines of the log, for the status document: events in general, and errors and warnings apart.

What models print and log at info level is no event of the server; their warnings and errors are.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace

from edge_serve.messages.log_fields import CHATTER, DISPLAY, FIELDS
from edge_serve.records import slotted

#: how many are kept of each
MOST_EVENTS, MOST_ERRORS = 60, 30
#: of one text, and how much of that is its end, which says what to do
LONGEST_TEXT, _END = 500, 250
_GAP = " ... "


@slotted
class StatusEvent:
    """A line of the log.

    Attributes:
        time_ms: milliseconds since the epoch, of the last of `count` equal ones in a row.
        source: the module of the server that said it.
    """

    time_ms: int
    level: str
    source: str
    text: str
    model: str = ""
    version: str = ""
    request_id: str = ""
    count: int = 1

    def repeats(self, other: StatusEvent) -> bool:
        """Return whether both events have the same text about the same model."""
        mine = (self.level, self.source, self.text, self.model, self.version)
        return mine == (other.level, other.source, other.text, other.model, other.version)


class EventRing(logging.Handler):
    """Remembers the newest events; costs memory for a bounded number of lines."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.events: deque[StatusEvent] = deque(maxlen=MOST_EVENTS)
        self.errors: deque[StatusEvent] = deque(maxlen=MOST_ERRORS)

    def newest(self) -> tuple[list[StatusEvent], list[StatusEvent]]:
        """Return the events, and the errors and warnings, the newest first."""
        self.acquire()  # other threads log too
        try:
            return list(self.events)[::-1], list(self.errors)[::-1]
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        serious = record.levelno >= logging.WARNING
        if not serious and (record.name in CHATTER or hasattr(record, DISPLAY)):
            return
        try:
            event = _event(record)
        except Exception:  # as every handler of `logging`: a line that fails must not fail its caller
            self.handleError(record)
            return
        _add(self.events, event)
        if serious:
            _add(self.errors, event)


def _event(record: logging.LogRecord) -> StatusEvent:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    level = "error" if record.levelno >= logging.ERROR else "warning" if record.levelno >= logging.WARNING else "info"
    model, version, request_id = (str(getattr(record, name, "")) for name in FIELDS)
    time_ms = round(record.created * 1000)
    return StatusEvent(time_ms, level, record.module, _shortened(text), model, version, request_id)


def _shortened(text: str) -> str:
    """Return a long text without its middle: a traceback ends in the fix."""
    if len(text) <= LONGEST_TEXT:
        return text
    return text[: LONGEST_TEXT - len(_GAP) - _END] + _GAP + text[-_END:]


def _add(ring: deque[StatusEvent], event: StatusEvent) -> None:
    before = ring.pop().count if ring and event.repeats(ring[-1]) else 0
    ring.append(replace(event, count=before + 1))
