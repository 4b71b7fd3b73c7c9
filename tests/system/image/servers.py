"""Servers of this host that a device asks: for the time, and through a proxy. QEMU forwards them to loopback."""

from __future__ import annotations

import http.server
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.system.vm import free_port

NTP = 123
#: seconds from 1900, where NTP begins, to 1970
_EPOCH = 2_208_988_800
_PACKET = struct.Struct("!4B3I4Q")


def answer(request: bytes, now: float) -> bytes:
    """Return a time server's answer to a request (RFC 5905, section 7.3)."""
    transmitted = _PACKET.unpack(request[: _PACKET.size])[-1]
    stamp = int((now + _EPOCH) * 2**32)
    return _PACKET.pack(4 << 3 | 4, 2, 6, 0xEC, 0, 0, int.from_bytes(b"TEST", "big"), stamp, transmitted, stamp, stamp)


@contextmanager
def time_server() -> Iterator[None]:
    """Answer requests for the time. Only root can, and where no other program has the port.

    Raises:
        OSError: the port is not free.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", NTP))
        sock.settimeout(0.5)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    request, client = sock.recvfrom(512)
                except TimeoutError:
                    continue
                if len(request) >= _PACKET.size:
                    sock.sendto(answer(request, time.time()), client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


class Proxy:
    """A proxy that passes nothing on.

    Attributes:
        port: on loopback
        asked: the lines of the requests
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.asked: list[str] = []

    @contextmanager
    def served(self) -> Iterator[None]:
        """Note requests, and refuse them."""
        asked = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.requestline)
                self.send_error(502)

            def do_CONNECT(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *arguments: object) -> None:
                """Write nothing."""

        with http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()
