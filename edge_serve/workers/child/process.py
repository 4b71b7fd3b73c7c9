"""Setup that every child process of the server shares: control channel, signals, limits, log."""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from edge_serve.backends import host
from edge_serve.workers.child.lifetime_guard import LifetimeGuard
from edge_serve.workers.child.remote import Remote
from edge_serve.workers.wire.frames import BUSY_BEAT, Frame, FrameKind, Splitter, frame, json_frame

#: enough for models; far below what an inherited limit may be, which would make closing descriptors slow
OPEN_FILES = 4096
#: that the front end may get, and decides about
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MOST_DESCRIPTORS = 253  # SCM_MAX_FD
#: how much sooner than the front end a worker is chosen when memory runs out (proc(5), oom_score_adj: up to 1000)
OOM_STEP = 500


class FrameSender:
    """Sends whole frames on a socket, from any thread.

    The garbage collector may run a finalizer in the middle of `send`, and the finalizer may send a frame, too: that
    frame follows the one that is being sent.
    """

    __slots__ = ("_later", "_lock", "_sending", "_socket")

    def __init__(self, sock: socket.socket, lock: AbstractContextManager[object] | None = None) -> None:
        """Make a sender.

        Args:
            lock: a reentrant one that its callers may have acquired; None = one of its own.
        """
        self._socket = sock
        self._lock = lock or threading.RLock()
        self._sending = False
        self._later: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        """Send a frame.

        Raises:
            OSError: the front end is gone.
        """
        with self._lock:
            if self._sending:  # by this thread
                self._later.append(data)
                return
            self._sending = True
            try:
                self._socket.sendall(data)
                while self._later:
                    self._socket.sendall(self._later.popleft())
            finally:
                self._sending = False


class Control:
    """The control channel: any thread sends, one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sender = FrameSender(sock, host.lock)
        self._splitter = Splitter()
        self.descriptors: list[int] = []

    def send(self, data: bytes) -> None:
        """Send a whole frame; nothing happens when the front end is gone."""
        with suppress(OSError):
            self._sender.send(data)

    def disconnect(self) -> None:
        """Close the channel in a forked child, where `host.lock` is another one."""
        self._sender = FrameSender(self._socket, host.lock)
        self._socket.close()

    def receive(self) -> list[Frame] | None:
        """Return frames that have arrived; None at the end. Add descriptors that came along to `descriptors`."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, 64 * 1024, _MOST_DESCRIPTORS)
        for fd in descriptors:
            os.set_inheritable(fd, False)
        self.descriptors += descriptors
        return self._splitter.feed(data) if data else None


class ForwardingHandler(logging.Handler):
    """Log records become LOG frames: the front end writes them in the server's format."""

    def __init__(self, remote: Remote) -> None:
        super().__init__()
        self._remote = remote

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit a record that the filters let pass, without the lock of a handler: a thread that waits there for the
        channel would keep a finalizer from logging, which runs in the thread that sends."""
        passed = self.filter(record)
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._remote.forward_log(record.levelno, self.format(record))
        except Exception:  # as every handler of `logging`: a line that fails must not fail its caller
            self.handleError(record)

    def install(self) -> None:
        """Forward the records of all loggers, whatever handlers a model adds with `logging.basicConfig`.

        The model's call takes effect as if there were no handler yet. Its handlers for standard output or error have
        none, because the server's log has these lines already.
        """
        root, configure = logging.getLogger(), logging.basicConfig

        def configure_beside(**given: Any) -> None:
            root.removeHandler(self)
            try:
                configure(**given)
            finally:
                for handler in [one for one in root.handlers if _writes_to_pipe(one)]:
                    root.removeHandler(handler)
                    root.addHandler(logging.NullHandler())  # a second call has no effect
                root.addHandler(self)

        configure(level=logging.INFO, handlers=[self], format="%(message)s")
        logging.basicConfig = configure_beside


def _writes_to_pipe(handler: logging.Handler) -> bool:
    stream = getattr(handler, "stream", None)
    return any(stream is one for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))


def prepare_process(pipe_fd: int) -> LifetimeGuard:
    """Tie this process to the front end, which alone decides about signals, and set limits and fault handlers."""
    tied = LifetimeGuard(pipe_fd)
    _raise_oom_score()
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which a program that a model starts would inherit
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard), hard)
    )
    faulthandler.enable(all_threads=False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # text files
    return tied


def _raise_oom_score() -> None:
    """Let the kernel kill a worker before the front end, which restarts it, when memory runs out. Any process may
    raise its own figure."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            now = int(file.read())
            file.seek(0)
            file.write(str(min(1000, now + OOM_STEP)))
    except (OSError, ValueError):
        pass  # a system that hides it


def beat(
    control: Control,
    seconds: float,
    place: Callable[[], str] = str,
    is_loading: Callable[[], bool] = bool,
    begun: threading.Event | None = None,
) -> None:
    """Send heartbeats for ever, in a thread of its own.

    Args:
        seconds: between two of them; at most `BUSY_BEAT` while `is_loading`.
        place: returns where a model is that is being loaded; "" = none is, or that is not known.
        is_loading: returns whether a model is being described or opened.
        begun: set when that begins.
    """
    heartbeat, begun = frame(FrameKind.HEARTBEAT), begun or threading.Event()
    while True:
        begun.wait(min(seconds, BUSY_BEAT) if is_loading() else seconds)
        begun.clear()
        where = place()
        control.send(json_frame(FrameKind.HEARTBEAT, 0, {"place": where}) if where else heartbeat)
