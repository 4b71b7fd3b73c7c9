"""One connection: framing on real sockets, order, back-pressure, clients that leave or dawdle."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from edge_serve.errors import InvalidArgument, NotFound
from edge_serve.transport.exchange import Exchange
from edge_serve.transport.http_connection import HttpConnection
from edge_serve.transport.http_limits import HttpLimits

from .http_scene import Recorder, Scene, play, scene, until


def test_the_reply_on_the_wire() -> None:
    async def story() -> None:
        async with scene() as here:
            client = await here.connect()
            client.get("/v2?q=1", "Connection: close\r\n")

            assert await client.rest() == (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 5\r\n\r\n/v2 0"
            )

    play(story)


def test_a_connection_is_kept() -> None:
    async def story() -> None:
        async with scene() as here:
            client = await here.connect()
            for number in range(3):
                client.post(f"/{number}", b"x" * number)
                reply = await client.reply()
                assert (reply.body, "connection" in reply.headers) == (f"/{number} {number}".encode(), False)
            assert here.server.counters.connections == here.server.counters.connections_total == 1
            assert here.server.counters.requests == {200: 3}

    play(story)


def test_head_is_answered_without_a_body() -> None:
    async def story() -> None:
        async with scene() as here:
            client = await here.connect()
            client.send(b"HEAD /abc HTTP/1.1\r\n\r\n")
            reply = await client.reply(head_only=True)
            client.get("/next")

            assert (reply.status, reply.headers["content-length"]) == (200, "6")
            assert (await client.reply()).body == b"/next 0"

    play(story)


@pytest.mark.parametrize(("connection", "kept"), [("", False), ("Connection: keep-alive\r\n", True)])
def test_http_1_0(connection: str, kept: bool) -> None:
    async def story() -> None:
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

    play(story)


def test_pipelined_answers_come_in_order() -> None:
    async def story() -> None:
        async with scene(Recorder(hold=True)) as here:
            client = await here.connect()
            for number in range(5):
                client.get(f"/{number}")
            await until(lambda: len(here.application.exchanges) == 5)
            for exchange in reversed(here.application.exchanges):
                here.application.answer(exchange)

            assert [(await client.reply()).body for _ in range(5)] == [f"/{n} 0".encode() for n in range(5)]

    play(story)


def test_pipelining_is_bounded() -> None:
    async def story() -> None:
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

    play(story)


def test_a_flood_of_pipelined_requests() -> None:
    async def story() -> None:
        async with scene() as here:
            client = await here.connect()
            client.send(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(5000)))

            assert [(await client.reply()).body for _ in range(5000)] == [b"/%d 0" % n for n in range(5000)]

    play(story)


def test_a_large_body_goes_into_its_lease() -> None:
    async def story() -> None:
        body = random.Random(3).randbytes(5_000_000)
        application = Recorder()
        application.places = True
        async with scene(application) as here:
            client = await here.connect()
            client.post("/big", body)
            assert (await client.reply()).body == b"/big 5000000"
            exchange = application.exchanges[0]

            assert exchange.lease is application.slots[0]
            assert isinstance(exchange.body, memoryview)
            assert exchange.body.obj is application.slots[0].memory
            assert exchange.body == body
        assert application.slots[0].released == 0  # it belongs to the application now

    play(story)


def test_a_large_body_without_a_lease() -> None:
    async def story() -> None:
        body = random.Random(4).randbytes(3_000_000)
        async with scene() as here:
            client = await here.connect()
            client.post("/big", body)
            client.get("/next")

            assert (await client.reply()).body == b"/big 3000000"
            assert (await client.reply()).body == b"/next 0"
            assert here.application.exchanges[0].body == body

    play(story)


def test_a_chunked_body() -> None:
    async def story() -> None:
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

    play(story)


def test_many_tiny_chunks() -> None:
    async def story() -> None:
        async with scene() as here:
            client = await here.connect()
            client.send(b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 30_000)
            client.send(b"0\r\n\r\n")
            assert (await client.reply()).body == b"/c 30000"

            client.send(b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 65_537)
            reply = await client.reply()

            assert (reply.status, reply.headers["connection"]) == (400, "close")
            assert json.loads(reply.body) == {
                "error": "Chunked request body exceeds maximum of 65536 non-empty chunks. "
                "Send fewer or larger HTTP chunks."
            }

    play(story)


def test_a_body_that_the_application_refuses() -> None:
    async def story() -> None:
        application = Recorder()
        application.refusal = NotFound("no such model")
        async with scene(application) as here:
            client = await here.connect()
            client.post("/m", bytes(8_000_000))  # the reply is read although the client goes on sending
            reply = await client.reply()

            assert (reply.status, reply.headers["connection"]) == (404, "close")
            assert (reply.headers["content-type"], reply.body) == ("application/json", b'{"error":"no such model"}')
            assert application.exchanges == []

    play(story)


def test_expect_continue() -> None:
    async def story() -> None:
        async with scene() as here:
            client = await here.connect()
            client.send(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"abc")
            assert (await client.reply()).body == b"/a 3"

            client.send(b"POST /b HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc")
            assert (await client.reply()).body == b"/b 3"  # it did not wait, so nothing tells it to go on

    play(story)


def test_100_continue_waits_for_the_answers_before_it() -> None:
    async def story() -> None:
        async with scene(Recorder(hold=True)) as here:
            client = await here.connect()
            client.get("/first")
            client.send(b"POST /second HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
            await until(lambda: here.application.exchanges)
            here.application.answer(here.application.exchanges[0])

            assert (await client.reply()).body == b"/first 0"
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"

    play(story)


def test_a_refusal_in_place_of_100_continue() -> None:
    async def story() -> None:
        application = Recorder()
        application.refusal = InvalidArgument("too large")
        async with scene(application) as here:
            client = await here.connect()
            client.send(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99999\r\n\r\n")

            assert (await client.reply()).status == 400

    play(story)


def test_a_bad_request_is_answered_after_the_good_ones() -> None:
    async def story() -> None:
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

    play(story)


def test_nothing_is_read_after_the_last_request() -> None:
    async def story() -> None:
        async with scene() as here:
            client = await here.connect()
            client.get("/last", "Connection: close\r\n")
            client.get("/more")
            reply = await client.reply()

            assert (reply.body, reply.headers["connection"]) == (b"/last 0", "close")
            assert await client.closed()
            assert len(here.application.exchanges) == 1

    play(story)


def test_a_client_that_leaves_in_the_middle_of_a_body() -> None:
    async def story() -> None:
        application = Recorder()
        application.places = True
        async with scene(application) as here:
            client = await here.connect()
            client.send(b"POST /p HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + bytes(50_000))
            await until(lambda: application.slots)
            client.abort()
            await until(lambda: here.server.counters.connections == 0)

            assert application.slots[0].released == 1
            assert application.exchanges == []

    play(story)


@pytest.mark.parametrize("gently", [True, False])
def test_a_client_that_leaves_before_its_answer(gently: bool) -> None:
    async def story() -> None:
        async with scene(Recorder(hold=True)) as here:
            client = await here.connect()
            client.get("/a")
            client.get("/b")
            await until(lambda: len(here.application.exchanges) == 2)
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
            assert here.server.counters.connections == 0

    play(story)


def test_an_answered_request_is_not_abandoned() -> None:
    async def story() -> None:
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

    play(story)


def test_a_slow_reader_of_a_large_answer() -> None:
    async def story() -> None:
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

    play(story)


def test_buffers_are_free_when_the_reader_leaves() -> None:
    async def story() -> None:
        sent: list[int] = []
        application = Recorder(
            lambda exchange: exchange.reply(200, (bytes(20_000_000),), on_sent=lambda: sent.append(1))
        )
        async with scene(application) as here:
            client = await here.connect()
            client.get("/")
            await until(lambda: application.exchanges)
            client.abort()
            await until(lambda: sent)

            assert (sent, application.abandoned, here.server.counters.connections) == ([1], [], 0)

    play(story)


def test_a_streamed_answer() -> None:
    async def story() -> None:
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

    play(story)


def test_a_streamed_answer_to_http_1_0_ends_with_the_connection() -> None:
    async def story() -> None:
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

    play(story)


def test_a_stream_that_is_read_slowly() -> None:
    async def story() -> None:
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

    play(story)


def test_a_stream_behind_an_unanswered_request() -> None:
    async def story() -> None:
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

    play(story)


def test_an_application_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
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

    play(story)
    assert "a secret" in caplog.text


async def connections(here: Scene) -> list[HttpConnection]:
    """The server's side of the open connections."""
    await until(lambda: here.server.counters.connections)
    shared = here.server._shared
    assert shared is not None
    return list(shared.connections)


TIMEOUTS = HttpLimits(
    idle_timeout=50, head_timeout=20, body_timeout=30, write_timeout=40, linger_timeout=10, unsent=1000
)  # fmt: skip


def test_an_idle_connection_is_closed() -> None:
    async def story() -> None:
        async with scene(limits=TIMEOUTS) as here:
            client = await here.connect()
            client.get("/")
            await client.reply()
            here.pass_time(49)
            client.get("/")
            await client.reply()
            here.pass_time(49)
            assert here.server.counters.connections == 1
            here.pass_time(2)

            assert await client.closed()
            assert here.server.counters.connections == 0

    play(story)


def test_a_head_that_trickles_in() -> None:
    async def story() -> None:
        async with scene(limits=TIMEOUTS) as here:
            client = await here.connect()
            (connection,) = await connections(here)
            for received, byte in enumerate(b"GET / HT"):
                client.send(bytes((byte,)))
                await until(lambda received=received: connection._reader.received > received)  # type: ignore[misc]
                here.pass_time(2.4)  # a byte now and then is no excuse
            here.pass_time(2.4)
            reply = await client.reply()

            assert (reply.status, reply.headers["connection"]) == (408, "close")

    play(story)


def test_a_body_that_stands_still() -> None:
    async def story() -> None:
        async with scene(limits=TIMEOUTS) as here:
            client = await here.connect()
            (connection,) = await connections(here)
            client.send(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n")
            await until(lambda: connection._reader.in_body)
            for kib in (2, 4, 6):
                client.send(bytes(2048))
                await until(lambda kib=kib: connection._reader.received >> 10 == kib)  # type: ignore[misc]
                here.pass_time(29)
            assert here.server.counters.requests == {}
            client.send(bytes(10))  # too little to count as progress
            here.pass_time(2)

            assert (await client.reply()).status == 408

    play(story)


def test_a_reader_that_stands_still() -> None:
    async def story() -> None:
        application = Recorder(lambda exchange: exchange.reply(200, (bytes(20_000_000),)))
        async with scene(application, TIMEOUTS) as here:
            client = await here.connect()
            client.get("/")
            await until(lambda: application.exchanges)
            (connection,) = await connections(here)
            await until(lambda: connection._writing)
            here.pass_time(39)
            assert here.server.counters.connections == 1
            here.pass_time(2)

            assert here.server.counters.connections == 0

    play(story)


def test_the_application_may_take_its_time() -> None:
    async def story() -> None:
        async with scene(Recorder(hold=True), TIMEOUTS) as here:
            client = await here.connect()
            client.get("/slow")
            await until(lambda: here.application.exchanges)
            here.pass_time(10_000)
            here.application.answer(here.application.exchanges[0])

            assert (await client.reply()).body == b"/slow 0"

    play(story)


def test_a_refused_client_that_does_not_close() -> None:
    async def story() -> None:
        async with scene(limits=TIMEOUTS) as here:
            client = await here.connect()
            client.send(b"NONSENSE\r\n\r\n")
            assert (await client.reply()).status == 400
            client.send(b"more")
            here.pass_time(9)
            assert here.server.counters.connections == 1
            here.pass_time(2)

            assert here.server.counters.connections == 0

    play(story)
