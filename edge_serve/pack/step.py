"""Runs a step of an installation, whose processes end with it, and with this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Sequence

from edge_serve.errors import Internal
from edge_serve.workers.launch.lifetime_pipe import LifetimePipe

#: a step may take this long: downloads of gigabytes
LIMIT_SECONDS = 3600.0


def run(command: Sequence[str], what: str) -> None:
    """Run a command, whose output is that of this process, in a session of its own.

    Raises:
        Internal: the command failed, and has printed why, or it took too long.
    """
    pipe = LifetimePipe()
    read_end = pipe.theirs.fileno()
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal is for this process: the command prints no traceback about it
        pass_fds=[read_end],
        preexec_fn=lambda: _kill_with_writer(read_end),  # no other thread runs
    )
    try:
        status = child.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        text = f"{what} took longer than {LIMIT_SECONDS:g} s: download the wheels first, and name them with --wheels"
        raise Internal(text) from error
    finally:
        pipe.close()
        child.wait()
        pipe.theirs.close()
    if status:
        raise Internal(f"{what} failed with status {status}: see its message above")


def _kill_with_writer(read_end: int) -> None:
    """Make the kernel kill the group of this process when the write end is closed, also by a kill of its owner."""
    fcntl.fcntl(read_end, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(read_end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(read_end, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):  # there is a writer, and nothing is ever written
        os.read(read_end, 1)
        os._exit(1)  # it was closed before the lines above: no signal comes
