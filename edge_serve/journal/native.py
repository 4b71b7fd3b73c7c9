"""journald's own protocol: one datagram per entry, a sealed memory file when that is too long.

https://systemd.io/JOURNAL_NATIVE_PROTOCOL. Used where the library systemd-python is not installed. Nothing here waits
for long: when journald is behind, entries queue up here, and what exceeds the queue is counted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping

SOCKET = "/run/systemd/journal/socket"

#: entries kept while journald takes none
MOST_WAITING = 2000
#: how long one entry may wait for journald, milliseconds; more would hold up the event loop
_PATIENCE_MS = 5
_SEND_BUFFER = 8 << 20
#: too long for a datagram
_TOO_LONG = frozenset((errno.EMSGSIZE, errno.ENOBUFS))
#: the socket's other end was made anew
_RECONNECT = frozenset((errno.ECONNREFUSED, errno.ENOTCONN, errno.ECONNRESET))
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def encode(fields: Mapping[str, str]) -> bytes:
    """An entry: `NAME=value` a line, or the name, a length and the bytes when the value has a line break."""
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

    def __init__(self, path: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path or SOCKET
        self._clock = clock
        self._waiting: deque[bytes] = deque()
        self._lost = 0
        self._socket = self._connect()

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            sock.setblocking(False)
            sock.connect(self._path)
        except OSError:
            sock.close()
            raise
        return sock

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send one entry, or keep it until journald takes it; False when there is no journald any more."""
        if len(self._waiting) >= MOST_WAITING:
            self._lost += 1
        else:
            self._waiting.append(encode(fields))
        return self.flush(_PATIENCE_MS)

    def flush(self, patience_ms: int = 0) -> bool:
        """Send what waits, waiting for journald at most so long; False when there is no journald any more."""
        end = 0.0
        while self._waiting:
            try:
                self._send(self._waiting[0])
            except BlockingIOError:
                now = self._clock()
                end = end or now + patience_ms / 1000
                if now >= end or not self._writable(round((end - now) * 1000)):
                    return True
                continue
            except OSError:
                self._waiting.popleft()
                return False
            self._waiting.popleft()
            self._tell_lost()
        return True

    def _writable(self, milliseconds: int) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        return bool(poll.poll(milliseconds))

    def _tell_lost(self) -> None:
        if self._lost and len(self._waiting) < MOST_WAITING:
            text = f"{self._lost} lines are lost: the journal did not take them"
            self._waiting.append(encode({"MESSAGE": text, "PRIORITY": "4", "SYSLOG_IDENTIFIER": "edge-serve"}))
            self._lost = 0

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
        """journald takes a memory file only when it is sealed: nobody can change it any more."""
        fd = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            socket.send_fds(self._socket, [b""], [fd])
        finally:
            os.close(fd)

    def close(self, patience_ms: int = 1000) -> None:
        """Send what waits, at most so long, and close."""
        with contextlib.suppress(OSError):
            self.flush(patience_ms)
        self._socket.close()
