"""How many requests a second does the HTTP server answer when the application does nothing?

One process serves, another loads it over loopback with keep-alive connections. It needs Python only.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import selectors
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from benchmarks.report import Report, Row
from edge_serve.messages.infer import Room
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.door.listeners import listen_tcp
from edge_serve.transport.http.server import HttpServer

INFER = (
    b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: python-geventhttpclient\r\n"
    b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: 165\r\nContent-Length: %d\r\n\r\n%b"
)


class Answering:
    """An application that answers every request with a reply of fixed size."""

    def __init__(self, reply_bytes: int) -> None:
        self._buffers = (b"x" * reply_bytes,)

    def build_extra(self, head: RequestHead) -> Sequence[tuple[str, str]]:
        """Return no fields."""
        return ()

    def check(self, head: RequestHead, length: int) -> None:
        pass

    def place(self, head: RequestHead, length: int) -> Room | None:
        """Return None: ordinary memory is enough."""
        return None

    def handle(self, exchange: Exchange) -> None:
        """Answer at once."""
        exchange.reply(200, self._buffers)


def serve(pipe: Connection, reply_bytes: int) -> None:
    """Serve until the other end of `pipe` closes, then send the CPU seconds used."""

    async def main() -> None:
        server = HttpServer(Answering(reply_bytes))
        (listener,) = listen_tcp("127.0.0.1", 0)
        await server.start([listener])
        pipe.send(listener.sock.getsockname()[1])
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), stopped.set)
        await stopped.wait()
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        pipe.send(time.process_time())
        await server.drain(1.0)

    asyncio.run(main())


def load(port: int, connections: int, seconds: float, body_bytes: int, depth: int) -> tuple[int, float]:
    """Return the number of answered requests and the seconds; `depth` requests are in flight on each connection."""
    request = INFER % (body_bytes, b"x" * body_bytes) * depth
    selector = selectors.DefaultSelector()
    answer_bytes = 0
    sockets = []
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(request)
        answer_bytes = answer_bytes or len(receive_first(sock, depth))
        sockets.append(sock)
    for sock in sockets[1:]:
        receive_exactly(sock, answer_bytes)
    missing = dict.fromkeys(sockets, 0)
    for sock in sockets:
        selector.register(sock, selectors.EVENT_READ)
    buffer = bytearray(1 << 20)
    for sock in sockets:
        sock.sendall(request)
        missing[sock] = answer_bytes
    answered = 0
    start = time.perf_counter()
    end = start + seconds
    while time.perf_counter() < end:
        for key, _ in selector.select():
            sock = key.fileobj  # type: ignore[assignment]  # only sockets were registered
            missing[sock] -= sock.recv_into(buffer)
            if missing[sock] == 0:
                answered += depth
                missing[sock] = answer_bytes
                sock.sendall(request)
    return answered, time.perf_counter() - start


def receive_first(sock: socket.socket, depth: int) -> bytes:
    """Receive the answers to the first requests and return the length of one answer."""
    data = b""
    while True:
        data += sock.recv(1 << 20)
        head, separator, _ = data.partition(b"\r\n\r\n")
        if separator:
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            total = (len(head) + 4 + length) * depth
            return data + receive_exactly(sock, total - len(data))


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """Receive `count` bytes."""
    data = bytearray()
    while len(data) < count:
        data += sock.recv(count - len(data))
    return bytes(data)


def run(seconds: float = 2.0) -> Report:
    """Measure small and large bodies, one and many connections, and pipelined requests."""
    report = Report("http_alone", "requests per second of the HTTP server with an application that does nothing")
    # 293 bytes: INT32[16] add/sub with its JSON part; 602,112: a picture of 1x3x224x224 floats
    for body_bytes, connections, depth in ((293, 1, 1), (293, 32, 1), (293, 1, 8), (602_112, 1, 1), (602_112, 4, 1)):
        report.rows.append(measure(body_bytes, connections, depth, seconds))
    return report


def measure(body_bytes: int, connections: int, depth: int, seconds: float, reply_bytes: int = 400) -> Row:
    """Measure one load on a server of its own; `depth` requests are in flight on each connection."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, reply_bytes))
    server.start()
    answered, elapsed = load(here.recv(), connections, seconds, body_bytes, depth)
    here.send("stop")
    cpu_seconds = here.recv()
    server.join()
    return {
        "body bytes": body_bytes,
        "connections": connections,
        "pipelined": depth,
        "/s": answered / elapsed,
        "server CPU us per request": cpu_seconds / answered * 1e6,
    }
