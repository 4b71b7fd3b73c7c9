"""Fetches the status document of a running server, over its UNIX socket for administration or over HTTP.

It also orders the server to leave safe mode, over the same connections.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from edge_serve.files import read_small
from edge_serve.messages.line import one_line
from edge_serve.records import frozen
from edge_serve.systemd.unit import HTTP_SOCKET, UNIT_FILE, systemctl

PATH = "/edge-serve/status"
LEAVE = "/edge-serve/safe-mode/leave"

#: where the packaged service has its socket for administration
DEFAULT_SOCKET = "/run/edge-serve/admin.sock"
DEFAULT_URL = "http://127.0.0.1:8000"
_TIMEOUT_SECONDS = 5.0
#: the first frame of an HTTP/2 server, SETTINGS of stream 0 (RFC 9113, 3.4)
_HTTP2 = re.compile(r"\x00..\x04\x00{5}", re.DOTALL)
#: no document is longer
_MOST_BYTES = 64 << 20

#: exit statuses, those of LSB's `status` as systemctl has them: the server is not there; it does not say how it is
ABSENT, UNKNOWN = 3, 4


class Unreachable(Exception):
    """There is no document; `status` is the program's exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@frozen
class StatusTarget:
    """Which server to ask.

    Attributes:
        socket: of administration; "" = ask `url`.
        token: to be shown to the server; ca: file with the certificates that its own may be signed with.
    """

    socket: str = ""
    url: str = DEFAULT_URL
    token: str = ""
    ca: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return self.socket or self.url


def find_target(
    environ: Mapping[str, str], *, url: str = "", path: str = "", token_file: str = "", ca: str = ""
) -> StatusTarget:
    """Find the server: by the options and the environment, else the service of this device, else Triton's port on it.

    If systemd would start a stopped service for a request to its HTTP port, return the administration socket instead:
    asking must not start the service.

    Raises:
        Unreachable: the file with the token cannot be read.
    """
    token = ""
    if token_file:
        try:
            token = read_small(token_file).decode("ascii", "replace").strip()
        except OSError as error:
            raise Unreachable(f"cannot read '{token_file}': {error.strerror}", UNKNOWN) from error
    if url:
        return StatusTarget("", url if "://" in url else f"http://{url}", token, ca)
    path = path or environ.get("EDGE_SERVE_ADMIN_SOCKET", "")
    if path or os.path.exists(DEFAULT_SOCKET) or _would_start():
        return StatusTarget(path or DEFAULT_SOCKET, token=token)
    return StatusTarget(token=token)


def _would_start() -> bool:
    """Return whether a request over HTTP would start the packaged service.

    That is so while systemd listens for it, and its RuntimeDirectory= is missing, so it does not run.
    """
    stopped = os.path.exists(UNIT_FILE) and not os.path.exists(os.path.dirname(DEFAULT_SOCKET))
    return stopped and systemctl("is-active", HTTP_SOCKET).strip() == "active"


def fetch(target: StatusTarget, timeout: float = _TIMEOUT_SECONDS) -> dict[str, Any]:
    """Return the status document of a server.

    Raises:
        Unreachable: with a text for people.
    """
    status, body = _request(target, "GET", PATH, timeout)
    value = _json(body)
    if status == 200 and isinstance(value, dict) and "server" in value:
        return value
    reason = value.get("error") if isinstance(value, dict) else None
    if reason and status in (401, 403):
        text = f"{target.name} refuses: {reason}; --token-file names a file with a token of the role read"
        raise Unreachable(text, UNKNOWN)
    if reason and status == 500:
        raise Unreachable(f"{target.name} has no status document: {reason}", UNKNOWN)
    text = f"{target.name} returned no edge-serve status document (HTTP {status}): check --url or --admin-socket"
    raise Unreachable(text, UNKNOWN)


def leave_safe_mode(target: StatusTarget) -> list[str]:
    """Have the server clear its record of crashes and load the models that it left out. Return their names.

    Raises:
        Unreachable: with a text for people.
    """
    status, body = _request(target, "POST", LEAVE, _TIMEOUT_SECONDS)
    value = _json(body)
    if status == 200 and isinstance(value, dict) and isinstance(value.get("left_out"), list):
        return [str(name) for name in value["left_out"]]
    reason = value.get("error") if isinstance(value, dict) else None
    raise Unreachable(f"the server at {target.name} did not leave safe mode: HTTP {status}, {reason}", UNKNOWN)


def _request(target: StatusTarget, method: str, path: str, timeout: float) -> tuple[int, bytes]:
    """Send one request. Return the HTTP status and the body of the response.

    Raises:
        Unreachable: there is no answer.
    """
    end = time.monotonic() + timeout
    headers = _headers(target)
    try:
        with contextlib.closing(_connect(target, end)) as connection:
            prefix = "" if target.socket else urlsplit(target.url).path.rstrip("/")  # of a proxy in front
            connection.request(method, prefix + path, headers=headers)
            with http.client.HTTPResponse(_Until(connection.sock, end), method=method) as answer:  # type: ignore[arg-type]  # it asks for makefile only
                answer.begin()
                body = _read(answer)
    except PermissionError:
        hint = "run it as root (sudo) or as a member of its group, or name another address with --url"
        raise Unreachable(f"you may not use {target.name}: {hint}", UNKNOWN) from None
    except TimeoutError:
        raise Unreachable(f"the server at {target.name} does not answer within {timeout:g} s", ABSENT) from None
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        raise _failure(target, error) from error
    return answer.status, body


def _failure(target: StatusTarget, error: Exception) -> Unreachable:
    """Return what an error of a connection says about its other end. The bytes that it sent are not repeated."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "WRONG_VERSION_NUMBER":
            plain = f"http{target.url.removeprefix('https')}"
            return Unreachable(f"{target.name} answers without TLS: write --url {plain}", UNKNOWN)
        text = f"no trust in the server at {target.name}: {error.reason or error}; --ca-cert names what to trust"
        return Unreachable(text, UNKNOWN)
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
        if _HTTP2.match(str(error)):
            return Unreachable(f"{target.name} speaks gRPC: give the HTTP port, such as 8000", UNKNOWN)
        return Unreachable(f"{target.name} does not speak HTTP: check --url or --admin-socket", UNKNOWN)
    reason = one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)
    hint = "--admin-socket or --url says where else to look"
    return Unreachable(f"no server answers at {target.name} ({reason}); {hint}", ABSENT)


def _headers(target: StatusTarget) -> dict[str, str]:
    if not re.fullmatch("[!-~]*", target.token):
        raise Unreachable("--token-file: found more than a token, expected a file with one token and no more", UNKNOWN)
    return {"Authorization": f"Bearer {target.token}"} if target.token else {}


def _read(answer: http.client.HTTPResponse) -> bytes:
    """Return the body, or its first `_MOST_BYTES`: a server may send one without end."""
    parts, left = [], _MOST_BYTES
    while left > 0 and (part := answer.read1(1 << 16)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


class _Until(io.RawIOBase):
    """A socket's data until `end`. Its own timeout is for each piece, and begins anew with every drop."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock = sock
        self._end = end

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._end))
        return self._sock.recv_into(buffer)


def _left(end: float) -> float:
    """Return the seconds until `end`.

    Raises:
        TimeoutError: `end` is past.
    """
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _json(body: bytes) -> Any:
    """Parse the body; None if it is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _connect(target: StatusTarget, end: float) -> http.client.HTTPConnection:
    if target.socket:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = _reach_unix(target.socket, end)
        return connection
    try:
        parts = urlsplit(target.url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host:
        raise Unreachable(f"--url: found '{target.url}', expected http://<host>:<port> or https://...", 2)
    if parts.scheme == "https":
        context = _trust(target.ca)
        connection = http.client.HTTPSConnection(host, port, context=context)
        connection.sock = context.wrap_socket(_reach(host, connection.port, end), server_hostname=host)
    else:
        connection = http.client.HTTPConnection(host, port or 80)
        connection.sock = _reach(host, connection.port, end)
    return connection


def _trust(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:  # of TLS too
        reason = getattr(error, "reason", None) or error.strerror
        raise Unreachable(f"--ca-cert: found no certificates (PEM) in '{ca}': {reason}", UNKNOWN) from error


def _reach_unix(path: str, end: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(_left(end))
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _reach(host: str, port: int, end: float) -> socket.socket:
    """Return a connection to the first address of the host that accepts one. All addresses share the time until
    `end`."""
    failed = OSError(f"{host} has no address")
    for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            return socket.create_connection((str(address[0]), port), _left(end))
        except OSError as error:
            failed = error
    raise failed
