"""Frames to and from a worker: the front end's end of its control channel, and of each of its data channels.

Callbacks on the event loop. Nothing here waits: data that the socket does not take is queued.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from edge_serve.messages.tensors import Buffer
from edge_serve.workers.wire.frames import HEADER, HEADER_SIZE, VERSION, FrameError, parse_header

log = logging.getLogger(__name__)

#: seconds in which a worker that has closed a channel may end by itself
GRACE = 1.0
_RECEIVE_BYTES = 64 * 1024
#: of a socket whose other end is closed: the process is dying
_HUNG_UP = frozenset((errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN))


class FrameSocket:
    """Sends and receives whole frames; never blocks and never raises.

    Queued data is not copied. Descriptors that travel with it are duplicated: the caller may close its own, and the
    system may use their numbers again.

    Args:
        name: of the channel, for reasons.
        owner: of the channel, for log lines.
        on_frame: takes the kind, count, id, and the whole frame. If it raises, the worker counts as broken.
        broken: called with a reason when the worker breaks the protocol or a frame for it is lost, so that it must be
            killed, and with the seconds in which it may end by itself.
        about: fields of log lines.
    """

    __slots__ = ("_about", "_buffer", "_loop", "_name", "_on_frame", "_owner", "_queue", "_socket", "broken")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        name: str,
        owner: str,
        on_frame: Callable[[int, int, int, bytes], None],
        broken: Callable[[str, float], None],
        about: Mapping[str, str] | None = None,
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._name = name
        self._owner = owner
        self._on_frame = on_frame
        self.broken = broken
        self._about = about
        self._queue: deque[tuple[memoryview, list[int]]] = deque()
        self._buffer = bytearray()
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self._on_readable)

    # ---- to the worker --------------------------------------------------------------------------------------------

    def send(self, data: Buffer, fds: Sequence[int] = ()) -> None:
        """Send a frame, or its next part."""
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
            self.broken(f"its {self._name} is full, and no descriptor is left: {error.strerror}", 0)

    def _write(self, data: memoryview, fds: Sequence[int]) -> int:
        """Write as many bytes as the socket takes; their number. The socket of a dying process takes all."""
        try:
            return socket.send_fds(self._socket, [data], fds) if fds else self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            if error.errno not in _HUNG_UP:
                self.broken(f"nothing can be sent to it: {error}", 0)
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

    # ---- from the worker ------------------------------------------------------------------------------------------

    def _on_readable(self) -> bool:
        """Handle frames that have arrived. Return False if none had, or if no more will be handled."""
        try:
            return self._receive()
        except FrameError as error:
            self._buffer.clear()  # it is unknown where the next frame begins
            self.broken(f"it broke the protocol: {error}", 0)
        except Exception as error:
            log.exception("%s: a message from its worker cannot be handled", self._owner, extra=self._about)
            self.broken(f"a message from it cannot be handled: {type(error).__name__}: {error}", 0)
        return False

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            if self._socket.fileno() >= 0:
                self._loop.remove_reader(self._socket.fileno())
            self.broken(f"it closed its {self._name}", GRACE)
            return False
        if not self._buffer and len(data) >= HEADER_SIZE:
            length, version, kind, count, frame_id = HEADER.unpack_from(data)
            if length + HEADER_SIZE == len(data) and version == VERSION:
                self._on_frame(kind, count, frame_id, data)
                return True
        self._split(data)
        return True

    def _split(self, data: bytes) -> None:
        """Handle several frames that came at once, or a part of one: the rare cases."""
        self._buffer += data
        while len(self._buffer) >= HEADER_SIZE:
            length, kind, count, frame_id = parse_header(self._buffer)
            end = HEADER_SIZE + length
            if len(self._buffer) < end:
                return
            whole = bytes(memoryview(self._buffer)[:end])
            del self._buffer[:end]
            self._on_frame(kind, count, frame_id, whole)

    # ---- the end --------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Handle the frames that a dead worker has written, up to one that cannot be handled."""
        self.broken = _ignore
        while self._on_readable():
            pass

    def hang_up(self) -> None:
        """Tell the worker that no frame follows. That it closes the channel is then no reason to kill it."""
        self.broken = _ignore
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Discard what is queued, and close the socket."""
        self.broken, self._on_frame = _ignore, _discard  # a reference cycle would wait for a garbage collection
        fd = self._socket.fileno()
        if fd >= 0:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            self._socket.close()
        for _, fds in self._queue:
            _close_all(fds)
        self._queue.clear()
        self._buffer = bytearray()


def _ignore(reason: str, grace: float) -> None:
    """Do nothing: `broken`, once the end is known."""


def _discard(kind: int, count: int, frame_id: int, received: bytes) -> None:
    """Do nothing: `on_frame`, once the socket is closed."""


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
