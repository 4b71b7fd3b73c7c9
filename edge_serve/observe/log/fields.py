"""A log record as the fields of a journal entry (systemd.journal-fields(7))."""

from __future__ import annotations

import logging
import traceback

from edge_serve.messages.line import one_line
from edge_serve.messages.log_fields import FIELDS

Fields = dict[str, str]

IDENTIFIER = "edge-serve"
#: syslog's priorities: error, warning, informational, debug
_PRIORITIES = ((logging.ERROR, "3"), (logging.WARNING, "4"), (logging.INFO, "6"), (logging.NOTSET, "7"))


def fields_of(record: logging.LogRecord) -> Fields:
    """The entry of a record: its message is one line, a traceback goes into a field of its own."""
    fields = {
        "MESSAGE": one_line(record.getMessage()),
        "PRIORITY": priority(record.levelno),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "CODE_FILE": record.pathname,
        "CODE_LINE": str(record.lineno),
        "CODE_FUNC": record.funcName or "",
    }
    fields.update((name.upper(), str(getattr(record, name))) for name in FIELDS if hasattr(record, name))
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        fields["MESSAGE"] += one_line(f": {type(error).__name__}: {error}")
        fields["EXCEPTION_TEXT"] = "".join(traceback.format_exception(error))
    return fields


def priority(level: int) -> str:
    """Syslog's number for a level of `logging`."""
    return next(number for least, number in _PRIORITIES if level >= least)
