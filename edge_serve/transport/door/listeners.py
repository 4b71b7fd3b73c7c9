"""Listening sockets (TCP, UNIX, or passed by systemd), and accepting connections from them.

Accepting pauses while the system has no descriptor for another connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import socket
import stat
from collections.abc import Callable
from typing import Any

from edge_serve.messages.line import shortened
from edge_serve.messages.peer import LOCAL, Peer
from edge_serve.records import frozen

_BACKLOG = 1024


@frozen
class Listener:
    """A listening socket.

    Attributes:
        path: the socket file to remove on close; None for TCP, and for a socket that systemd made.
    """

    sock: socket.socket
    path: str | None = None

    @property
    def name(self) -> str:
        """The address on which it listens, for messages; an abstract one as "@name", as systemd writes it."""
        address = self.sock.getsockname()
        if self.sock.family == socket.AF_UNIX:
            return "@" + os.fsdecode(address[1:]) if isinstance(address, bytes) else str(address)
        return f"[{address[0]}]:{address[1]}" if self.sock.family == socket.AF_INET6 else f"{address[0]}:{address[1]}"

    def close(self) -> None:
        """Stop listening."""
        self.sock.close()
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


def peer_of(listener: Listener, address: Any) -> Peer:
    """Return the connected client; `address` is the result of `accept`. Behind a proxy the client is the proxy."""
    if listener.sock.family == socket.AF_UNIX:
        return LOCAL
    host = host_of(address)
    return Peer(local=host.startswith("127.") or host == "::1")


def host_of(address: Any) -> str:
    """Return the client's address out of the result of `accept` over TCP, without the `::ffff:` that a socket for IPv4
    and IPv6 puts before an IPv4 address."""
    host: str = address[0]
    return host.removeprefix("::ffff:") if "." in host else host


def listen_tcp(host: str, port: int, *, reuse_port: bool = False) -> list[Listener]:
    """Listen on every address of `host` (a name or an address). With port 0 the kernel chooses one port for all.
    `::` accepts IPv4 as well, like systemd's `ListenStream=<port>`, and IPv4 alone where the kernel has no IPv6.

    Raises:
        OSError: unknown host, or the port is in use.
    """
    listeners: list[Listener] = []
    try:
        for family, _, _, _, address in _resolve(host, port):
            sock = socket.socket(family, socket.SOCK_STREAM)
            listeners.append(Listener(sock))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
            sock.bind((address[0], port, *address[2:]))
            port = sock.getsockname()[1]
            _listen(sock)
    except OSError as error:
        for listener in listeners:
            listener.close()
        if host == "::" and error.errno == errno.EAFNOSUPPORT:
            return listen_tcp("0.0.0.0", port, reuse_port=reuse_port)
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    except UnicodeError as error:
        text = f"cannot listen on {shortened(host, 80)}:{port}: the address is too long for a name"
        raise OSError(errno.EINVAL, text) from error
    return listeners


def advice_on_listening(error: OSError) -> str:
    """Return what to do about an error of `listen_tcp` or `listen_unix`, or of the system calls that they make.

    Errors of `listen_unix` name the path of the socket.
    """
    if error.errno == errno.EADDRINUSE:
        return "stop what uses it ('edge-serve doctor' names it), or choose another port"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error.__cause__ or error, socket.gaierror):
        return "give an address of this machine: 127.0.0.1 for clients on it, 0.0.0.0 for all clients"
    if error.errno == errno.ENOENT:
        return "make its directory, or choose another path"
    if error.errno == errno.EACCES and error.filename is not None:
        return "choose a directory that this user may write to, or run as root"
    if error.errno == errno.EACCES:
        return "choose a port above 1023, or run as root"
    return "choose another address or port"


def listen_unix(path: str, *, mode: int = 0o660, group: str = "") -> Listener:
    """Listen on a UNIX socket. A stale socket file, on which no process listens, is replaced.

    Args:
        group: group whose users may connect beside the owner; "" = the process's own group.

    Raises:
        OSError: another process listens there, the path holds something else, or there is no such group.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        # on Linux the file gets the mode of the socket, so that it is never open to others
        os.fchmod(sock.fileno(), mode & 0o700 if group else mode)
        sock.bind(path)
        if group:
            shutil.chown(path, group=group)
        os.chmod(path, mode)  # the umask may have removed bits
        _listen(sock)
    except LookupError as error:
        sock.close()
        os.unlink(path)
        raise OSError(f"{path}: there is no group '{group}'") from error
    except OSError as error:
        sock.close()
        text = f"cannot listen on {path}: {error.strerror or error}"
        raise (OSError(error.errno, text, path) if error.errno else OSError(text)) from error
    return Listener(sock, path)


def adopt(fd: int) -> Listener:
    """Take over a listening socket (systemd socket activation).

    Raises:
        OSError: `fd` is not a listening stream socket.
    """
    sock = socket.socket(fileno=fd)
    if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.detach()
        raise OSError(f"descriptor {fd} is not a listening stream socket")
    sock.set_inheritable(False)
    _prepare(sock)
    return Listener(sock)


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int]]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(found))  # type: ignore[arg-type]  # IPv6 addresses have two more fields


def _listen(sock: socket.socket) -> None:
    sock.listen(_BACKLOG)
    _prepare(sock)


def _prepare(sock: socket.socket) -> None:
    """Set options that accepted sockets inherit on Linux, so that they need no call per connection."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError("it exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError("another process listens on it")


log = logging.getLogger(__name__)

#: connections accepted in one turn of the event loop
_ACCEPTS_PER_TURN = 64

#: `accept` keeps failing while these conditions last: without a pause the loop would spin
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_ACCEPT_AGAIN_AFTER = 1.0

Accepted = Callable[[socket.socket, Listener, Any], None]


class Acceptor:
    """Accepts connections for one door.

    Args:
        accepted: called with each new non-blocking socket, its listener, and its address.

    Attributes:
        listeners: from which it accepts; empty once it has stopped.
    """

    def __init__(self, accepted: Accepted) -> None:
        self._accepted = accepted
        self.listeners: list[Listener] = []
        self._timers: dict[Listener, asyncio.TimerHandle] = {}

    def add(self, listener: Listener) -> None:
        """Accept connections from `listener`, on the running loop."""
        self.listeners.append(listener)
        self._accept_from(listener)

    def stop(self) -> None:
        """Accept the connections that are in the backlog already, then close the listeners."""
        loop = asyncio.get_running_loop()
        for listener in self.listeners:
            self._on_acceptable(listener)
        for timer in self._timers.values():
            timer.cancel()
        for listener in self.listeners:
            loop.remove_reader(listener.sock.fileno())
            listener.close()
        self.listeners.clear()

    def _accept_from(self, listener: Listener) -> None:
        self._timers.pop(listener, None)
        asyncio.get_running_loop().add_reader(listener.sock.fileno(), self._on_acceptable, listener)

    def _on_acceptable(self, listener: Listener) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listener.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._pause(listener, error)
                return
            sock.setblocking(False)
            self._accepted(sock, listener, address)

    def _pause(self, listener: Listener, error: OSError) -> None:
        if error.errno in _EXHAUSTED:
            log.warning("cannot accept a connection, no descriptor is free (%s): trying again", error.strerror)
        else:
            log.warning("cannot accept a connection: %s", error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.sock.fileno())
        self._timers[listener] = loop.call_later(_ACCEPT_AGAIN_AFTER, self._accept_from, listener)
