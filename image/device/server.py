"""The server's status document, over its admin socket: what `edge-serve status --json` prints, without its process."""

from __future__ import annotations

import json
import socket
from http.client import HTTPException, HTTPResponse
from typing import Any

ADMIN_SOCKET = "/run/edge-serve/admin.sock"
SECONDS = 10.0
MOST_BYTES = 16 * 1024 * 1024


def ask(path: str = ADMIN_SOCKET) -> dict[str, Any] | None:
    """Return the status document; None if the server does not answer with one."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(SECONDS)
            connection.connect(path)
            connection.sendall(b"GET /edge-serve/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            response = HTTPResponse(connection)
            response.begin()
            found = json.loads(response.read(MOST_BYTES)) if response.status == 200 else None
    except (OSError, HTTPException, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "server" in found and "models" in found else None
