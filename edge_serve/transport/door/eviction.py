"""Choice of the idle connections that a full door closes, so that one address cannot exclude all others. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Protocol, TypeVar

#: connections examined for one choice, the oldest first: bounds the time that a full door takes from the loop
_MOST_LOOKED_AT = 1024


class Idle(Protocol):
    """A connection, or a TLS handshake, that may be closed while it waits for its client."""

    @property
    def idle_since_ns(self) -> int | None:
        """Time since which it waits for its client; None while it owes an answer or receives a body."""

    def close_if_idle(self) -> bool:
        """Read the bytes in the socket, then close it if it still waits for its client. Return whether it did."""


C = TypeVar("C", bound=Idle)


def candidates(addresses: Mapping[C, str], newcomer: str) -> list[C]:
    """Return idle connections that may be closed for one of the address `newcomer`, the longest idle first.

    They belong to the address with the most connections, among the addresses with idle ones. An address with no more
    connections than the newcomer's loses none, except to itself: a client with many cannot take those of others.

    Args:
        addresses: of each open connection, in the order in which they were opened.
    """
    held = Counter(addresses.values())
    for address, number in held.most_common():
        if address != newcomer and number <= held[newcomer]:
            continue
        own = (connection for connection, key in addresses.items() if key == address)
        idle = [
            (since, number, connection)
            for number, connection in enumerate(itertools.islice(own, _MOST_LOOKED_AT))
            if (since := connection.idle_since_ns) is not None
        ]
        if idle:
            return [connection for _, _, connection in sorted(idle, key=lambda one: one[:2])]
    return []
