"""Limits that all doors of a server share: requests in flight, connections of one address, memory for bodies."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from dataclasses import field
from typing import Any

from edge_serve.errors import Overloaded
from edge_serve.records import slotted
from edge_serve.transport.door.body_memory import BodyMemory
from edge_serve.transport.door.listeners import host_of


class InFlight:
    """Number of unanswered requests. Connections change `now` directly, because every request does it.

    Attributes:
        limit: beyond it, requests other than GET and OPTIONS are refused.
        refused: number of refused requests.
    """

    __slots__ = ("limit", "now", "refused")

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit or sys.maxsize
        self.now = 0
        self.refused = 0

    def refuse(self) -> Overloaded:
        """Count a refused request, and return the error to answer."""
        self.refused += 1
        return Overloaded(f"{self.limit} requests wait for their answers, which is this server's limit; try again")


class Addresses:
    """Counts the connections of each address.

    Args:
        limit: connections of one address; 0 = no limit, and nothing is counted.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.refused = 0
        self._open: Counter[str] = Counter()

    def key(self, sock: socket.socket, address: Any) -> str:
        """Return the key that counts a connection; "" for a UNIX socket. `address` is the result of `accept`.

        The owner of one IPv6 address owns all of its /64 network (RFC 7421).
        """
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return ""
        host = host_of(address)
        if ":" in host:
            return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8].hex()
        return host

    def acquire(self, key: str) -> bool:
        """Count one more connection. Return False, and count nothing, at the limit."""
        if not (key and self.limit):
            return True
        if self._open[key] >= self.limit:
            self.refused += 1
            return False
        self._open[key] += 1
        return True

    def release(self, key: str) -> None:
        """Count one connection less."""
        if key and self.limit:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


@slotted
class SharedLimits:
    """The limits that all doors share; without arguments there are none."""

    in_flight: InFlight = field(default_factory=InFlight)
    addresses: Addresses = field(default_factory=Addresses)
    memory: BodyMemory = field(default_factory=BodyMemory)
