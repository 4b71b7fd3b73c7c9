"""Which idle connections a full door closes, so that one address cannot shut out all others. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Protocol, TypeVar

#: connections looked at for one choice, the oldest first: a bound on the time that a full door takes of the loop
_MOST_LOOKED_AT = 1024


class Idle(Protocol):
    """A connection, or a TLS handshake, that may be closed while it waits for its client."""

    @property
    def idle_since_ns(self) -> int | None:
        """Since when it waits for its client; None while it owes an answer or receives a body."""

    def close_if_idle(self) -> bool:
        """Read the bytes that lie in the socket, then close it if it still waits for its client; whether it did."""


C = TypeVar("C", bound=Idle)


def candidates(addresses: Mapping[C, str], newcomer: str) -> list[C]:
    """Return idle connections that may be closed for one of the address `newcomer`, the longest idle first.

    They belong to the address that has the most connections of those that have idle ones. An address that has as few
    as the newcomer's loses none, except to itself: who holds many connections cannot take those of others.

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
