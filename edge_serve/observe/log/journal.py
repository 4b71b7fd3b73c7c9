"""The journal as the log: a record as the fields of an entry (systemd.journal-fields(7)), the handler of `logging` that
writes entries, and when it is used.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import traceback
from collections.abc import Mapping
from typing import Any, Protocol

from edge_serve.aio.sink import END_SECONDS, Sink
from edge_serve.messages.line import one_line
from edge_serve.messages.log_fields import DISPLAY, FIELDS
from edge_serve.observe.log.file import to_standard_error
from edge_serve.observe.log.native import NativeSender

Fields = dict[str, str]

IDENTIFIER = "edge-serve"
#: syslog's priorities: error, warning, informational, debug
_PRIORITIES = ((logging.ERROR, "3"), (logging.WARNING, "4"), (logging.INFO, "6"), (logging.NOTSET, "7"))


def fields_of(record: logging.LogRecord) -> Fields:
    """Return a record as the fields of an entry: its message is one line, and a traceback is a separate field."""
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
    """Return syslog's number for a level of `logging`."""
    return next(number for least, number in _PRIORITIES if level >= least)


class JournalSender(Protocol):
    """Sends entries to journald."""

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send one entry. Return False if it could not be sent. May block."""

    def close(self) -> None: ...


class LibrarySender:
    """Sends through the library systemd-python.

    Args:
        journal: its module `systemd.journal`, handed in so that tests can stand in for it.
    """

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    def send(self, fields: Mapping[str, str]) -> bool:
        try:
            self._journal.sendv(*(f"{name}={value}".encode("utf-8", "replace") for name, value in fields.items()))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Do nothing: the library has no function that closes its socket."""


class JournalHandler(logging.Handler):
    """Sends an entry for each record, in a thread: the caller never waits for journald."""

    def __init__(self, sender: JournalSender) -> None:
        super().__init__()
        # a table is for readers of lines; `edge-serve status` shows the same
        self.addFilter(lambda record: not hasattr(record, DISPLAY))
        self._sender = sender
        self._sink = Sink(self._send, _gap, "journal")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = fields_of(record)
        except Exception:  # as every handler of `logging`: a line that fails must not fail its caller
            self.handleError(record)
        else:
            self._sink.put(fields, sum(map(len, fields.values())))

    def written(self, seconds: float) -> bool:
        """Wait at most `seconds` until every entry is sent. Return whether it is."""
        return self._sink.flush(seconds)

    def close(self) -> None:
        """Send what waits, for at most `END_SECONDS`."""
        if self._sink.close(END_SECONDS):
            self._sender.close()
        super().close()

    def _send(self, fields: Fields) -> None:
        if not self._sender.send(fields):  # no journald: standard error may still lead somewhere
            to_standard_error(f"<{fields['PRIORITY']}>{fields['MESSAGE']}\n")


def _gap(count: int) -> Fields:
    text = f"{count} lines are lost: the journal did not take them"
    return {"MESSAGE": text, "PRIORITY": "4", "SYSLOG_IDENTIFIER": IDENTIFIER}


def is_journal(fd: int, journal_stream: str) -> bool:
    """Return whether `fd` is the connection to journald that `$JOURNAL_STREAM` names as `<device>:<inode>`
    (systemd.exec(5))."""
    try:
        device, inode = map(int, journal_stream.split(":"))
        found = os.fstat(fd)
    except (ValueError, OSError):
        return False
    return (found.st_dev, found.st_ino) == (device, inode)


def find_journal(environ: Mapping[str, str]) -> JournalHandler | None:
    """Return the handler for the journal if standard error leads there; None if it does not, or journald is absent."""
    if not is_journal(2, environ.get("JOURNAL_STREAM", "")):
        return None
    try:
        journal = importlib.import_module("systemd.journal")
    except ImportError:
        with contextlib.suppress(OSError):
            return JournalHandler(NativeSender())
        return None
    return JournalHandler(LibrarySender(journal))
