"""Sockets to listen on."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from edge_serve.transport.door.listeners import Listener, adopt, advice_on_listening, listen_tcp, listen_unix, peer_of


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here"))]
)
def test_tcp(host: str) -> None:
    (listener,) = listen_tcp(host, 0)
    with socket.create_connection(listener.sock.getsockname()[:2]):
        accepted, _ = listener.sock.accept()
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        accepted.close()
    listener.close()


def test_a_port_that_is_taken() -> None:
    (listener,) = listen_tcp("127.0.0.1", 0)
    port = listener.sock.getsockname()[1]
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: ") as caught:
        listen_tcp("127.0.0.1", port)
    listener.close()

    assert advice_on_listening(caught.value).startswith("stop what uses it")


@pytest.mark.parametrize("host", ["192.0.2.1", "999.1.2.3"])  # the first is for documentation: no machine has it
def test_an_address_that_is_not_of_this_machine(host: str) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {host}:0: ") as caught:
        listen_tcp(host, 0)

    assert advice_on_listening(caught.value).startswith("give an address of this machine")


def test_a_port_and_a_socket_that_another_user_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(PermissionError) as port:
        listen_tcp("127.0.0.1", 80)
    with pytest.raises(PermissionError) as path:
        listen_unix("/run/none.sock")
    assert port.value.strerror == "cannot listen on 127.0.0.1:80: Permission denied"
    assert advice_on_listening(port.value) == "choose a port above 1023, or run as root"
    assert path.value.strerror == "cannot listen on /run/none.sock: Permission denied"
    assert advice_on_listening(path.value) == "choose a directory that this user may write to, or run as root"


def test_a_port_that_is_shared() -> None:
    (first,) = listen_tcp("127.0.0.1", 0, reuse_port=True)
    (second,) = listen_tcp("127.0.0.1", first.sock.getsockname()[1], reuse_port=True)

    assert second.sock.getsockname() == first.sock.getsockname()
    first.close()
    second.close()


def test_all_addresses() -> None:
    listeners = listen_tcp("", 0)

    assert len({listener.sock.getsockname()[1] for listener in listeners}) == 1
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("10.0.0.1", False), ("::1", True), ("2001:db8::1", False),
     ("::ffff:127.0.0.1", True), ("::ffff:10.0.0.1", False)],
)  # fmt: skip
def test_clients_on_the_device(host: str, local: bool) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        assert peer_of(Listener(sock), (host, 1)).local is local


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    old = os.umask(0o077)
    listener = listen_unix(str(path), mode=0o660)
    os.umask(old)

    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    with pytest.raises(OSError, match="another process listens on"):
        listen_unix(str(path))
    listener.close()
    assert not path.exists()


def test_a_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    listener = listen_unix(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    listener.close()


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(OSError, match="is not a socket"):
        listen_unix(str(path))

    assert path.read_text() == "data"


@pytest.mark.parametrize(
    ("name", "reason", "advice"),
    [
        ("none/http.sock", "No such file or directory", "make its directory"),
        ("http.sock" * 20, "AF_UNIX path too long", "choose another"),
    ],
)
def test_a_path_of_no_use_is_named(tmp_path: Path, name: str, reason: str, advice: str) -> None:
    path = str(tmp_path / name)
    with pytest.raises(OSError) as found:
        listen_unix(path)

    assert (found.value.strerror or str(found.value)) == f"cannot listen on {path}: {reason}"
    assert advice in advice_on_listening(found.value)


def test_an_inherited_socket() -> None:
    made = socket.create_server(("127.0.0.1", 0))
    os.set_inheritable(made.fileno(), True)
    listener = adopt(made.detach())

    assert not listener.sock.getblocking()
    assert not listener.sock.get_inheritable()
    listener.close()


def test_an_inherited_descriptor_that_does_not_listen() -> None:
    left, right = socket.socketpair()
    with pytest.raises(OSError, match="is not a listening stream socket"):
        adopt(left.fileno())

    assert left.fileno() >= 0
    left.send(b"x")  # it was left open
    left.close()
    right.close()


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_every_address_of_ipv6_is_every_address_of_ipv4_too() -> None:
    (listener,) = listen_tcp("::", 0)
    port = listener.sock.getsockname()[1]
    for host in ("127.0.0.1", "::1"):
        with socket.create_connection((host, port)):
            accepted, address = listener.sock.accept()
            assert peer_of(listener, address).local
            accepted.close()
    listener.close()
