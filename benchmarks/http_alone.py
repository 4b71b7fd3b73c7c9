"""How many requests a second does the HTTP server answer when the application does nothing?

One process serves, one or more load the server over loopback with keep-alive connections, each with one request under
way. Writes JSON to standard output: `python benchmarks/http_alone.py --connections 16 --seconds 5 > result.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import platform
import selectors
import socket
import sys
import time
from multiprocessing.connection import Connection

from edge_serve.messages.infer import Lease
from edge_serve.protocol.http1 import Head
from edge_serve.transport.exchange import Exchange
from edge_serve.transport.http import HttpServer
from edge_serve.transport.listeners import listen_tcp

INFER = (
    b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nUser-Agent: python-geventhttpclient\r\n"
    b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: 165\r\nContent-Length: %d\r\n\r\n%b"
)


class Answering:
    """Says yes to everything, with a reply of fixed size."""

    def __init__(self, reply_bytes: int) -> None:
        self._buffers = (b"x" * reply_bytes,)

    def place(self, head: Head, length: int) -> Lease | None:
        """Ordinary memory will do."""
        return None

    def handle(self, exchange: Exchange) -> None:
        """Answer at once."""
        exchange.reply(200, self._buffers)


def serve(pipe: Connection, reply_bytes: int) -> None:
    """Serve until the other end of `pipe` closes, then send the CPU seconds that were used."""

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
    """Requests answered and the seconds that took; `depth` requests are under way on each connection."""
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
    """The answers to the first requests; says how long the answers are."""
    data = b""
    while True:
        data += sock.recv(1 << 20)
        head, separator, _ = data.partition(b"\r\n\r\n")
        if separator:
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            total = (len(head) + 4 + length) * depth
            return data + receive_exactly(sock, total - len(data))


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """`count` bytes."""
    data = bytearray()
    while len(data) < count:
        data += sock.recv(count - len(data))
    return bytes(data)


def machine() -> dict[str, object]:
    """What the figures depend on."""
    model = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as info:
        model = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "")
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    """Run once and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--depth", type=int, default=1, help="requests under way on each connection (pipelining)")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--body-bytes", type=int, default=293, help="293: INT32[16] add/sub with its JSON header")
    parser.add_argument("--reply-bytes", type=int, default=400)
    options = parser.parse_args()
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=serve, args=(there, options.reply_bytes))
    server.start()
    port = here.recv()
    answered, elapsed = load(port, options.connections, options.seconds, options.body_bytes, options.depth)
    here.send("stop")
    cpu_seconds = here.recv()
    server.join()
    result = {
        "benchmark": "http_alone",
        "settings": vars(options),
        "requests": answered,
        "requests_per_second": round(answered / elapsed),
        "server_cpu_microseconds_per_request": round(cpu_seconds / answered * 1e6, 2),
        "machine": machine(),
    }
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
