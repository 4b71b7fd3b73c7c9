"""The administration endpoint: a UNIX socket whose clients may do everything. Models may not use it."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from edge_serve.errors import PermissionDenied
from edge_serve.transport.door.listeners import Listener
from edge_serve.transport.http.server import HttpServer, closing_reply
from edge_serve.workers.launch.landlock import is_marked

_REFUSED = closing_reply(PermissionDenied("models may not use the admin socket: this process descends from a worker"))
_UCRED = struct.Struct("iii")


class AdminServer(HttpServer):
    """An HTTP server that refuses worker processes. The file's mode cannot, because workers run as the same user."""

    def _admit(self, sock: socket.socket, listener: Listener, address: Any) -> None:
        if is_worker(sock):
            self.counters.connections_total += 1
            self.counters.connections_refused += 1
            with sock:
                sock.send(_REFUSED)
        else:
            super()._admit(sock, listener, address)


def is_worker(sock: socket.socket) -> bool:
    """Return whether the process that connected to a UNIX socket is a worker, or descends from one."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    # a process of another user is not a worker, and /proc may hide it
    return uid == os.geteuid() and pid != 0 and is_marked(pid)
