"""A client's socket on the event loop, plain or TLS: the base class of HTTP and gRPC connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from edge_serve.messages.tensors import Buffer
from edge_serve.transport.sockets.tls import TlsSocket


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


class LoopSocket:
    """A socket that the event loop watches while reading or writing is wanted; starts with reading."""

    __slots__ = ("_fd", "_reading", "_sock", "_writing", "loop")

    def __init__(self, sock: StreamSocket, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self.loop = loop
        self._writing = False
        self._reading = False
        self._set_reading(True)

    def _on_readable(self) -> None:
        raise NotImplementedError

    def _on_writable(self) -> None:
        raise NotImplementedError

    def _reads(self) -> Callable[[], None]:
        """Return the callback for a readable socket; called whenever watching for reading starts."""
        return self._on_readable

    def _set_reading(self, wanted: bool) -> None:
        if wanted is not self._reading:
            self._reading = wanted
            if wanted:
                self.loop.add_reader(self._fd, self._reads())
            else:
                self.loop.remove_reader(self._fd)

    def _set_writing(self, wanted: bool) -> None:
        if wanted is not self._writing:
            self._writing = wanted
            if wanted:
                self.loop.add_writer(self._fd, self._on_writable)
            else:
                self.loop.remove_writer(self._fd)


class OverTls(LoopSocket):
    """Before a connection in its bases: bytes that OpenSSL holds do not make the descriptor readable, so they are
    asked for. Those that came with the end of the handshake are such, too."""

    __slots__ = ()
    _sock: TlsSocket

    def _on_readable(self) -> None:
        super()._on_readable()
        while self._reading and self._sock.pending():
            super()._on_readable()

    def _set_reading(self, wanted: bool) -> None:
        begins = wanted and not self._reading
        super()._set_reading(wanted)
        if begins and self._sock.pending():
            self.loop.call_soon(self._on_pending)

    def _on_pending(self) -> None:
        if self._reading and self._sock.pending():
            self._reads()()
