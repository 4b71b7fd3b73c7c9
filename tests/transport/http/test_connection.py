"""One connection: framing on real sockets, order, back-pressure, clients that leave or dawdle."""

from __future__ import annotations

import json
import random

import pytest

from edge_serve.errors import InvalidArgument, NotFound
from edge_serve.transport.http.door_state import HttpLimits
from tests.stories import played
from tests.transport.http_scene import Recorder, scene, until


@played
async def test_the_reply_on_the_wire() -> None:
    async with scene() as here:
        client = await here.connect()
        client.get("/v2?q=1", "Connection: close\r\n")

        assert await client.rest() == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 5\r\n\r\n/v2 0"
        )


@played
async def test_a_connection_is_kept() -> None:
    async with scene() as here:
        client = await here.connect()
        for number in range(3):
            client.post(f"/{number}", b"x" * number)
            reply = await client.reply()
            assert (reply.body, "connection" in reply.headers) == (f"/{number} {number}".encode(), False)
        assert len(here.server.connections) == 1
        assert here.server.counters.requests == {200: 3}


@played
async def test_head_is_answered_without_a_body() -> None:
    async with scene() as here:
        client = await here.connect()
        client.send(b"HEAD /abc HTTP/1.1\r\n\r\n")
        reply = await client.reply(head_only=True)
        client.get("/next")

        assert (reply.status, reply.headers["content-length"]) == (200, "6")
        assert (await client.reply()).body == b"/next 0"


@pytest.mark.parametrize(("connection", "kept"), [("", False), ("Connection: keep-alive\r\n", True)])
@played
async def test_http_1_0(connection: str, kept: bool) -> None:
    async with scene() as here:
        client = await here.connect()
        client.send(f"GET /a HTTP/1.0\r\n{connection}\r\n".encode())
        reply = await client.reply()

        assert (reply.body, reply.headers["connection"]) == (b"/a 0", "keep-alive" if kept else "close")
        if kept:
            client.get("/b")
            assert (await client.reply()).body == b"/b 0"
        else:
            assert await client.closed()


@played
async def test_pipelined_answers_come_in_order() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        for number in range(5):
            client.get(f"/{number}")
        await until(lambda: len(here.application.exchanges) == 5)
        for exchange in reversed(here.application.exchanges):
            here.application.answer(exchange)

        assert [(await client.reply()).body for _ in range(5)] == [f"/{n} 0".encode() for n in range(5)]


@played
async def test_pipelining_is_bounded() -> None:
    async with scene(Recorder(hold=True), HttpLimits(pipelined=4)) as here:
        exchanges = here.application.exchanges
        client = await here.connect()
        other = await here.connect()
        for number in range(20):
            client.get(f"/{number}")
        await until(lambda: len(exchanges) == 4)
        other.get("/other")
        await until(lambda: len(exchanges) == 5)  # so the loop has been round: no more of the first were taken
        here.application.answer(exchanges.pop())
        here.application.hold = False
        for exchange in list(exchanges):
            here.application.answer(exchange)

        assert [(await client.reply()).body for _ in range(20)] == [f"/{n} 0".encode() for n in range(20)]


@played
async def test_a_flood_of_pipelined_requests() -> None:
    async with scene() as here:
        client = await here.connect()
        client.send(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(5000)))

        assert [(await client.reply()).body for _ in range(5000)] == [b"/%d 0" % n for n in range(5000)]


@played
async def test_a_large_body_is_received_into_its_lease() -> None:
    body = random.Random(3).randbytes(5_000_000)
    application = Recorder()
    application.places = True
    async with scene(application) as here:
        client = await here.connect()
        client.post("/big", body)
        assert (await client.reply()).body == b"/big 5000000"
        exchange = application.exchanges[0]

        assert exchange.lease is not None
        assert exchange.lease.arena is application.slots[0].memory
        assert isinstance(exchange.body, memoryview)
        assert exchange.body.obj is application.slots[0].memory
        assert exchange.body == body
    assert application.slots[0].released == 0  # it belongs to the application now


@played
async def test_a_large_body_without_a_lease() -> None:
    body = random.Random(4).randbytes(3_000_000)
    async with scene() as here:
        client = await here.connect()
        client.post("/big", body)
        client.get("/next")

        assert (await client.reply()).body == b"/big 3000000"
        assert (await client.reply()).body == b"/next 0"
        assert here.application.bodies[0] == body


@played
async def test_a_chunked_body() -> None:
    body = random.Random(5).randbytes(600_000)
    async with scene() as here:
        client = await here.connect()
        client.send(b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 70_000):
            part = body[at : at + 70_000]
            client.send(b"%x\r\n%b\r\n" % (len(part), part))
        client.send(b"0\r\n\r\n")

        assert (await client.reply()).body == b"/c 600000"
        assert here.application.exchanges[0].body == body


@played
async def test_many_tiny_chunks() -> None:
    async with scene() as here:
        client = await here.connect()
        client.send(b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 30_000)
        client.send(b"0\r\n\r\n")
        assert (await client.reply()).body == b"/c 30000"

        client.send(b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 65_537)
        reply = await client.reply()

        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert json.loads(reply.body) == {
            "error": "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."
        }


@played
async def test_a_chunked_body_that_comes_faster_than_it_is_read() -> None:
    """However much lies in the socket, a turn of the loop takes one buffer of it."""

    async with scene(limits=HttpLimits(receive_buffer=64)) as here:
        client = await here.connect()
        client.send(b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"%x\r\n" % 120_000 + bytes(120_000) + b"\r\n0\r\n\r\n")
        assert (await client.reply()).body == b"/c 120000"


@played
async def test_a_body_that_the_application_refuses() -> None:
    application = Recorder()
    application.refusal = NotFound("no such model")
    async with scene(application) as here:
        client = await here.connect()
        client.post("/m", bytes(8_000_000))  # the reply is read although the client goes on sending
        reply = await client.reply()

        assert (reply.status, reply.headers["connection"]) == (404, "close")
        assert (reply.headers["content-type"], reply.body) == ("application/json", b'{"error":"no such model"}')
        assert application.exchanges == []


@played
async def test_expect_continue() -> None:
    async with scene() as here:
        client = await here.connect()
        client.send(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"abc")
        assert (await client.reply()).body == b"/a 3"

        client.send(b"POST /b HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc")
        assert (await client.reply()).body == b"/b 3"  # it did not wait, so nothing tells it to go on


@played
async def test_100_continue_waits_for_the_answers_before_it() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        client.get("/first")
        client.send(b"POST /second HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        await until(lambda: here.application.exchanges)
        here.application.answer(here.application.exchanges[0])

        assert (await client.reply()).body == b"/first 0"
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"


@played
async def test_a_refusal_in_place_of_100_continue() -> None:
    application = Recorder()
    application.refusal = InvalidArgument("too large")
    async with scene(application) as here:
        client = await here.connect()
        client.send(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99999\r\n\r\n")

        assert (await client.reply()).status == 400


@played
async def test_a_bad_request_is_answered_after_the_good_ones() -> None:
    async with scene(Recorder(hold=True)) as here:
        client = await here.connect()
        client.get("/good")
        client.send(b"NONSENSE\r\n\r\n")
        await until(lambda: here.application.exchanges)
        here.application.answer(here.application.exchanges[0])
        good, bad = await client.reply(), await client.reply()

        assert good.body == b"/good 0"
        assert (bad.status, bad.headers["connection"]) == (400, "close")
        assert "NONSENSE" in json.loads(bad.body)["error"]
        assert await client.closed()
        assert here.server.counters.requests == {200: 1, 400: 1}


@played
async def test_nothing_is_read_after_the_last_request() -> None:
    async with scene() as here:
        client = await here.connect()
        client.get("/last", "Connection: close\r\n")
        client.get("/more")
        reply = await client.reply()

        assert (reply.body, reply.headers["connection"]) == (b"/last 0", "close")
        assert await client.closed()
        assert len(here.application.exchanges) == 1
