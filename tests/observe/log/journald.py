"""Plays journald: a socket that speaks its native protocol, read by a parser of our own."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path


class Journald:
    """A journal that records the entries it receives."""

    def __init__(self, sock: socket.socket, path: str) -> None:
        self._sock = sock
        self.path = path
        #: of the entries that came in a file: whether it was sealed
        self.sealed: list[bool] = []

    def entries(self) -> list[dict[str, str]]:
        """The entries that have come since the last call."""
        found: list[dict[str, str]] = []
        while True:
            try:
                data, rights, _, _ = self._sock.recvmsg(1 << 20, socket.CMSG_SPACE(4))
            except BlockingIOError:
                return found
            for _, _, value in rights:
                (fd,) = array.array("i", value)
                self.sealed.append(_is_sealed(fd))
                with open(fd, "rb") as file:
                    file.seek(0)
                    data = file.read()
            found.append(parse(data))


def _is_sealed(fd: int) -> bool:
    try:
        os.pwrite(fd, b"x", 0)
    except OSError:
        return True
    return False


def parse(data: bytes) -> dict[str, str]:
    """The fields of an entry.

    Raises:
        AssertionError: it is no entry.
    """
    fields = {}
    while data:
        line, newline, rest = data.partition(b"\n")
        assert newline, data
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack("<Q", rest[:8])
            value, end, rest = rest[8 : 8 + length], rest[8 + length : 9 + length], rest[9 + length :]
            assert end == b"\n"
        assert name.decode().isupper()
        fields[name.decode()] = value.decode()
        data = rest
    return fields


@contextlib.contextmanager
def journald(directory: Path) -> Iterator[Journald]:
    """A socket below `directory`."""
    path = str(directory / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.setblocking(False)
        yield Journald(sock, path)
