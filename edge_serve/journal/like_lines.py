"""Rate limit for like warnings and errors in the text log, with the rules of the journal's handler."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable

from edge_serve.journal.limit import Limiter, kind_of
from edge_serve.messages.about import CHATTER


class LikeLines(logging.Filter):
    """Filter of one handler: of like records (`kind_of`) only as many pass as the limiter allows.

    Lines below a warning pass, because events of the server cause them and not single requests. Lines of models pass,
    because the worker has a limit for them (workers/output.py).

    Args:
        handler: writes how many lines were suppressed.
    """

    def __init__(
        self,
        handler: logging.Handler,
        limiter: Limiter[logging.LogRecord] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._limiter = limiter or Limiter()
        self._clock = clock
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.name in CHATTER:
            return True
        with self._lock:
            return self._limiter.take(kind_of(record), record, self._clock())

    def tick(self, *, all: bool = False) -> None:
        """Write how many lines were suppressed; to be called about once a second, and with `all` at the end."""
        with self._lock:
            due = self._limiter.due(self._clock(), all=all)
        for count, record in due:
            line = copy.copy(record)
            line.msg, line.args = f"{count} more like this suppressed: {record.getMessage()}", ()
            line.exc_info = line.exc_text = None
            with self._handler.lock or threading.Lock():
                self._handler.emit(line)
