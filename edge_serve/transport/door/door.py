"""What every door does: accepts connections, takes their TLS handshakes, turns away too many, sweeps, drains.

What is spoken behind it is the matter of its connections (`http.HttpServer`, `grpc_server.GrpcServer`).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from edge_serve.clock import Clock
from edge_serve.messages.peer import Peer
from edge_serve.transport.door.accepting import Acceptor
from edge_serve.transport.door.eviction import candidates
from edge_serve.transport.door.handover import Handover, retire
from edge_serve.transport.door.listeners import Listener, peer_of
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.sockets.handshakes import Handshakes
from edge_serve.transport.sockets.tls import TlsSocket

log = logging.getLogger(__name__)

#: of all connections, those that a full door closes at once when the next one comes: a look at all of them costs time
_EVICTED_AT_ONCE = 1 / 64

#: descriptors that connections leave to workers (five an instance), loads and logs
_RESERVED_FILES = 128


class Connection(Handover, Protocol):
    """One client's, as its door sees it; when it is closed it calls `Door.gone`."""

    @property
    def owes(self) -> bool:
        """Something is unanswered, or its answer not sent."""

    @property
    def idle_since_ns(self) -> int | None:
        """See `eviction.Idle`."""

    def close_if_idle(self) -> bool:
        """See `eviction.Idle`."""

    def drain(self) -> None:
        """Answer what has begun, then close."""

    def check_time(self, now_ns: int) -> None:
        """Do what is due; close if it has been waiting for the same thing too long."""

    def close(self) -> None:
        """End it now, whatever is under way."""


C = TypeVar("C", bound=Connection)


@dataclass(slots=True)
class DoorCounters:
    """What the metrics page shows of a door; `connections` are open now."""

    connections: int = 0
    connections_total: int = 0
    connections_refused: int = 0
    connections_evicted: int = 0
    handshakes_failed: int = 0


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """What a door gives to its clients, at most.

    Attributes:
        connections: open at once, handshakes among them; a further one takes the place of an idle one, or is refused.
        handshake_timeout: seconds from the start of a connection to the end of its TLS handshake.
        sweep_interval: seconds between looks at all connections.
    """

    connections: int
    handshake_timeout: float
    sweep_interval: float


class Door(ABC, Generic[C]):
    """Serves on any number of listeners, on the running loop.

    Args:
        tls: the newest context; None = no TLS.
        plain_reply: sent to a client that speaks HTTP without TLS to a door that does.

    Attributes:
        connections: all that are open.
    """

    def __init__(
        self,
        clock: Clock,
        limits: DoorLimits,
        sharing: SharedLimits,
        counters: DoorCounters,
        tls: Callable[[], ssl.SSLContext] | None = None,
        plain_reply: bytes = b"",
    ) -> None:
        self.connections: set[C] = set()
        self._clock = clock
        self._door_limits = limits
        self._sharing = sharing
        self._door_counters = counters
        self._tls = tls
        self._plain_reply = plain_reply
        #: the address of each connection, in the order of their opening
        self._keys: dict[C, str] = {}
        self._acceptor = Acceptor(self._admit)
        self._handshakes: Handshakes | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    @abstractmethod
    def _connect(self, sock: socket.socket | TlsSocket, peer: Peer) -> C:
        """The connection of a client that may come in."""

    @abstractmethod
    def _refusal(self, reason: str) -> bytes:
        """What a client is told that may not."""

    async def start(self, listeners: Iterable[Listener]) -> None:
        """Accept from now on; `drain` closes the listeners."""
        if self._sweep_timer is None:
            loop = asyncio.get_running_loop()
            if self._tls is not None:
                timeout = self._door_limits.handshake_timeout
                self._handshakes = Handshakes(loop, self._tls, timeout, self._plain_reply)
            self._sweep_later()
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
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=timeout)
        cut_off = sum(connection.owes for connection in self.connections)
        for connection in list(self.connections):
            connection.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        return cut_off

    def leave(self) -> None:
        """Accept nothing more; who is answered from now on hears that it is the last answer."""
        self._acceptor.stop()
        for connection in list(self.connections):
            connection.retire(0.0)

    async def retire(self, timeout: float) -> None:
        """Leave, and let clients go without a failure, at most `timeout` seconds; then `drain`."""
        self.leave()
        await retire(lambda: self.connections, self._opening, timeout)

    def sweep(self) -> None:
        """Do what is due at every connection: close those that have waited too long."""
        now_ns = self._clock.now_ns()
        for connection in list(self.connections):
            connection.check_time(now_ns)

    def gone(self, connection: C) -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        self._door_counters.connections -= 1
        self._sharing.addresses.give(self._keys.pop(connection, ""))
        if not self.connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _opening(self) -> int:
        return 0 if self._handshakes is None else len(self._handshakes)

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self._door_limits.sweep_interval, self._sweep_and_again)

    def _sweep_and_again(self) -> None:
        self._sweep_later()
        self.sweep()

    def _admit(self, sock: socket.socket, listener: Listener, address: Any) -> None:
        counters, addresses, most = self._door_counters, self._sharing.addresses, self._door_limits.connections
        counters.connections_total += 1
        key = addresses.key(listener.sock, address)
        if len(self.connections) + self._opening() >= most and not self._make_room(key):
            counters.connections_refused += 1
            self._turn_away(sock, f"the server has {most} connections open, which is its limit")
        elif not addresses.take(key):
            self._turn_away(sock, f"your address has {addresses.limit} connections open, which is the limit")
        elif self._handshakes is None:
            self._open(sock, peer_of(listener, address), key)
        else:
            opened = partial(self._on_opened, listener, address, key)
            self._handshakes.begin(sock, opened, partial(self._on_failed, key), key)

    def _make_room(self, key: str) -> bool:
        """Close idle connections for one of the address `key`; False when none may be closed for it."""
        handshakes = {} if self._handshakes is None else self._handshakes.addresses
        count = max(1, int(self._door_limits.connections * _EVICTED_AT_ONCE))
        closed = 0
        for connection in candidates({**self._keys, **handshakes}, key):
            closed += connection.close_if_idle()
            if closed == count:
                break
        self._door_counters.connections_evicted += closed
        return closed > 0

    def _turn_away(self, sock: socket.socket, reason: str) -> None:
        with sock:
            try:
                sock.send(self._refusal(reason))
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                return

    def _on_opened(self, listener: Listener, address: Any, key: str, sock: TlsSocket) -> None:
        self._open(sock, replace(peer_of(listener, address), certificate=sock.certificate), key)

    def _open(self, sock: socket.socket | TlsSocket, peer: Peer, key: str) -> None:
        try:
            connection = self._connect(sock, peer)
        except (OSError, MemoryError) as error:  # the system cannot watch another descriptor
            log.warning("a connection is closed before it began: %s", error or "out of memory")
            sock.close()
            self._sharing.addresses.give(key)
            return
        self._door_counters.connections += 1
        self.connections.add(connection)
        self._keys[connection] = key

    def _on_failed(self, key: str) -> None:
        self._door_counters.handshakes_failed += 1
        self._sharing.addresses.give(key)


def within_files(wanted: int, door: str) -> int:
    """So many connections as are wanted, or as this process may have open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY or wanted <= files - _RESERVED_FILES:
        return wanted
    most = min(wanted, max(files - _RESERVED_FILES, files // 4))
    log.warning("at most %d %s connections: this process may have only %d files open", most, door, files)
    return most
