"""The lines of the log, to standard error or to the file that `--log-file` names; a thread writes them."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys

from edge_serve.aio.sink import END_SECONDS, Sink
from edge_serve.aio.within import within

#: how long opening the file may take, seconds
OPEN_SECONDS = 5.0


class LineHandler(logging.Handler):
    """Writes a line for each record to a file, a pipe or a terminal. The caller never waits for it.

    When the file takes no bytes, lines wait in memory. When too many wait (`aio/sink`) or the file cannot be written
    (the disk is full), lines are lost, and as soon as it takes bytes again, one line says how many. Written without a
    buffer: bytes of a torn line could not be counted. A file that was renamed or removed (logrotate) is opened anew.

    Args:
        descriptor: of the open file; its number stays when the file is opened anew.
        path: of the file; "" = standard error. `close` closes a file that has a path.
    """

    def __init__(self, descriptor: int, path: str = "") -> None:
        super().__init__()
        self.descriptor = descriptor
        self._path = path
        #: `os.fstat` of the open file, to compare with its path; None = standard error
        self._opened = os.fstat(descriptor) if path else None
        #: the path cannot be opened, and the open file was renamed
        self._behind = False
        self._sink = Sink(self._take, self._slow, "log")
        self._lost = 0
        #: of the last line only the beginning is there
        self._torn = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # as every handler of `logging`: a line that fails must not fail its caller
            self.handleError(record)
        else:
            self._sink.put(line, len(line))

    def written(self, seconds: float) -> bool:
        """Wait at most so long until every line is written or lost; whether that is so."""
        return self._sink.flush(seconds)

    def close(self) -> None:
        """Write what waits, for at most `END_SECONDS`."""
        if self._sink.close(END_SECONDS) and self._path and self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        super().close()

    # ---- in the thread ------------------------------------------------------------------------------------------

    def _take(self, line: str) -> None:
        try:
            if self._lost:
                self._write(self._gap("lines that are lost here, because the file took none: %d", self._lost))
                self._lost = 0
            self._write(line)
        except OSError as error:
            self._lose(error)

    def _write(self, line: str) -> None:
        """Write one line. File names in it that are no UTF-8 are escaped, so that the line is not lost."""
        self._follow()
        data = b"\n" * self._torn + line.encode("utf-8", "backslashreplace") + b"\n"
        done = 0
        try:
            while done < len(data):
                try:
                    done += os.write(self.descriptor, data[done:])
                except BlockingIOError:  # another process that has this terminal or pipe open has set O_NONBLOCK
                    _wait_for_room(self.descriptor)
        finally:
            if done:
                self._torn = not data[:done].endswith(b"\n")

    def _follow(self) -> None:
        """Open the file anew if it was renamed or removed.

        Raises:
            OSError: it cannot be opened, and the one that is open has no name any more.
        """
        if self._opened is None:
            return
        # before each line: lines of even one second would go to a file that logrotate may be compressing
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self._path), self._opened):
                self._behind = False
                return
        try:
            fresh = _open(self._path)
        except OSError as error:
            if not os.fstat(self.descriptor).st_nlink:
                raise
            if not self._behind:
                self._behind = True
                text = f"edge-serve: cannot open '{self._path}' anew ({error.strerror}): until that is mended, the log "
                to_standard_error(f"{text}goes to the file that had this name\n")
            return
        self._behind = False
        self._opened = os.fstat(fresh)
        self._torn = False
        os.dup2(fresh, self.descriptor, inheritable=False)
        os.close(fresh)

    def _slow(self, count: int) -> str:
        return self._gap("lines that are lost here, because lines came faster than they could be written: %d", count)

    def _gap(self, text: str, count: int) -> str:
        here = sys._getframe()
        return self.format(logging.LogRecord(__name__, logging.WARNING, __file__, here.f_lineno, text, (count,), None))

    def _lose(self, error: OSError) -> None:
        self._lost += 1
        if self._lost == 1 and self._path:
            text = (
                f"edge-serve: cannot write the log to '{self._path}' ({error.strerror}): lines are lost until that is "
                "mended, then the log says how many\n"
            )
            to_standard_error(text)


def open_log(path: str) -> LineHandler:
    """Open the file `path` for appending, and return a handler that writes lines to it.

    Raises:
        OSError: it cannot be opened, or not within `OPEN_SECONDS`.
    """
    return LineHandler(within(OPEN_SECONDS, _open, path), path)


def _open(path: str) -> int:
    # a FIFO without a reader would hold the start
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    os.set_blocking(opened, True)
    return opened


def _wait_for_room(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


def to_standard_error(text: str) -> None:
    """Write there without the buffer of `sys.stderr`: a thread that waits in that one would abort the end of the
    process."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it may lead nowhere, or be closed
        os.write(sys.stderr.fileno(), text.encode("utf-8", "backslashreplace"))
