"""The HTTP server: accepts connections, sweeps their timeouts, drains.

`HttpConnection` does the work of one connection; what is answered is the application's matter (transport/exchange.py).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from edge_serve.clock import Clock, MonotonicClock
from edge_serve.errors import EdgeServeError, InvalidArgument, Overloaded
from edge_serve.messages.peer import Peer
from edge_serve.protocol.http1_response import CLOSE, response_head
from edge_serve.transport.accepting import Acceptor
from edge_serve.transport.exchange import Application
from edge_serve.transport.handshakes import Handshakes
from edge_serve.transport.http_connection import HttpConnection
from edge_serve.transport.http_limits import HttpLimits
from edge_serve.transport.http_shared import HttpCounters, Shared
from edge_serve.transport.http_tls import TlsHttpConnection
from edge_serve.transport.listeners import Listener, peer_of
from edge_serve.transport.replies import error_body
from edge_serve.transport.retiring import retire
from edge_serve.transport.sharing import Sharing
from edge_serve.transport.tls import TlsSocket


def _closing_reply(error: EdgeServeError) -> bytes:
    body = error_body(error.message)
    return response_head(error.http_status, "application/json", len(body), (), CLOSE) + body


_PLAIN_REPLY = _closing_reply(InvalidArgument("this port speaks TLS, found a request without it: use https://"))


class HttpServer:
    """Serves applications on any number of listeners, on the running loop.

    Args:
        application: answers every client.
        choose: the application for a client, where it is not the same for all.
        tls: the newest context, for doors that speak TLS; None = no TLS.
        sharing: limits that hold for all doors together; None = none.
    """

    def __init__(
        self,
        application: Application,
        limits: HttpLimits | None = None,
        clock: Clock | None = None,
        *,
        choose: Callable[[Peer], Application] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self._choose = choose or (lambda peer: application)
        self._tls = tls
        self._sharing = sharing or Sharing()
        #: what a connection is counted under, where they are
        self._keys: dict[HttpConnection, str] = {}
        self._handshakes: Handshakes | None = None
        self._limits = limits or HttpLimits()
        self._clock = clock or MonotonicClock()
        self._acceptor = Acceptor(self._admit)
        self._shared: Shared | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def counters(self) -> HttpCounters:
        """Read at scrape time."""
        return self._shared.counters if self._shared is not None else HttpCounters()

    async def start(self, listeners: Iterable[Listener]) -> None:
        """Accept from now on; `drain` closes the listeners."""
        loop = asyncio.get_running_loop()
        if self._shared is None:
            self._shared = Shared(loop, self._limits, self._sharing)
            self._shared.on_closed = self._on_closed if self._sharing.addresses.limit else None
            if self._tls is not None:
                self._handshakes = Handshakes(loop, self._tls, self._limits.handshake_timeout, _PLAIN_REPLY)
            self._sweep_timer = loop.call_later(self._limits.sweep_interval(), self._sweep_and_again)
        for listener in listeners:
            self._acceptor.add(listener)

    async def drain(self, timeout: float) -> int:
        """Stop accepting, answer what is in flight, close what is idle; after `timeout` seconds close the rest.

        Returns:
            The number of connections that were closed before their last answer was sent.
        """
        self._acceptor.stop()
        if self._handshakes is not None:
            self._handshakes.close()
        shared = self._shared
        if shared is None:
            return 0
        for connection in list(shared.connections):
            connection.drain()
        if shared.connections:
            emptied = shared.loop.create_future()
            shared.emptied = partial(_resolve, emptied)
            await asyncio.wait([emptied], timeout=timeout)
        cut_off = sum(connection.owes for connection in shared.connections)
        for connection in list(shared.connections):
            connection.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        return cut_off

    async def retire(self, timeout: float) -> None:
        """Accept nothing more, and let clients go without a failed request, at most `timeout` seconds; then `drain`."""
        self._acceptor.stop()
        shared, handshakes = self._shared, self._handshakes
        if shared is not None:
            opening = (lambda: 0) if handshakes is None else handshakes.__len__
            await retire(lambda: shared.connections, opening, timeout)

    def sweep(self) -> None:
        """Close the connections that have waited too long."""
        if self._shared is not None:
            now_ns = self._clock.now_ns()
            for connection in list(self._shared.connections):
                connection.check_time(now_ns)

    def _sweep_and_again(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self._limits.sweep_interval(), self._sweep_and_again)
        self.sweep()

    def _admit(self, sock: socket.socket, listener: Listener, address: Any) -> None:
        shared = self._shared
        assert shared is not None
        counters, handshakes, addresses = shared.counters, self._handshakes, self._sharing.addresses
        counters.connections_total += 1
        if len(shared.connections) + (0 if handshakes is None else len(handshakes)) >= shared.limits.connections:
            counters.connections_refused += 1
            _turn_away(sock, f"the server has {shared.limits.connections} connections open, which is its limit")
            return
        key = addresses.key(listener.sock, address)
        if not addresses.take(key):
            _turn_away(sock, f"your address has {addresses.limit} connections open, which is the limit")
        elif handshakes is None:
            self._open(HttpConnection(sock, shared, self._choose(peer_of(listener, address))), key)
        else:
            opened, failed = partial(self._on_opened, listener, address, key), partial(self._on_failed, key)
            handshakes.begin(sock, opened, failed)

    def _on_opened(self, listener: Listener, address: Any, key: str, sock: TlsSocket) -> None:
        shared = self._shared
        assert shared is not None
        peer = replace(peer_of(listener, address), certificate=sock.certificate)
        self._open(TlsHttpConnection(sock, shared, self._choose(peer)), key)

    def _open(self, connection: HttpConnection, key: str) -> None:
        shared = self._shared
        assert shared is not None
        shared.counters.connections += 1
        shared.connections.add(connection)
        if key:
            self._keys[connection] = key

    def _on_closed(self, connection: HttpConnection) -> None:
        self._sharing.addresses.give(self._keys.pop(connection, ""))

    def _on_failed(self, key: str) -> None:
        assert self._shared is not None, "handshakes begin when it is there"
        self._shared.counters.handshakes_failed += 1
        self._sharing.addresses.give(key)


def _turn_away(sock: socket.socket, reason: str) -> None:
    error = Overloaded(f"{reason}; try again later")
    with sock:
        try:
            sock.send(_closing_reply(error))
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            return


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
