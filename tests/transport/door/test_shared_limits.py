"""The keys under which connections are counted."""

from __future__ import annotations

import socket

import pytest

from edge_serve.transport.door.shared_limits import Addresses
from tests.footprint import footprint


@pytest.mark.parametrize(
    ("family", "one", "other", "same"),
    [
        (socket.AF_INET, "10.0.0.1", "10.0.0.1", True),
        (socket.AF_INET, "10.0.0.1", "10.0.0.2", False),
        (socket.AF_INET6, "2001:db8::1", "2001:db8::2:3:4", True),
        (socket.AF_INET6, "2001:db8::1", "2001:db8:0:1::1", False),
        (socket.AF_INET6, "fe80::1%eth0", "fe80::2", True),
        # a socket of the service manager may take both, as systemd's do by default
        (socket.AF_INET6, "::ffff:10.0.0.1", "::ffff:10.0.0.1", True),
        (socket.AF_INET6, "::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
    ],
)
def test_keys(family: socket.AddressFamily, one: str, other: str, same: bool) -> None:
    addresses = Addresses(1)
    with socket.socket(family) as sock:
        keys = [addresses.key(sock, (host, 1)) for host in (one, other)]
    assert "" not in keys
    assert (keys[0] == keys[1]) is same
    assert addresses.acquire(keys[0])
    assert addresses.acquire(keys[1]) is not same


def test_addresses_that_are_not_counted() -> None:
    with socket.socket(socket.AF_UNIX) as local:
        assert Addresses(1).key(local, "") == ""
    unlimited = Addresses(0)
    assert unlimited.acquire("10.0.0.1")
    assert unlimited.acquire("10.0.0.1")
    assert footprint(unlimited) == footprint(Addresses(0))
    addresses = Addresses(1)
    assert addresses.acquire("")
    assert addresses.acquire("")
    addresses.release("")
