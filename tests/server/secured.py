"""Clients of doors that are not plain TCP: over TLS, with tokens and certificates, and over UNIX sockets."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_serve.access.credentials import new_token
from edge_serve.access.roles import Role
from tests.certificates import Authority, Pair
from tests.server.running import PATIENCE


class UnixConnection(http.client.HTTPConnection):
    """http.client over a UNIX socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(self._path))


@dataclass
class Reply:
    """The reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, token: str = "", **more: str
) -> Reply:
    """One request on a connection that stays open."""
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = json.dumps(body).encode() if body is not None else (b"" if method == "POST" else None)
    connection.request(method, path, data, headers)
    answer = connection.getresponse()
    return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def tls(port: int, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    """A connection over TLS."""
    return http.client.HTTPSConnection("localhost", port, timeout=PATIENCE, context=context)


@dataclass
class Keys:
    """Everything that a secured server and its clients need, in a folder.

    Attributes:
        tokens: by role.
    """

    folder: Path
    authority: Authority
    server: Pair
    tokens: dict[str, str]

    @staticmethod
    def made(folder: Path) -> Keys:
        """A new set."""
        authority = Authority(folder)
        tokens = {
            role.word: new_token(folder / "tokens", role, role.word) for role in (Role.READ, Role.INFER, Role.ADMIN)
        }
        return Keys(folder, authority, authority.issue(), tokens)

    @property
    def flags(self) -> list[str]:
        """The flags that start the server."""
        return [
            "--http-use-ssl=true",
            f"--http-server-cert={self.server.certificate}",
            f"--http-server-key={self.server.key}",
            f"--http-root-cert={self.authority.root}",
            f"--token-file={self.folder / 'tokens'}",
        ]

    @property
    def grpc_flags(self) -> list[str]:
        """The same for its gRPC door."""
        return [
            "--allow-grpc=true",
            "--grpc-port=0",
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={self.server.certificate}",
            f"--grpc-server-key={self.server.key}",
        ]

    def rotate(self) -> None:
        """A new certificate and key in the server's files, each replaced as a whole."""
        new = self.authority.issue()
        new.key.replace(self.server.key)
        new.certificate.replace(self.server.certificate)
