"""An HTTP server on 127.0.0.1 that misbehaves as a test asks: cuts, lies, drips, redirects, floods.

    with FaultyServer({"blobs/a": b"..."}) as server:
        server.fault(cut_at=1000, times=1)
        fetch(server.url)
        server.requests[0].headers["Range"]

It runs in threads of the test's process. As a proxy it answers absolute URLs from its own files, and makes tunnels.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import urlsplit

BLOCK = 256 * 1024


class Content(Protocol):
    """Bytes that are made when they are read, for files that are too large to hold."""

    @property
    def size(self) -> int:
        """The length."""

    def read(self, offset: int, count: int) -> bytes:
        """Return some bytes."""


@dataclass
class Bytes:
    """Content that is held."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, count: int) -> bytes:
        return self.data[offset : offset + count]


@dataclass
class Fault:
    """A fault in the replies to requests whose path ends in `path`, `times` times (-1 = always).

    Attributes:
        status, headers, body: the reply, instead of the file; `headers` alone are added to the file's.
        cut_at: the connection ends after so many bytes of the body; cut_every: counted over all requests.
        no_range: a Range is ignored. content_range: what is said of one. no_if_range: an If-Range is ignored.
        flip_at: one bit of the file is wrong at this offset.
        drip: seconds before each byte of the body; drip_head: of the head.
        raw: these bytes are the whole reply, head and all; then the connection ends.
        endless: the body never ends, and has no Content-Length.
        chunked: the body comes without Content-Length, in chunks with long extensions.
    """

    path: str = ""
    times: int = -1
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_at: int = -1
    cut_every: int = 0
    no_range: bool = False
    content_range: str = ""
    no_if_range: bool = False
    flip_at: int = -1
    drip: float = 0.0
    drip_head: float = 0.0
    raw: bytes = b""
    endless: bool = False
    chunked: bool = False


@dataclass
class Seen:
    """A request, and how many bytes of a body it got."""

    path: str
    headers: Mapping[str, str]
    sent: int = 0


class FaultyServer:
    """Serves `files` (path without the leading slash -> content)."""

    def __init__(self, files: Mapping[str, bytes | Content], tls: ssl.SSLContext | None = None) -> None:
        self.files: dict[str, bytes | Content] = dict(files)
        self.faults: list[Fault] = []
        self.requests: list[Seen] = []
        self.sent = 0
        self.stopped = threading.Event()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = _Server(("127.0.0.1", 0), handler)
        self._http.tls = tls
        self.port = self._http.server_address[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}/"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)

    def fault(self, **fields: object) -> Fault:
        """Add a fault; the first that fits a request is used."""
        fault = Fault(**fields)  # type: ignore[arg-type]  # the fields of Fault
        self.faults.append(fault)
        return fault

    def fault_of(self, path: str) -> Fault:
        """Return the fault of a request, and count it."""
        for fault in self.faults:
            if path.endswith(fault.path) and fault.times:
                fault.times -= 1
                return fault
        return Fault()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Run the handler, over TLS where that is wanted."""
        if self.tls is None:
            return super().finish_request(request, client_address)
        request.settimeout(10)
        with self.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as wrapped:
            try:
                wrapped.do_handshake()
            except ssl.SSLError:
                _drain(wrapped)
                raise
            return super().finish_request(wrapped, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what these tests are about."""


def _drain(wrapped: ssl.SSLSocket) -> None:
    """Read until the client closes: unread bytes would reset the connection before the client has read the alert."""
    with socket.socket(fileno=os.dup(wrapped.fileno())) as raw:
        raw.settimeout(10)
        while raw.recv(4096):
            pass


def _relay(here: socket.socket, there: socket.socket) -> None:
    """Copy bytes until one side closes."""
    with contextlib.suppress(OSError):
        while data := here.recv(65536):
            there.sendall(data)
    with contextlib.suppress(OSError):
        there.shutdown(socket.SHUT_RDWR)


class _Cut(Exception):
    """The connection ends here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: FaultyServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_CONNECT(self) -> None:
        fault = self.owner.fault_of(self.path)
        self.owner.requests.append(Seen(self.path, dict(self.headers.items())))
        self.close_connection = True
        if fault.status:
            self.wfile.write(b"HTTP/1.1 %d -\r\nContent-Length: 0\r\n\r\n" % fault.status)
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as there, contextlib.suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 -\r\n\r\n")
            threading.Thread(target=_relay, args=(there, self.connection), daemon=True).start()
            _relay(self.connection, there)

    def do_GET(self) -> None:
        self._answer(urlsplit(self.path).path.lstrip("/"))

    def _answer(self, path: str) -> None:
        seen = Seen(self.path, dict(self.headers.items()))
        self.owner.requests.append(seen)
        fault = self.owner.fault_of(path)
        try:
            if fault.raw:
                self.wfile.write(fault.raw)
                self.close_connection = True
            elif fault.status:
                self._reply(seen, fault, fault.status, {}, Bytes(fault.body), 0)
            elif (found := self.owner.files.get(path)) is None:
                self._reply(seen, fault, 404, {}, Bytes(b"not here"), 0)
            else:
                self._file(seen, fault, Bytes(found) if isinstance(found, bytes) else found)
        except (_Cut, OSError):
            self.close_connection = True

    def _file(self, seen: Seen, fault: Fault, content: Content) -> None:
        headers = {"ETag": f'"{content.size}"', "Content-Type": "application/octet-stream", **fault.headers}
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        changed = not fault.no_if_range and self.headers.get("If-Range", headers["ETag"]) != headers["ETag"]
        if asked is None or fault.no_range or changed:
            self._reply(seen, fault, 200, headers, content, 0)
            return
        start = int(asked[1])
        if start >= content.size:
            self._reply(seen, fault, 416, {"Content-Range": f"bytes */{content.size}"}, Bytes(b""), 0)
            return
        headers["Content-Range"] = fault.content_range or f"bytes {start}-{content.size - 1}/{content.size}"
        self._reply(seen, fault, 206, headers, content, start)

    def _reply(
        self, seen: Seen, fault: Fault, status: int, headers: Mapping[str, str], content: Content, start: int
    ) -> None:
        headers = {**headers, "Content-Length": str(content.size - start), **fault.headers}
        if fault.chunked or fault.endless:
            headers.pop("Content-Length")
            headers["Transfer-Encoding"] = "chunked"
        head = f"HTTP/1.1 {status} -\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
        self._write(head.encode(), fault.drip_head)
        for block in self._blocks(fault, content, start):
            wrapped = b"%x;%b\r\n%b\r\n" % (len(block), b"x" * 100, block) if "Transfer-Encoding" in headers else block
            seen.sent += len(block)  # before the client can have it, so that a test may look as soon as it has
            self.owner.sent += len(block)
            self._write(wrapped, fault.drip)
            if seen.sent == fault.cut_at or (fault.cut_every and self.owner.sent % fault.cut_every == 0):
                raise _Cut
        if "Transfer-Encoding" in headers:
            self._write(b"0\r\n\r\n", fault.drip)

    def _blocks(self, fault: Fault, content: Content, start: int) -> Iterator[bytes]:
        """Yield the body, in blocks that end where it is cut."""
        sent = 0
        if fault.cut_at == 0:
            raise _Cut
        while fault.endless:
            yield b"\0" * BLOCK
        while start < content.size:
            count = BLOCK
            if fault.cut_at > 0:
                count = min(count, fault.cut_at - sent)
            if fault.cut_every:
                count = min(count, fault.cut_every - self.owner.sent % fault.cut_every)
            block = content.read(start, min(count, content.size - start))
            if start <= fault.flip_at < start + len(block):
                wrong = bytearray(block)
                wrong[fault.flip_at - start] ^= 1
                block = bytes(wrong)
            start, sent = start + len(block), sent + len(block)
            yield block

    def _write(self, data: bytes, drip: float) -> None:
        if not drip:
            self.wfile.write(data)
            return
        for byte in data:
            if self.owner.stopped.is_set():
                raise _Cut
            time.sleep(drip)
            with contextlib.suppress(BlockingIOError):
                self.wfile.write(bytes([byte]))
