"""The terminals that the console is drawn on. Nothing can be typed there."""

from __future__ import annotations

import contextlib
import os
import select
import termios
from collections.abc import Sequence

_CLEAR = "\x1b[2J\x1b[3J\x1b[H"


class Screens:
    """The terminals. One that does not exist, or has no driver, is skipped.

    Args:
        seconds: time that a slow terminal has to take more of a screen; the rest is discarded then.
    """

    def __init__(self, paths: Sequence[str], seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._files: list[int] = []
        for path in paths:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
                self._files.append(descriptor)
                _silence(descriptor)

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the content of all terminals."""
        data = (_CLEAR + "\r\n".join(lines) + "\r\n").encode("ascii", "replace")
        for descriptor in self._files:
            with contextlib.suppress(OSError):
                self._write(descriptor, data)

    def _write(self, descriptor: int, data: bytes) -> None:
        while data and select.select([], [descriptor], [], self._seconds)[1]:
            data = data[os.write(descriptor, data) :]

    def close(self) -> None:
        """Close all terminals."""
        for descriptor in self._files:
            os.close(descriptor)


def _silence(descriptor: int) -> None:
    """Stop a terminal from showing typed characters, and keys from sending signals and pausing the output."""
    with contextlib.suppress(termios.error):
        modes = termios.tcgetattr(descriptor)
        modes[0] &= ~termios.IXON
        modes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
        termios.tcsetattr(descriptor, termios.TCSANOW, modes)
