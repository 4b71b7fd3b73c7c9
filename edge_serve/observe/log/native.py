"""journald's own protocol: one datagram per entry, a sealed memory file when that is too long.

https://systemd.io/JOURNAL_NATIVE_PROTOCOL. Used where the library systemd-python is not installed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping

SOCKET = "/run/systemd/journal/socket"

_SEND_BUFFER = 8 << 20
#: too long for a datagram
_TOO_LONG = frozenset((errno.EMSGSIZE, errno.ENOBUFS))
#: the socket's other end was made anew
_RECONNECT = frozenset((errno.ECONNREFUSED, errno.ENOTCONN, errno.ECONNRESET))
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def encode(fields: Mapping[str, str]) -> bytes:
    """Return an entry in journald's format: `NAME=value` a line, or the name, a length and the bytes when the value has
    a line break."""
    parts = []
    for name, value in fields.items():
        data = value.encode("utf-8", "replace")
        key = name.encode()
        if b"\n" in data:
            parts.append(b"%b\n%b%b\n" % (key, struct.pack("<Q", len(data)), data))
        else:
            parts.append(b"%b=%b\n" % (key, data))
    return b"".join(parts)


class NativeSender:
    """Sends entries to journald.

    Args:
        path: of its socket; "" = where it is on every system.

    Raises:
        OSError: there is no journald.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path or SOCKET
        self._socket = self._connect()

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            sock.connect(self._path)
        except OSError:
            sock.close()
            raise
        return sock

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send one entry; False when there is no journald any more. Blocks while journald takes none."""
        try:
            self._send(encode(fields))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._send_once(data)
        except OSError as error:
            if error.errno not in _RECONNECT:
                raise
            fresh = self._connect()  # while that fails the old one stays, and the next entry tries again
            self._socket.close()
            self._socket = fresh
            self._send_once(data)

    def _send_once(self, data: bytes) -> None:
        try:
            self._socket.send(data)
        except OSError as error:
            if error.errno not in _TOO_LONG:
                raise
            self._send_file(data)

    def _send_file(self, data: bytes) -> None:
        """Send a memory file. journald takes it only when it is sealed against changes."""
        fd = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            socket.send_fds(self._socket, [b""], [fd])
        finally:
            os.close(fd)
