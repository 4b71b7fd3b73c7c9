"""Cuts the data channel of an instance into frames, and polls through short waits for the next one (ADR 17)."""

from __future__ import annotations

import socket
import time

from edge_serve.workers.wire.frames import HEADER, HEADER_SIZE
from edge_serve.workers.wire.polling_wait import PollingWait

_RECEIVE_BYTES = 64 * 1024


class Receiver:
    """Cuts a blocking stream into frames, each in memory of its own that starts on 16 bytes.

    Models may keep arrays beyond their batch, so no frame's memory is used twice.
    """

    __slots__ = ("_buffer", "_have", "_socket", "_wait")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._have = 0
        self._wait = PollingWait()

    def receive(self, poll_us: int = 0) -> bytearray | None:
        """Return the next frame with its header; None at the end of the stream.

        Args:
            poll_us: the longest time to poll before sleeping, if the last wait was short.
        """
        if not poll_us or self._have:
            return self._receive()
        clock, most = time.monotonic_ns, poll_us * 1000
        began = clock()
        end = began + self._wait.poll_ns(most)
        while clock() < end and not self._has_data():
            pass
        received = self._receive()
        self._wait.note(clock() - began, most)
        return received

    def _has_data(self) -> bool:
        """Receive without sleeping; return whether data or the end of the stream has arrived."""
        try:
            self._have = self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def _receive(self) -> bytearray | None:
        buffer, have, recv_into = self._buffer, self._have, self._socket.recv_into
        while have < HEADER_SIZE:
            count = recv_into(buffer[have:])
            if not count:
                return None
            have += count
        total = HEADER_SIZE + HEADER.unpack_from(buffer)[0]
        if have >= total:
            made = bytearray(buffer[:total])
            if have > total:
                buffer[: have - total] = bytes(buffer[total:have])
            self._have = have - total
            return made
        made = bytearray(total)
        made[:have] = buffer[:have]
        rest = memoryview(made)[have:]
        self._have = 0
        while rest:
            count = recv_into(rest)
            if not count:
                return None
            rest = rest[count:]
        return made
