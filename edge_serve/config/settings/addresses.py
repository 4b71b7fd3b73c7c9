"""Addresses on which the server listens, and whether two of them overlap: two services cannot share a port there."""

from __future__ import annotations

import socket

#: host part of the wildcard of a family: it includes every address of the family
_WILDCARDS = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


def overlap(one: str, other: str, *, resolve: bool = False) -> bool:
    """Return whether a server cannot listen on both addresses with one port.

    Args:
        resolve: look names up, which may ask the network. Otherwise only addresses in digits are compared, in any
            spelling (`0` is 0.0.0.0), and `::`, which accepts IPv4 as well.
    """
    if "::" in (one, other):
        return True
    theirs = _places(other, resolve)
    return any(
        family == its_family and (host == its_host or _WILDCARDS[family] in (host, its_host))
        for family, host in _places(one, resolve)
        for its_family, its_host in theirs
    )


def _places(address: str, resolve: bool) -> set[tuple[socket.AddressFamily, str]]:
    """Return family and host of each socket that would listen; none for a name that is unknown or not looked up."""
    flags = socket.AI_PASSIVE | (0 if resolve else socket.AI_NUMERICHOST)
    try:
        found = socket.getaddrinfo(address or None, 0, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return set()
    return {(family, str(place[0])) for family, *_, place in found}
