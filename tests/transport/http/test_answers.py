"""Answers that are large, streamed or late, clients that read slowly or leave, applications that fail."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from pathlib import Path

import pytest

from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.door.listeners import listen_unix
from edge_serve.transport.http.door_state import HttpLimits
from tests.stories import played
from tests.transport.http_scene import Client, Recorder, Scene, scene, until


@played
async def test_a_client_that_leaves_in_the_middle_of_a_body() -> None:
    application = Recorder()
    application.places = True
    async with scene(application) as here:
        client = await here.connect()
        client.send(b"POST /p HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + bytes(50_000))
        await until(lambda: application.slots)
        client.abort()
        await until(lambda: len(here.server.connections) == 0)

        assert application.slots[0].released == 1
        assert application.exchanges == []


@pytest.mark.parametrize("gently", [True, False])
@played
async def test_a_client_that_leaves_before_its_answer(gently: bool) -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        client.get("/a")
        client.get("/b")
        await until(lambda: len(here.application.exchanges) == 2)
        await asyncio.sleep(0.15)
        client.writer.close() if gently else client.abort()
        await until(lambda: here.application.abandoned)
        assert here.application.abandoned == ["/a", "/b"]

        sent: list[str] = []
        first, second = here.application.exchanges
        first.reply(200, (b"late",), on_sent=lambda: sent.append("first"))
        second.start(200, content_type="text/plain")
        assert second.write(b"late")
        second.end()

        assert sent == ["first"]
        assert here.application.abandoned == ["/a", "/b"]
        assert len(here.server.connections) == 0


@played
async def test_a_client_that_sends_no_more_after_its_request() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        client.post("/a", b"xyz")
        client.writer.write_eof()
        await until(lambda: here.application.exchanges)
        await client.taken()
        here.pass_time(30.0)
        here.application.answer(here.application.exchanges[0])

        reply = await client.reply()
        assert (reply.body, reply.headers["connection"], here.application.abandoned) == (b"/a 3", "close", [])
        assert await client.closed()


@played
async def test_a_busy_loop_does_not_change_which_clients_have_disconnected() -> None:
    async with scene(Recorder(hold=True)) as here:
        patient, hasty = await here.connect(), await here.connect()
        await until(lambda: len(here.server.connections) == 2)
        patient.get("/patient")
        patient.writer.write_eof()
        hasty.get("/hasty")
        time.sleep(0.15)
        with socket.socket(fileno=os.dup(hasty.writer.get_extra_info("socket").fileno())) as end:
            end.shutdown(socket.SHUT_WR)
        time.sleep(0.15)
        await until(lambda: len(here.application.exchanges) == 2)
        await until(lambda: here.application.abandoned)
        await patient.taken()

        assert here.application.abandoned == ["/hasty"]


@played
async def test_a_unix_socket_shows_which_client_has_disconnected(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    async with scene(Recorder(hold=True), listeners=[listen_unix(path)]) as here:
        exchanges = here.application.exchanges
        for name in ("/reads", "/left"):
            here.clients.append(client := Client(*await asyncio.open_unix_connection(path)))
            client.get(name)
            await until(lambda: exchanges and exchanges[-1].head.path == name)  # noqa: B023
            await asyncio.sleep(0.12)
            client.writer.write_eof() if name == "/reads" else client.writer.close()
        await until(lambda: here.application.abandoned)
        here.application.answer(exchanges[0])

        assert (await here.clients[0].reply()).body == b"/reads 0"
        assert here.application.abandoned == ["/left"]
        assert await here.clients[0].closed()


@played
async def test_a_client_that_sends_no_more_after_pipelined_requests() -> None:
    async with scene(Recorder(hold=True), HttpLimits(pipelined=2)) as here:
        exchanges = here.application.exchanges
        client = await here.connect()
        for number in range(4):
            client.get(f"/{number}")
        client.send(b"GET /unfinished HT")
        client.writer.write_eof()
        for number in range(4):
            await until(lambda: len(exchanges) > number)  # noqa: B023
            here.pass_time(30.0)  # the end is not read before the last requests are
            here.application.answer(exchanges[number])
            assert (await client.reply()).body == f"/{number} 0".encode()

        assert await client.closed()
        assert (len(exchanges), here.application.abandoned) == (4, [])


async def send_last_request(here: Scene) -> Client:
    """Return a client whose request is held, and that sends no more."""
    client = await here.connect()
    client.get("/a")
    client.writer.write_eof()
    await until(lambda: here.application.exchanges)
    await client.taken()
    return client


@played
async def test_a_client_that_sends_no_more_reads_a_stream_to_its_end() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await send_last_request(here)
        exchange = here.application.exchanges[0]
        exchange.start(200, content_type="text/plain")
        for _ in range(3):
            exchange.write(b"part")
            here.pass_time(30.0)
        exchange.end()

        assert (await client.reply()).body == b"part" * 3
        assert await client.closed()


@played
async def test_a_stream_of_a_client_that_left_at_once_is_cancelled() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        client.get("/a")
        client.writer.close()
        await until(lambda: here.application.exchanges)
        exchange = here.application.exchanges[0]
        exchange.start(200, content_type="text/plain")
        for _ in range(100):
            exchange.write(b"part")
            await asyncio.sleep(0.001)
            if here.application.abandoned:
                break

        assert (here.application.abandoned, len(here.server.connections)) == (["/a"], 0)


@played
async def test_draining_waits_for_a_client_that_sends_no_more() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await send_last_request(here)
        draining = asyncio.create_task(here.server.drain(5))
        await asyncio.sleep(0)
        here.application.answer(here.application.exchanges[0])

        assert (await client.reply()).body == b"/a 0"
        assert await draining == 0


@played
async def test_an_answered_request_is_not_abandoned() -> None:
    sent: list[str] = []
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        client.get("/a")
        client.get("/b")
        await until(lambda: len(here.application.exchanges) == 2)
        here.application.exchanges[1].reply(200, (b"b",), on_sent=lambda: sent.append("b"))
        assert sent == []  # it is held behind /a
        client.abort()
        await until(lambda: here.application.abandoned)

        assert (here.application.abandoned, sent) == (["/a"], ["b"])


@played
async def test_a_slow_reader_of_a_large_answer() -> None:
    payload = random.Random(6).randbytes(12_000_000)
    sent: list[int] = []

    def handle(exchange: Exchange) -> None:
        exchange.reply(200, (payload[:1000], memoryview(payload)[1000:]), on_sent=lambda: sent.append(1))

    async with scene(Recorder(handle)) as here:
        client = await here.connect()
        other = await here.connect()
        client.get("/slow")
        client.get("/next")
        await until(lambda: here.application.exchanges)
        other.get("/other")
        await until(lambda: len(here.application.exchanges) == 2)
        assert here.application.exchanges[1].head.path == "/other"  # nothing more is read from the slow reader
        assert sent == []

        assert (await client.reply()).body == payload
        assert (await client.reply()).body == payload
        assert (await other.reply()).body == payload
        assert sent == [1, 1, 1]


@played
async def test_buffers_are_free_when_the_reader_leaves() -> None:
    sent: list[int] = []
    application = Recorder(lambda exchange: exchange.reply(200, (bytes(20_000_000),), on_sent=lambda: sent.append(1)))
    async with scene(application) as here:
        client = await here.connect()
        client.get("/")
        await until(lambda: application.exchanges)
        client.abort()
        await until(lambda: sent)

        assert (sent, application.abandoned, len(here.server.connections)) == ([1], [], 0)


@played
async def test_a_streamed_answer() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        client.get("/stream")
        await until(lambda: here.application.exchanges)
        (exchange,) = here.application.exchanges
        exchange.start(200, content_type="text/event-stream", headers=[("X-A", "b")])
        memory = bytearray(b"data: 1\n\n")
        assert exchange.write(memory)
        memory[:] = bytes(len(memory))  # the connection keeps no view of it
        assert exchange.write(b"")
        assert exchange.write(b"data: 2\n\n")
        exchange.end()
        client.get("/after")
        reply = await client.reply()

        assert reply.headers == {
            "content-type": "text/event-stream", "x-a": "b", "transfer-encoding": "chunked"
        }  # fmt: skip
        assert reply.body == b"data: 1\n\ndata: 2\n\n"
        await until(lambda: len(here.application.exchanges) == 2)
        with pytest.raises(RuntimeError, match="answered only once"):
            exchange.reply(200)


@played
async def test_a_streamed_answer_to_http_1_0_ends_with_the_connection() -> None:
    def handle(exchange: Exchange) -> None:
        exchange.start(200, content_type="text/plain")
        exchange.write(b"one,")
        exchange.write(b"two")
        exchange.end()

    async with scene(Recorder(handle)) as here:
        client = await here.connect()
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")

        assert await client.rest() == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\none,two"
        )


@played
async def test_a_stream_that_is_read_slowly() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        client.get("/stream")
        await until(lambda: here.application.exchanges)
        (exchange,) = here.application.exchanges
        drained: list[int] = []
        exchange.on_drained = lambda: drained.append(1)
        exchange.start(200, content_type="text/plain")
        written = 0
        while exchange.write(bytes(100_000)):
            written += 1
        assert drained == []

        reading = asyncio.ensure_future(client.reply())
        await until(lambda: drained)
        exchange.end()
        assert len((await reading).body) == (written + 1) * 100_000  # what was refused last was taken all the same
        assert drained == [1]


@played
async def test_a_stream_behind_an_unanswered_request() -> None:
    async with scene(Recorder(hold=True), HttpLimits(unsent=1000)) as here:
        client = await here.connect()
        client.get("/first")
        client.get("/second")
        await until(lambda: len(here.application.exchanges) == 2)
        first, second = here.application.exchanges
        drained: list[int] = []
        second.on_drained = lambda: drained.append(1)
        second.start(200, content_type="text/plain")
        assert not second.write(b"x" * 2000)
        here.application.answer(first)
        assert drained == [1]
        second.end()

        assert [(await client.reply()).body for _ in range(2)] == [b"/first 0", b"x" * 2000]


@played
async def test_an_application_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    def handle(exchange: Exchange) -> None:
        if exchange.head.path == "/inject":
            exchange.reply(200, headers=[("X", "a\r\nSet-Cookie: b")])
        raise ValueError("a secret")

    async with scene(Recorder(handle)) as here:
        client = await here.connect()
        for path in ("/x", "/inject"):
            client.get(path)
            reply = await client.reply()
            assert (reply.status, b"secret" in reply.body, "set-cookie" in reply.headers) == (500, False, False)

    assert "a secret" in caplog.text
