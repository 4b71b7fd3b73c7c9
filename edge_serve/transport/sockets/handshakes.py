"""Non-blocking TLS handshakes of accepted sockets. A turn of the loop does one step, which takes about 1 ms."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable

from edge_serve.records import entity
from edge_serve.transport.sockets.tls import TlsSocket, wrap

log = logging.getLogger(__name__)

Opened = Callable[[TlsSocket], None]
Failed = Callable[[], None]


@entity
class Handshake:
    """A TLS handshake under way.

    Attributes:
        idle_since_ns: see `eviction.Idle`. The timeout is short, so idle connections are closed before handshakes.
    """

    owner: Handshakes
    sock: ssl.SSLSocket
    opened: Opened
    failed: Failed
    fd: int
    timer: asyncio.TimerHandle | None = None
    idle_since_ns: int | None = sys.maxsize

    def close_if_idle(self) -> bool:
        """Fail the handshake. Return True: it waits for its client always."""
        self.owner.fail(self, ConnectionAbortedError("closed to make room for another connection"))
        return True


class Handshakes:
    """The TLS handshakes under way at one door.

    Args:
        context: returns the newest TLS context, for each connection.
        timeout: seconds from the first step to the last.
        plain_reply: sent to a client that speaks plain HTTP.

    Attributes:
        addresses: the `address` of each handshake under way, in the order in which they started.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: Callable[[], ssl.SSLContext],
        timeout: float,
        plain_reply: bytes,
    ) -> None:
        self._loop = loop
        self._context = context
        self._timeout = timeout
        self._plain_reply = plain_reply
        self.addresses: dict[Handshake, str] = {}
        #: those whose next step is due; `_step_one` is scheduled while there are any
        self._ready: deque[Handshake] = deque()

    def __len__(self) -> int:
        return len(self.addresses)

    def start(self, sock: socket.socket, opened: Opened, failed: Failed, address: str) -> None:
        """Start the handshake of an accepted, non-blocking socket.

        Calls `opened` or `failed` at its end, unless `close` is called before.
        """
        try:
            wrapped = wrap(sock, self._context())
        except OSError as error:
            _report(failed, error)
            return
        handshake = Handshake(self, wrapped, opened, failed, wrapped.fileno())
        self.addresses[handshake] = address
        handshake.timer = self._loop.call_later(self._timeout, self._on_timeout, handshake)
        self._loop.add_reader(handshake.fd, self._on_ready, handshake)

    def close(self) -> None:
        """Cancel all handshakes, and close their sockets."""
        for handshake in list(self.addresses):
            self._remove(handshake)
            handshake.sock.close()

    def _on_timeout(self, handshake: Handshake) -> None:
        self.fail(handshake, TimeoutError(f"the handshake took longer than {self._timeout:g} seconds"))

    def _on_ready(self, handshake: Handshake) -> None:
        self._stop_watching(handshake)
        self._ready.append(handshake)
        if len(self._ready) == 1:
            self._loop.call_soon(self._step_one)

    def _step_one(self) -> None:
        handshake = self._ready.popleft()
        if self._ready:  # before the step: an exception in it must not stop those after it
            self._loop.call_soon(self._step_one)
        if handshake in self.addresses:
            self._step(handshake)

    def _step(self, handshake: Handshake) -> None:
        try:
            handshake.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._loop.add_reader(handshake.fd, self._on_ready, handshake)
        except ssl.SSLWantWriteError:
            self._loop.add_writer(handshake.fd, self._on_ready, handshake)
        except OSError as error:
            self.fail(handshake, error)
        else:
            self._remove(handshake)
            handshake.opened(TlsSocket(handshake.sock))

    def fail(self, handshake: Handshake, error: OSError) -> None:
        """Close the socket because of `error`, and call `failed`."""
        self._remove(handshake)
        if self._plain_reply and getattr(error, "reason", None) == "HTTP_REQUEST":
            reply_plain(handshake.sock, self._plain_reply)
        handshake.sock.close()
        _report(handshake.failed, error)

    def _remove(self, handshake: Handshake) -> None:
        self.addresses.pop(handshake, None)
        self._stop_watching(handshake)
        if handshake.timer is not None:
            handshake.timer.cancel()

    def _stop_watching(self, handshake: Handshake) -> None:
        self._loop.remove_reader(handshake.fd)
        self._loop.remove_writer(handshake.fd)


def _report(failed: Failed, error: OSError) -> None:
    log.debug("a TLS handshake failed: %s", error)
    failed()


def reply_plain(sock: socket.socket, reply: bytes) -> None:
    """Send `reply` without TLS, and close for writing.

    Received bytes are read first, because closing with unread bytes resets the connection and discards the reply. A
    client that sends much more than a request head may lose it.
    """
    with contextlib.suppress(OSError):
        for _ in range(2):
            socket.socket.recv(sock, 65536)
    with contextlib.suppress(OSError):
        socket.socket.send(sock, reply)
        sock.shutdown(socket.SHUT_WR)
