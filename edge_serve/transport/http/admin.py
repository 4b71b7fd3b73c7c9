"""The door for administration: a UNIX socket, whose clients may do everything. Models are no clients of it."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from edge_serve.errors import PermissionDenied
from edge_serve.transport.door.listeners import Listener
from edge_serve.transport.http.server import HttpServer, closing_reply
from edge_serve.workers.launch.landlock import is_marked

_REFUSED = closing_reply(PermissionDenied("models may not administrate: this process descends from a worker"))
_UCRED = struct.Struct("iii")


class AdminServer(HttpServer):
    """Refuses processes of workers. The file's mode cannot, because they run as the same user."""

    def _admit(self, sock: socket.socket, listener: Listener, address: Any) -> None:
        if is_worker(sock):
            self.counters.connections_total += 1
            self.counters.connections_refused += 1
            with sock:
                sock.send(_REFUSED)
        else:
            super()._admit(sock, listener, address)


def is_worker(sock: socket.socket) -> bool:
    """Whether the process that connected to a UNIX socket is a worker, or descends from one."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    # another user is none, and /proc may hide its processes
    return uid == os.geteuid() and pid != 0 and is_marked(pid)
