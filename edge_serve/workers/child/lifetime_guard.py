"""Ties this process and its process group to the lifetime pipe, so that the kernel kills them with the front end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal


class LifetimeGuard:
    """The worker's end: ties this process and its group, or ends it when the front end is gone already."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._pipe = _identity(fd)
        _tie(fd, -os.getpid())  # the front end has made it a group of its own

    def tie_child(self) -> None:
        """Tie a child that a model forked. The model may have closed our end, or opened something else in its place."""
        with contextlib.suppress(OSError):
            if _identity(self._fd) == self._pipe:  # opened anew: what is set here does not hold for the worker's own
                _tie(os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), os.getpid())


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _tie(fd: int, owner: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETOWN, owner)
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        os.read(fd, 1)
    except BlockingIOError:  # there is a writer, and nothing is ever written
        return
    os._exit(1)  # it was closed before the lines above: no signal comes
