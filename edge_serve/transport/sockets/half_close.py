"""Tells a client that has disconnected from a client that has only closed its sending side.

Over TCP, the EOF is the same. A client that closes one direction, as `nc -N` does, closes it right after its request;
a client that gives up closes later. The kernel knows both times, so a late event loop changes nothing.
"""

from __future__ import annotations

import select
import socket
import struct

from edge_serve.transport.sockets.client_connection import StreamSocket
from edge_serve.transport.sockets.tls import TlsSocket

#: milliseconds after the last bytes for which an EOF is that of a client that may still read
_GRACE_MS = 100

#: tcpi_last_data_sent, tcpi_last_data_recv, and tcpi_last_ack_recv of `struct tcp_info`: milliseconds since then
_TIMES = struct.Struct("=44xI4xII")


def has_disconnected(sock: StreamSocket) -> bool:
    """Return whether the client of `sock`, whose EOF was just read, has closed both directions.

    A UNIX socket shows that. Over TCP, return whether the client closed more than 0.1 s after the last bytes that it
    sent or was sent. With TLS the time is that between two reads, because a `close_notify` is data for the kernel.
    """
    if isinstance(sock, TlsSocket):
        return sock.silent_ms > _GRACE_MS
    assert isinstance(sock, socket.socket), "a StreamSocket is plain or TLS"
    if sock.family == socket.AF_UNIX:
        poll = select.poll()
        poll.register(sock, 0)
        return bool(poll.poll(0))  # POLLHUP, or POLLERR
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TIMES.size)
    sent, received, heard = map(int, _TIMES.unpack(info))
    return min(sent, received) - heard > _GRACE_MS  # `heard`: the EOF, or an ACK after it
