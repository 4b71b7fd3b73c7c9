"""The HTTP server: a door with `HttpConnection`s, whose requests an application answers (`door/exchange.py`).

The administration endpoint is one on a UNIX socket, which refuses workers.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

from edge_serve.clock import Clock, MonotonicClock
from edge_serve.errors import EdgeServeError, InvalidArgument, Overloaded, PermissionDenied
from edge_serve.messages.peer import Peer
from edge_serve.protocol.http1.head import CLOSE, response_head
from edge_serve.transport.door.door import Door
from edge_serve.transport.door.exchange import Application
from edge_serve.transport.door.listeners import Listener
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.http.connection import HttpConnection
from edge_serve.transport.http.door_state import HttpCounters, HttpDoorState, HttpLimits
from edge_serve.transport.http.replies import error_body
from edge_serve.transport.sockets.tls import TlsSocket
from edge_serve.workers.launch.landlock import is_marked


def closing_reply(error: EdgeServeError) -> bytes:
    """Return an error reply that closes the connection."""
    body = error_body(error.message)
    return response_head(error.http_status, "application/json", len(body), (), CLOSE) + body


_PLAIN_REPLY = closing_reply(InvalidArgument("this port requires TLS, got plain HTTP: use https://"))


class HttpServer(Door[HttpConnection]):
    """Serves an application over HTTP.

    Args:
        application: answers the requests.
        choose: returns the application of a client; None = `application` for all.
        tls: returns the newest TLS context; None = no TLS.
        sharing: limits that all doors share; None = none.
    """

    counters: HttpCounters

    def __init__(
        self,
        application: Application,
        limits: HttpLimits | None = None,
        clock: Clock | None = None,
        *,
        choose: Callable[[Peer], Application] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        sharing: SharedLimits | None = None,
    ) -> None:
        self._choose = choose or (lambda peer: application)
        limits = limits or HttpLimits()
        self._ends = False
        super().__init__(
            clock or MonotonicClock(), limits, limits.sweep_interval(), sharing, HttpCounters(), tls, _PLAIN_REPLY
        )
        self._shared = HttpDoorState(self._loop, limits, self._sharing, self.counters, self.gone)

    def announce_close(self) -> None:
        """Put `Connection: close` into each answer from now on; new connections are accepted, and get it too."""
        self._ends = True
        for connection in list(self.connections):
            connection.retire(0.0)

    def trace(self, on: bool) -> None:
        """Record the start time of requests, or stop recording it."""
        self._shared.now_ns = self._clock.now_ns if on else None
        for connection in self.connections:
            connection.begun_ns = 0

    def _connect(self, sock: socket.socket | TlsSocket, peer: Peer) -> HttpConnection:
        connection = HttpConnection(sock, self._shared, self._choose(peer))
        if self._ends:
            connection.retire(0.0)
        return connection

    def _refusal(self, reason: str) -> bytes:
        return closing_reply(Overloaded(f"{reason}; try again later"))


_REFUSED = closing_reply(PermissionDenied("models may not use the admin socket: this process descends from a worker"))
_UCRED = struct.Struct("iii")


class AdminServer(HttpServer):
    """An HTTP server that refuses worker processes. The file's mode cannot, because workers run as the same user."""

    def _admit(self, sock: socket.socket, listener: Listener, address: Any) -> None:
        if is_worker(sock):
            self.counters.connections_refused += 1
            self._turn_away(sock, _REFUSED)
        else:
            super()._admit(sock, listener, address)


def is_worker(sock: socket.socket) -> bool:
    """Return whether the process that connected to a UNIX socket is a worker, or descends from one."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    # a process of another user is not a worker, and /proc may hide it
    return uid == os.geteuid() and pid != 0 and is_marked(pid)
