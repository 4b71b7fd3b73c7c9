"""The server's log: one readable line per event, in Triton's layout, ISO 8601 or JSON.

Control characters are escaped, so nothing that a client sends can start a line of its own. Under systemd the journal
takes the place of the text (observe/log/journal.py).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from edge_serve.messages.line import one_line
from edge_serve.messages.log_fields import FIELDS
from edge_serve.messages.settings import LogSettings
from edge_serve.observe.log.file import LineHandler, open_log
from edge_serve.observe.status.events import EventRing

_LETTERS = {logging.DEBUG: "V", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "E"}


class TritonFormatter(logging.Formatter):
    """`I1121 11:33:06.034685 3516 registry.py:345] text` (glog's header, as Triton writes it)."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        return self.line(record, f"{_LETTERS.get(record.levelno, 'I')}{stamp}.{int(record.created % 1 * 1e6):06d}")

    def line(self, record: logging.LogRecord, head: str) -> str:
        """Return the line of a record behind its head."""
        return f"{head} {record.process} {record.filename}:{record.lineno}] {one_line(_text(self, record))}"


class Iso8601Formatter(TritonFormatter):
    """`2026-11-21T11:33:06Z I 3516 registry.py:345] text`"""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        return self.line(record, f"{stamp} {_LETTERS.get(record.levelno, 'I')}")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, pid, source, message, and what it is about (messages/log_fields.py)."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
                "level": record.levelname.lower(),
                "pid": record.process,
                "source": f"{record.filename}:{record.lineno}",
                "message": _text(self, record),
                **{name: getattr(record, name) for name in FIELDS if hasattr(record, name)},
            }
        )


FORMATTERS: dict[str, type[logging.Formatter]] = {
    "default": TritonFormatter,
    "ISO8601": Iso8601Formatter,
    "json": JsonFormatter,
}


def _text(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.getMessage()
    return f"{text}\n{formatter.formatException(record.exc_info)}" if record.exc_info else text


class LogControl:
    """The log while the server runs: implements `messages.settings.ServerLog`.

    Args:
        handler: takes the lines.

    Attributes:
        events: the newest lines, for the status document.
        tick: the periodic work of the log, to be called about once a second.
    """

    def __init__(
        self, settings: LogSettings, handler: logging.Handler, tick: Callable[[], None] = lambda: None
    ) -> None:
        self._handler = handler
        self.tick = tick
        self._handler.addFilter(self._is_on)
        self.events = EventRing()
        self.adopt("edge_serve")
        self._settings = settings
        self.update(settings)

    def settings(self) -> LogSettings:
        """Return the settings in effect."""
        return self._settings

    def update(self, settings: LogSettings) -> None:
        """Apply `settings` from the next line on; the file stays what it is."""
        self._handler.setFormatter(FORMATTERS[settings.format]())
        logging.getLogger("edge_serve").setLevel(logging.DEBUG if settings.verbose_level else logging.INFO)
        self._settings = replace(settings, file=self._settings.file)

    def adopt(self, name: str) -> None:
        """Take the lines of a logger; without a handler those of another library would go to standard error at once."""
        logger = logging.getLogger(name)
        logger.handlers[:] = [self._handler, self.events]
        logger.propagate = False

    def _is_on(self, record: logging.LogRecord) -> bool:
        """Return whether the settings let a record pass. As in Triton, each level can be turned off alone
        (`--log-info=false`), verbose is a number."""
        if record.levelno >= logging.ERROR:
            return self._settings.error
        if record.levelno >= logging.WARNING:
            return self._settings.warning
        return self._settings.info if record.levelno >= logging.INFO else self._settings.verbose_level > 0


def configure(settings: LogSettings, journal: logging.Handler | None = None) -> LogControl:
    """Send the log of every room to the `journal`, to the file of the settings, or to standard error.

    Raises:
        OSError: the file cannot be opened.
    """
    from edge_serve.observe.log.limit import LikeLines  # not for commands without a log of their own

    handler = journal or (open_log(settings.file) if settings.file else _standard_error())
    like = LikeLines(handler, journal=journal is not None)
    control = LogControl(settings, handler, like.tick)
    handler.addFilter(like)  # behind the levels: what they keep out does not count
    atexit.register(like.tick, all=True)
    return control


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Discard the log while a command runs whose report says everything."""
    root = logging.getLogger("edge_serve")
    before = root.handlers[:], root.propagate
    root.handlers[:], root.propagate = [logging.NullHandler()], False
    try:
        yield
    finally:
        root.handlers[:], root.propagate = before


def _standard_error() -> logging.Handler:
    try:
        return LineHandler(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # there is none, or it is no file
        return logging.StreamHandler()
