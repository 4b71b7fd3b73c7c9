"""TLS handshakes, where they fail through no fault of the client; the rest is in test_http_tls.py."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from edge_serve.transport.sockets.handshakes import Handshakes, reply_plain
from edge_serve.transport.sockets.tls import TlsFiles, TlsSocket, make_context
from tests.certificates import Authority
from tests.stories import played
from tests.transport.http_scene import until


@played
async def test_an_internal_error_ends_one_handshake_and_no_later_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()
    context = make_context(TlsFiles(str(pair.certificate), str(pair.key)))
    opened: list[TlsSocket] = []
    faults: list[object] = []

    def on_opened(sock: TlsSocket) -> None:
        opened.append(sock)
        if len(opened) == 1:
            raise ValueError("a fault of ours")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    handshakes = Handshakes(loop, lambda: context, 5.0, b"")
    writers = []
    for number in range(2):
        here, there = socket.socketpair()
        here.setblocking(False)
        handshakes.start(here, on_opened, lambda: None, "")
        client = asyncio.open_connection(sock=there, ssl=authority.client(), server_hostname="localhost")
        writers.append((await asyncio.wait_for(client, 2))[1])
        await until(lambda: len(opened) == number + 1)  # noqa: B023
    for writer in writers:
        writer.transport.abort()
    for sock in opened:
        sock.close()
    assert len(faults) == 1


def test_a_client_without_tls_gets_a_response_and_does_not_block_the_loop() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        there.sendall(b"GET / HTTP/1.1")
        reply_plain(here, b"use TLS")
        assert there.recv(100) == b"use TLS"
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        there.setblocking(False)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        sent = there.send(bytes(1 << 20))  # what the kernel takes
        reply_plain(here, b"")
        left = len(here.recv(1 << 20))
        assert 0 < left == sent - 2 * 65536
