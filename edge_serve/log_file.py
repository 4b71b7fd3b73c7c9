"""The file that `--log-file` names: takes the log's lines, and tells when it cannot."""

from __future__ import annotations

import contextlib
import logging
import os
import sys


class LogFile(logging.Handler):
    """Appends a line for each record.

    When the disk is full, one line on standard error says so, where `logging` prints a traceback for each record; when
    there is room again, the file says how many are lost. Written without a buffer: what waited in one would come later,
    torn, and could not be counted.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        # a FIFO that nobody reads would wait for its reader; what is written to it waits as it does on a terminal
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        os.set_blocking(opened, True)
        self._file = open(opened, "ab", buffering=0)  # noqa: SIM115  # open as long as the process
        self._lost = 0
        #: of the last line only the beginning is there
        self._torn = False

    def emit(self, record: logging.LogRecord) -> None:
        if self._file.closed:
            return
        try:
            line = self.format(record)
        except Exception:  # as every handler of `logging`: a line that fails must not fail its caller
            self.handleError(record)
            return
        try:
            if self._lost:
                self._write(self.format(self._gap()))
                self._lost = 0
            self._write(line)
        except OSError as error:
            self._lose(error)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _write(self, line: str) -> None:
        """File names that are no UTF-8 may be in a line, and must not keep it out of the log."""
        data = b"\n" * self._torn + line.encode("utf-8", "backslashreplace") + b"\n"
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file.fileno(), data[done:])
        finally:
            if done:
                self._torn = not data[:done].endswith(b"\n")

    def _gap(self) -> logging.LogRecord:
        text, here = "lines that are lost here, because the file took none: %d", sys._getframe()
        return logging.LogRecord(__name__, logging.WARNING, __file__, here.f_lineno, text, (self._lost,), None)

    def _lose(self, error: OSError) -> None:
        self._lost += 1
        if self._lost == 1:
            text = (
                f"cannot write the log to '{self._path}' ({error.strerror}): lines are lost until that is mended, then "
                "the log says how many"
            )
            with contextlib.suppress(OSError, ValueError):  # it may lead to the same disk, or nowhere
                print(f"edge-serve: {text}", file=sys.stderr, flush=True)
