"""The program in a forked process: as a real start, without the time that a new interpreter takes to import it."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edge_serve import cli, server  # noqa: F401  # imported here, and not in each process

#: capabilities with which root reads and writes whatever it likes (capabilities(7))
_OVERRIDE = (1 << 1) | (1 << 2)
_VERSION_3 = 0x20080522


@dataclass(frozen=True)
class Ended:
    """The end of a process.

    Attributes:
        status: its exit status; None = it did not end in time and was killed.
        served: it became ready, and was asked to stop.
    """

    status: int | None
    output: str
    served: bool


def program(*arguments: str, environ: Mapping[str, str] | None = None, limit: float = 20.0) -> Ended:
    """Run `edge-serve` until it ends; when it is ready it is asked to stop."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _become_the_program(arguments, environ or {}, writing, limit)
    os.close(writing)
    os.set_blocking(reading, False)
    output, served, status, end = b"", False, None, time.monotonic() + limit
    while status is None and time.monotonic() < end:
        time.sleep(0.005)
        output += _available(reading)
        if not served and b" ready in " in output:
            served = True
            os.kill(pid, signal.SIGTERM)
        found, code = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if found else None
    if status is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    output += _available(reading)
    os.close(reading)
    return Ended(status, output.decode(errors="replace"), served)


def _become_the_program(arguments: Sequence[str], environ: Mapping[str, str], output: int, limit: float) -> None:
    status = 70
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.dump_traceback_later(limit * 0.8, file=2)  # says where it hangs, if it does
        os.environ.update(environ)
        _obey_permissions()
        import sys

        sys.stdout, sys.stderr = os.fdopen(1, "w", 1, closefd=False), os.fdopen(2, "w", 1, closefd=False)
        logging.disable(logging.NOTSET)
        status = cli.main(list(arguments))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        logging.shutdown()  # a thread writes the log; `_exit` would not wait for it
        os._exit(status)


def _obey_permissions() -> None:
    """Root without its capability to read what it may not."""
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) == 0:
        data[0] &= ~_OVERRIDE  # effective
        data[1] &= ~_OVERRIDE  # permitted, which access(2) asks
        libc.capset(header, data)


def _available(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return b""
