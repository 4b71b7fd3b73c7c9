"""The send queue of a worker's control channel: frames, and the descriptors that travel with them."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from edge_serve.messages.tensors import Buffer

#: of a socket whose other end is closed: the process is dying
_HUNG_UP = frozenset((errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN))


class ControlSendQueue:
    """Sends on the event loop; never blocks and never raises.

    Data that the socket does not take is queued without a copy, with duplicates of its descriptors: the caller may
    close its own, and the system may use their numbers again.

    Args:
        broken: called with a reason when the worker must be ended, since a frame for it is lost.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, broken: Callable[[str], None]) -> None:
        self._loop = loop
        self._socket = sock
        self._broken = broken
        self._queue: deque[tuple[memoryview, list[int]]] = deque()

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._queue)

    def send(self, data: Buffer, fds: Sequence[int] = ()) -> None:
        """Send a frame, or its next part."""
        if self._socket.fileno() < 0:
            return
        rest = memoryview(data)
        if not self._queue:
            sent = self._write(rest, fds)
            if sent == len(rest):
                return
            if sent:
                rest, fds = rest[sent:], ()
            self._loop.add_writer(self._socket.fileno(), self._flush)
        owned: list[int] = []
        self._queue.append((rest, owned))
        try:
            for fd in fds:
                owned.append(os.dup(fd))
        except OSError as error:
            self._broken(f"its control channel is full, and no descriptor is left: {error.strerror}")

    def close(self) -> None:
        """Discard what is queued, and close the socket."""
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for _, fds in self._queue:
            _close_all(fds)
        self._queue.clear()
        self._broken = _ignore

    def _write(self, data: memoryview, fds: Sequence[int]) -> int:
        """Write as many bytes as the socket takes; their number. The socket of a dying process takes all."""
        try:
            return socket.send_fds(self._socket, [data], fds) if fds else self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            if error.errno not in _HUNG_UP:
                self._broken(f"nothing can be sent to it: {error}")
            return len(data)

    def _flush(self) -> None:
        queue = self._queue
        while queue:
            data, fds = queue[0]
            sent = self._write(data, fds)
            if sent:
                _close_all(fds)
            if sent < len(data):
                queue[0] = data[sent:], fds
                return
            queue.popleft()
        self._loop.remove_writer(self._socket.fileno())


def _ignore(reason: str) -> None:
    """For `broken`, once the socket is closed."""


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
