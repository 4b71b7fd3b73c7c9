"""Rate limit for like warnings and errors in the text log, with the rules of the journal's handler."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable

from edge_serve.messages.log_fields import CHATTER
from edge_serve.observe.log.limit import Limiter, is_error, kind_of, with_count


class LikeLines(logging.Filter):
    """Filter of one handler: of like records (`kind_of`) only as many pass as the limiter allows.

    Lines below a warning pass, because events of the server cause them and not single requests; those that come again
    with each restart of a worker do not. What models print passes within the worker's limit (workers/front/output.py),
    until it has been the same for a minute.

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
        self._of_models: Limiter[logging.LogRecord] = Limiter(lenient=True)
        self._clock = clock
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        error = is_error(record)
        chatter = record.name in CHATTER
        if not (error or chatter):
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
            line.msg, line.args = with_count(count, record.getMessage()), ()
            line.exc_info = line.exc_text = None
            with self._handler.lock or threading.Lock():
                self._handler.emit(line)
