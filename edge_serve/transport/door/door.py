"""Base class of all doors: accepts connections, does TLS handshakes, limits connections, sweeps, and drains.

The connections of a subclass define its protocol: see `http.server.HttpServer` and `grpc_service.server.GrpcServer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from edge_serve.clock import Clock
from edge_serve.messages.peer import Peer
from edge_serve.records import slotted
from edge_serve.transport.door.eviction import candidates
from edge_serve.transport.door.listeners import Acceptor, Listener, peer_of
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.sockets.client_connection import ClientConnection
from edge_serve.transport.sockets.handshakes import Handshakes
from edge_serve.transport.sockets.tls import TlsSocket

log = logging.getLogger(__name__)

#: share of the connections that a full door closes at once, because each search for idle ones costs time
_EVICTED_AT_ONCE = 1 / 64

#: descriptors reserved for workers (five per instance), loads, logs, and the connections of the metrics port
_RESERVED_FILES = 192

#: seconds for which an idle connection may still bring a request while another process takes over the listening
#: sockets, because its client may be sending one at this moment; and one that has not brought any yet
GRACE, FRESH_GRACE = 1.0, 3.0
#: seconds between two rounds over the connections that are retired
_ROUND_SECONDS = 0.05


C = TypeVar("C", bound=ClientConnection)


@slotted
class DoorCounters:
    """Counters of a door for the metrics page."""

    connections_refused: int = 0
    connections_evicted: int = 0
    handshakes_failed: int = 0


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of a door and of its connections, over HTTP and gRPC. Times are seconds.

    Attributes:
        connections: open at once, with TLS handshakes. Beyond it, a new one replaces an idle one, or is refused.
        unsent: unsent bytes of one connection, beyond which its answers wait.
        receive_buffer: bytes of the buffer that all connections share. A large body is received straight into its
            place, except for the bytes that arrive in this buffer together with its beginning.
        body_rate: bytes per second below which a sender is refused while other requests lack memory; 0 = none.
        memory_wait: for which a body may wait for memory.
        write_timeout: in which the client must read at least one more byte.
        handshake_timeout: from the start of a connection to the end of its TLS handshake.
        linger_timeout: for which received bytes are discarded after the last answer, so that the client can read it.
    """

    connections: int = 4096
    unsent: int = 256 * 1024
    receive_buffer: int = 64 * 1024
    body_rate: int = 64 * 1024
    memory_wait: float = 30.0
    write_timeout: float = 60.0
    handshake_timeout: float = 10.0
    linger_timeout: float = 3.0


class Door(ABC, Generic[C]):
    """Serves on any number of listeners, on the loop that runs when the door is made.

    Args:
        sweep_interval: seconds between two sweeps.
        sharing: limits of all doors together; None = none.
        tls: returns the newest TLS context; None = no TLS.
        plain_reply: sent to a client that speaks plain HTTP to a door with TLS.

    Attributes:
        connections: the open connections in the order in which they were opened, with the key of each one's address
            (`Addresses.key`).
        counters: read at scrape time.
    """

    def __init__(
        self,
        clock: Clock,
        limits: ConnectionLimits,
        sweep_interval: float,
        sharing: SharedLimits | None,
        counters: DoorCounters,
        tls: Callable[[], ssl.SSLContext] | None = None,
        plain_reply: bytes = b"",
    ) -> None:
        self.connections: dict[C, str] = {}
        self._clock = clock
        self._limits = limits
        self._sweep_interval = sweep_interval
        self._sharing = sharing or SharedLimits()
        self.counters = counters
        self._loop = loop = asyncio.get_running_loop()
        self._acceptor = Acceptor(self._admit)
        self._handshakes = None if tls is None else Handshakes(loop, tls, limits.handshake_timeout, plain_reply)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    @abstractmethod
    def _connect(self, sock: socket.socket | TlsSocket, peer: Peer) -> C:
        """Make the connection of an admitted client."""

    @abstractmethod
    def _refusal(self, reason: str) -> bytes:
        """Return the bytes that tell a client why it is not admitted."""

    async def start(self, listeners: Iterable[Listener]) -> None:
        """Accept connections from `listeners`, which `drain` closes."""
        if self._sweep_timer is None:
            self._sweep_later()
        for listener in listeners:
            self._acceptor.add(listener)

    async def drain(self, timeout: float) -> int:
        """Stop accepting, answer requests in flight, close idle connections; after `timeout` seconds close the rest.

        Returns:
            The number of connections that were closed before their last answer was sent.
        """
        self._acceptor.stop()
        if self._handshakes is not None:
            self._handshakes.close()
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            self._emptied = self._loop.create_future()
            await asyncio.wait([self._emptied], timeout=timeout)
        cut_off = sum(connection.owes for connection in self.connections)
        for connection in list(self.connections):
            connection.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        return cut_off

    def stop_accepting(self) -> None:
        """Stop accepting, and mark each answer from now on as the last one of its connection."""
        self._acceptor.stop()
        for connection in list(self.connections):
            connection.retire(0.0)

    async def retire(self, timeout: float) -> None:
        """Close the listeners, then the connections without failing a request, in at most `timeout` seconds."""
        self.stop_accepting()
        began = self._loop.time()
        while (waited := self._loop.time() - began) < timeout and (self.connections or self._count_handshakes()):
            for connection in list(self.connections):
                connection.retire(waited)
            await asyncio.sleep(_ROUND_SECONDS)

    def sweep(self) -> None:
        """Check the timeouts of all connections."""
        now_ns = self._clock.now_ns()
        for connection in list(self.connections):
            connection.check_time(now_ns)

    def gone(self, connection: C) -> None:
        """Remove a connection, which calls this when it is closed."""
        self._sharing.addresses.release(self.connections.pop(connection, ""))
        if not self.connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _count_handshakes(self) -> int:
        return 0 if self._handshakes is None else len(self._handshakes)

    def _sweep_later(self) -> None:
        self._sweep_timer = self._loop.call_later(self._sweep_interval, self._sweep_and_again)

    def _sweep_and_again(self) -> None:
        self._sweep_later()
        self.sweep()

    def _admit(self, sock: socket.socket, listener: Listener, address: Any) -> None:
        counters, addresses, most = self.counters, self._sharing.addresses, self._limits.connections
        key = addresses.key(listener.sock, address)
        if len(self.connections) + self._count_handshakes() >= most and not self._make_room(key):
            counters.connections_refused += 1
            self._turn_away(sock, self._refusal(f"the server has {most} connections open, which is its limit"))
        elif not addresses.acquire(key):
            self._turn_away(
                sock, self._refusal(f"your address has {addresses.limit} connections open, which is the limit")
            )
        elif self._handshakes is None:
            self._open(sock, peer_of(listener, address), key)
        else:
            opened = partial(self._on_opened, listener, address, key)
            self._handshakes.start(sock, opened, partial(self._on_failed, key), key)

    def _make_room(self, key: str) -> bool:
        """Close idle connections for a new one of the address `key`. Return False if none may be closed for it."""
        handshakes = {} if self._handshakes is None else self._handshakes.addresses
        count = max(1, int(self._limits.connections * _EVICTED_AT_ONCE))
        closed = 0
        for connection in candidates({**self.connections, **handshakes}, key):
            closed += connection.close_if_idle()
            if closed == count:
                break
        self.counters.connections_evicted += closed
        return closed > 0

    def _turn_away(self, sock: socket.socket, refusal: bytes) -> None:
        with sock, contextlib.suppress(OSError):  # the client may have left
            sock.send(refusal)
            sock.shutdown(socket.SHUT_WR)

    def _on_opened(self, listener: Listener, address: Any, key: str, sock: TlsSocket) -> None:
        self._open(sock, replace(peer_of(listener, address), certificate=sock.certificate), key)

    def _open(self, sock: socket.socket | TlsSocket, peer: Peer, key: str) -> None:
        try:
            connection = self._connect(sock, peer)
        except (OSError, MemoryError) as error:  # the event loop cannot watch another descriptor
            log.warning("closing a new connection that cannot be served: %s", error or "out of memory")
            sock.close()
            self._sharing.addresses.release(key)
            return
        self.connections[connection] = key

    def _on_failed(self, key: str) -> None:
        self.counters.handshakes_failed += 1
        self._sharing.addresses.release(key)


def within_files(wanted: int, door: str, doors: int) -> int:
    """Return `wanted`, or the number of connections that the process's file limit allows if that is less.

    Args:
        doors: share the files, of HTTP and gRPC.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = max(files - _RESERVED_FILES, files // 2) // doors
    if files == resource.RLIM_INFINITY or wanted <= most:
        return wanted
    log.warning("at most %d %s connections: this process may have only %d files open", most, door, files)
    return most
