"""Prints the progress of a run: in place on a terminal, else as a few lines, as for a journal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

#: seconds between two lines about one download, if not on a terminal
_SPARSE = 30.0
_MIB = 1024 * 1024


class ProgressPrinter:
    """Prints lines and the progress of a download, without colours. Implements `components.ProgressOutput`."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._in_place = self._out.isatty()
        self._open = False
        self._shown = 0.0
        self._line = ""

    def __call__(self, text: str) -> None:
        """Print a line."""
        self._end()
        print(text, file=self._out, flush=True)

    def progress(self, text: str, done: int, total: int) -> None:
        """Print the progress of a download."""
        now = time.monotonic()
        is_last = done >= total
        if not is_last and now - self._shown < (0.2 if self._in_place else _SPARSE):
            return
        self._shown = now
        line = f"{text}: {_amount(done, total)}"
        if line == self._line:
            return
        self._line = line
        if not self._in_place:
            print(line, file=self._out, flush=True)
            return
        self._out.write(f"\r{line}   ")
        self._out.flush()
        self._open = True
        if is_last:
            self._end()

    def _end(self) -> None:
        """End a line that was printed in place."""
        if self._open:
            self._out.write("\n")
            self._open = False


def _amount(done: int, total: int) -> str:
    if total < _MIB:
        return f"{done} of {total} bytes"
    return f"{done / _MIB:.1f} of {total / _MIB:.1f} MiB"
