"""Connections of both doors when the system lacks descriptors or memory."""

from __future__ import annotations

import asyncio
import resource
import socket
from pathlib import Path

import pytest

from edge_serve.clock import MonotonicClock
from edge_serve.messages.peer import Peer
from edge_serve.transport.door.door import within_files
from edge_serve.transport.door.exchange import Application
from edge_serve.transport.door.listeners import listen_tcp, listen_unix
from edge_serve.transport.door.shared_limits import Addresses, SharedLimits
from edge_serve.transport.http import server as http_server
from edge_serve.transport.http.server import AdminServer, HttpServer
from tests.stories import played
from tests.transport.http_scene import Recorder


@played
async def test_a_connection_that_cannot_be_watched_costs_its_address_nothing() -> None:
    fails = [OSError("No space left on device"), MemoryError()]

    def choose(peer: Peer) -> Application:
        if fails:
            raise fails.pop()
        return Recorder()

    addresses = Addresses(1)
    sharing = SharedLimits(addresses=addresses)
    server = HttpServer(Recorder(), clock=MonotonicClock(), choose=choose, sharing=sharing)
    listeners = listen_tcp("127.0.0.1", 0)
    port = listeners[0].sock.getsockname()[1]
    await server.start(listeners)
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await server.drain(0.1)
    assert addresses.acquire("127.0.0.1"), "a closed connection counts no more"


@pytest.mark.parametrize(
    ("files", "wanted", "doors", "most"),
    [
        (resource.RLIM_INFINITY, 9999, 2, 9999),
        (1024, 4096, 2, 416),
        (1024, 4096, 1, 832),
        (100, 4096, 2, 25),
        (256, 8, 2, 8),
    ],
)
def test_no_more_connections_than_files(
    monkeypatch: pytest.MonkeyPatch, files: int, wanted: int, doors: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    assert within_files(wanted, "HTTP", doors) == most


@played
async def test_a_worker_that_left_the_admin_socket_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(http_server, "is_worker", lambda sock: True)
    path = str(tmp_path / "admin.sock")
    server = AdminServer(Recorder(), clock=MonotonicClock())
    await server.start([listen_unix(path)])
    for _ in range(2):  # the second is accepted by `drain`
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        await asyncio.sleep(0.01 * (not server.counters.connections_refused))
    await server.drain(0.1)
    assert server.counters.connections_refused == 2
