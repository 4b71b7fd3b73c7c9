"""The server around its connections: accepting, limits, draining, descriptors, many clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_serve.transport.door.listeners import listen_tcp, listen_unix
from edge_serve.transport.http.door_state import HttpLimits
from tests.stories import played
from tests.transport.http_scene import Client, Recorder, scene, until


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@played
async def test_one_connection_too_many() -> None:
    recorder = Recorder(hold=True)
    async with scene(recorder, limits=HttpLimits(connections=2)) as here:
        for count in range(2):
            client = await here.connect()
            client.get("/")
            await until(lambda count=count: len(recorder.exchanges) > count)  # type: ignore[misc]
        third = await here.connect()
        reply = await third.reply()

        assert (reply.status, reply.headers["connection"]) == (503, "close")
        assert b"2 connections open" in reply.body
        connections, counters = here.server.connections, here.server.counters
        assert (len(connections), counters.connections_refused) == (2, 1)
        recorder.hold = False
        recorder.answer(recorder.exchanges[0])  # it is idle from now on, and gives its place up
        fourth = await here.connect()
        fourth.get("/")
        assert (await fourth.reply()).status == 200
        assert (await here.clients[0].reply()).status == 200
        assert await here.clients[0].rest() == b""
        assert (len(connections), counters.connections_refused, counters.connections_evicted) == (2, 1, 1)


@played
async def test_draining_closes_what_is_idle_and_answers_what_is_not() -> None:
    async with scene(Recorder(hold=True)) as here:
        idle, waiting, sending = [await here.connect() for _ in range(3)]
        waiting.get("/waiting")
        sending.send(b"POST /sending HTTP/1.1\r\nContent-Length: 3\r\n\r\na")
        await until(lambda: here.application.exchanges and len(here.server.connections) == 3)
        draining = asyncio.ensure_future(here.server.drain(10))

        assert await idle.closed()
        with pytest.raises(OSError):
            await here.connect()
        assert not draining.done()
        sending.send(b"bc")
        await until(lambda: len(here.application.exchanges) == 2)
        for exchange in here.application.exchanges:
            here.application.answer(exchange)
        for client, expected in ((waiting, b"/waiting 0"), (sending, b"/sending 3")):
            reply = await client.reply()
            assert (reply.body, reply.headers["connection"]) == (expected, "close")
            assert await client.closed()
        await asyncio.wait_for(draining, 5)


@played
async def test_draining_has_an_end() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        client.get("/")
        await until(lambda: here.application.exchanges)
        await asyncio.wait_for(here.server.drain(0.05), 5)

        assert here.application.abandoned == ["/"]
        assert await client.closed()


@played
async def test_pipelined_answers_while_draining() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        client.get("/a")
        client.get("/b")
        await until(lambda: len(here.application.exchanges) == 2)
        draining = asyncio.ensure_future(here.server.drain(10))
        await asyncio.sleep(0)
        for exchange in reversed(here.application.exchanges):
            here.application.answer(exchange)
        first, second = await client.reply(), await client.reply()

        assert (first.body, "connection" in first.headers) == (b"/a 0", False)
        assert (second.body, second.headers["connection"]) == (b"/b 0", "close")
        await asyncio.wait_for(draining, 5)


@played
async def test_running_out_of_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 100, hard))
        async with scene() as here:
            before = await here.connect()
            before.get("/before")
            await before.reply()
            client = socket.socket()
            client.setblocking(False)
            hoard = use_up_descriptors()
            try:
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", here.port))
                await until(lambda: caplog.records)
                await asyncio.sleep(0.2)
                assert len(caplog.records) == 1  # it waits, rather than spinning over `accept`
                before.get("/still")
                assert (await before.reply()).body == b"/still 0"
            finally:
                for fd in hoard:
                    os.close(fd)
            client.send(b"GET /late HTTP/1.1\r\nConnection: close\r\n\r\n")
            received = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1000), 5)
            assert received.endswith(b"/late 0")
            client.close()
        assert len(caplog.records) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def use_up_descriptors() -> list[int]:
    hoard: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            hoard.append(os.dup(0))
    assert hoard
    return hoard


BAD = (
    b"NONSENSE\r\n\r\n",
    b"GET / HTTP/1.1\r\nBad Header\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\ncut",
    b"\x16\x03\x01",
    b"GET /cut",
    b"",
)


@played
async def test_ten_thousand_bad_requests_leave_nothing_behind(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    async with scene(listeners=[listen_unix(path)]) as here:
        descriptors = open_descriptors()
        for number in range(10_000):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                client.send(BAD[number % len(BAD)])
            if number % 50 == 0:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        reader, writer = await asyncio.open_unix_connection(path)  # it is accepted after the others
        writer.write(BAD[0])
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()
        await writer.wait_closed()
        await until(lambda: len(here.server.connections) == 0)

        assert open_descriptors() == descriptors
        assert set(here.server.counters.requests) == {400}
        assert here.application.exchanges == []


@pytest.mark.usefixtures("many_descriptors")
@played
async def test_a_thousand_idle_connections(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    async with scene(listeners=[listen_unix(path)]) as here:
        gc.collect()
        tracemalloc.start()
        clients = []
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            while True:
                try:
                    client.connect(path)
                    break
                except BlockingIOError:  # the backlog is full: let the server accept
                    await asyncio.sleep(0)
            clients.append(client)
        await until(lambda: len(here.server.connections) == 1000)
        per_connection = (tracemalloc.get_traced_memory()[0] - before) / 1000
        tracemalloc.stop()
        here.server.sweep()
        here.server.sweep()

        clients[500].send(b"GET /busy HTTP/1.1\r\n\r\n")
        received = await asyncio.get_running_loop().sock_recv(clients[500], 1000)
        assert received.endswith(b"/busy 0")
        assert per_connection < 5000  # bytes, the client's socket object included
        for client in clients:
            client.close()
        await until(lambda: len(here.server.connections) == 0)


@played
async def test_timeouts_are_looked_at_without_being_asked() -> None:
    async with scene(limits=HttpLimits(idle_timeout=0.1)) as here:
        client = await here.connect()
        await until(lambda: here.server.connections)
        here.server.sweep()  # it has seen the connection; the next ones come by themselves
        here.clock.seconds += 60

        assert await client.closed()


@played
async def test_several_listeners(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    listeners = [*listen_tcp("127.0.0.1", 0), listen_unix(path)]
    async with scene(listeners=listeners) as here:
        tcp = await here.connect()
        unix = Client(*await asyncio.open_unix_connection(path))
        here.clients.append(unix)
        for client in (tcp, unix):
            client.get("/x")
            assert (await client.reply()).body == b"/x 0"
    assert not Path(path).exists()
