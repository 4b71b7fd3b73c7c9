"""Connections are accepted, also after a time without descriptors, until the door is shut."""

from __future__ import annotations

import errno
import logging
import socket
from typing import Any

import pytest

from edge_serve.doctor.ports import DoorPort, examine_port
from edge_serve.transport.door import listeners
from edge_serve.transport.door.listeners import Acceptor, Listener, listen_tcp
from tests.stories import played
from tests.transport.http_scene import until


@played
async def test_all_that_connect_are_handed_on_until_it_stops() -> None:
    found: list[socket.socket] = []
    acceptor = Acceptor(lambda sock, listener, address: found.append(sock))
    listeners = [*listen_tcp("127.0.0.1", 0), *listen_tcp("127.0.0.1", 0)]
    for listener in listeners:
        acceptor.add(listener)
    places = [listener.sock.getsockname() for listener in listeners]
    clients = [socket.create_connection(places[index % 2]) for index in range(100)]
    await until(lambda: len(found) >= 100)
    assert not any(sock.getblocking() for sock in found)
    acceptor.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(places[0])
    for sock in (*clients, *found):
        sock.close()


class Scarce:
    """A listening socket whose `accept` fails a few times."""

    def __init__(self, sock: socket.socket, *failures: int) -> None:
        self._sock = sock
        self._failures = list(failures)

    def accept(self) -> Any:
        if self._failures:
            number = self._failures.pop()
            raise OSError(number, errno.errorcode[number])
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@played
async def test_without_descriptors_it_waits_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners, "_ACCEPT_AGAIN_AFTER", 0.01)
    found: list[socket.socket] = []
    acceptor = Acceptor(lambda sock, listener, address: found.append(sock))
    (listener,) = listen_tcp("127.0.0.1", 0)
    scarce: Any = Scarce(listener.sock, errno.ECONNABORTED, errno.EPERM, errno.EMFILE)
    acceptor.add(Listener(scarce))
    with caplog.at_level(logging.WARNING), socket.create_connection(listener.sock.getsockname()):
        await until(lambda: found)
    acceptor.stop()
    found[0].close()
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "cannot accept a connection, no descriptor is free",
        "cannot accept a connection: [Errno 1] EPERM",
    ]


class _Ipv4Socket(socket.socket):
    """A socket of a kernel without IPv6."""

    def __init__(self, family: int = -1, *arguments: Any, **options: Any) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *arguments, **options)


def test_every_address_is_that_of_ipv4_where_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", _Ipv4Socket)
    (listener,) = listen_tcp("::", 0)
    host, port = listener.sock.getsockname()
    assert host == "0.0.0.0"
    assert "in use" in str(examine_port(DoorPort(port, "::", "--http-port")).text)
    listener.close()
    assert examine_port(DoorPort(port, "::", "--http-port")).good is True
    with pytest.raises(OSError, match="cannot listen on ::1:0: Address family"):
        listen_tcp("::1", 0)


def test_an_address_that_is_too_long_for_a_name_is_an_error_of_the_address() -> None:
    with pytest.raises(OSError, match=r"cannot listen on x{77}\.\.\.:0: the address is too long for a name"):
        listen_tcp("x" * 300, 0)
