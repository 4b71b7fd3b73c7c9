"""A client's connection, over HTTP or gRPC: a socket on the event loop, plain or TLS, and the phases of its life."""

from __future__ import annotations

import asyncio
import enum
import socket
from collections.abc import Iterable
from typing import Protocol

from edge_serve.messages.tensors import Buffer
from edge_serve.transport.sockets.tls import TlsSocket


class ConnectionPhase(enum.IntEnum):
    """Phases of a connection. It only moves down this list."""

    OPEN = 0
    #: HTTP: no further request is read: the last one asked for it, or was refused, or the server is draining
    LAST = 1
    #: all answers are sent; received bytes are discarded until the client closes or `linger_timeout` is over, because
    #: closing with unread bytes would reset the connection and lose the last answer (RFC 9112 9.6)
    LINGER = 2
    CLOSED = 3


class StreamSocket(Protocol):
    """A non-blocking stream socket.

    A call that would block raises BlockingIOError, and a call on a broken connection another OSError.
    """

    def fileno(self) -> int: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def send(self, data: Buffer, /) -> int: ...
    def sendmsg(self, buffers: Iterable[Buffer], /) -> int: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class ClientConnection:
    """Base class of HTTP and gRPC connections. The event loop watches its socket while reading or writing is wanted."""

    __slots__ = ("_fd", "_mark", "_phase", "_reading", "_since_ns", "_sock", "_tls", "_writing", "loop")

    def __init__(self, sock: StreamSocket, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._fd = sock.fileno()
        self.loop = loop
        self._phase = ConnectionPhase.OPEN
        #: the reason for which it waits and its progress, as the last sweep found them, and since when
        self._mark: object = None
        self._since_ns = 0
        self._writing = False
        self._reading = False
        self._set_reading(True)

    # ---- defined by HTTP and gRPC -----------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        raise NotImplementedError

    def _on_writable(self) -> None:
        raise NotImplementedError

    def _on_closed(self) -> None:
        raise NotImplementedError

    @property
    def idle_since_ns(self) -> int | None:
        """See `eviction.Idle`."""
        raise NotImplementedError

    @property
    def owes(self) -> bool:
        """Whether a request is unanswered, or its answer is not sent completely."""
        raise NotImplementedError

    def drain(self) -> None:
        """Answer the requests that have begun, then close."""
        raise NotImplementedError

    def retire(self, waited: float) -> None:
        """Answer the requests that have begun, then close; without any, close after the grace period.

        Args:
            waited: seconds since another process took over the listening sockets.
        """
        raise NotImplementedError

    def check_time(self, now_ns: int) -> None:
        """Do what is due at this time; close the connection after a timeout."""
        raise NotImplementedError

    # ---- for both ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close at once, and cancel the requests under way."""
        if self._phase is not ConnectionPhase.CLOSED:
            self._phase = ConnectionPhase.CLOSED
            self._set_reading(False)
            self._set_writing(False)
            self._sock.close()
            self._on_closed()

    def close_if_idle(self) -> bool:
        """See `eviction.Idle`."""
        if self._reading:
            self._read_now()
        if self.idle_since_ns is not None:
            self.close()
        return self._phase is ConnectionPhase.CLOSED

    def _linger(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        self._phase = ConnectionPhase.LINGER
        self._set_reading(True)

    def _is_late(self, mark: object, seconds: float, now_ns: int) -> bool:
        """Return whether `mark`, the reason of a wait and its progress, is the same for so many seconds."""
        if mark != self._mark:
            self._mark, self._since_ns = mark, now_ns
            return False
        return now_ns - self._since_ns >= seconds * 1e9

    def _set_reading(self, wanted: bool) -> None:
        if wanted is self._reading:
            return
        self._reading = wanted
        if not wanted:
            self.loop.remove_reader(self._fd)
        elif self._tls is None:
            self.loop.add_reader(self._fd, self._on_readable)
        else:
            self.loop.add_reader(self._fd, self._read_now)
            if self._tls.pending():  # they may have come with the end of the handshake
                self.loop.call_soon(self._read_pending)

    def _set_writing(self, wanted: bool) -> None:
        if wanted is not self._writing:
            self._writing = wanted
            if wanted:
                self.loop.add_writer(self._fd, self._on_writable)
            else:
                self.loop.remove_writer(self._fd)

    def _read_now(self) -> None:
        self._on_readable()
        self._read_pending()

    def _read_pending(self) -> None:
        """Read the bytes that OpenSSL holds, because they do not make the descriptor readable."""
        while self._reading and self._tls is not None and self._tls.pending():
            self._on_readable()
