"""Clients that dawdle, on a clock that moves only when told."""

from __future__ import annotations

import itertools

from edge_serve.transport.door.body_memory import BodyMemory
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.http.connection import HttpConnection
from edge_serve.transport.http.door_state import HttpLimits
from tests.stories import played
from tests.transport.http_scene import Recorder, Scene, scene, until


async def connections(here: Scene) -> list[HttpConnection]:
    """The server's side of the open connections."""
    await until(lambda: here.server.connections)
    return list(here.server.connections)


TIMEOUTS = HttpLimits(
    idle_timeout=50, head_timeout=20, body_timeout=30, write_timeout=40, linger_timeout=10, unsent=1000
)  # fmt: skip


@played
async def test_an_idle_connection_is_closed() -> None:
    async with scene(limits=TIMEOUTS) as here:
        client = await here.connect()
        client.get("/")
        await client.reply()
        here.pass_time(49)
        client.get("/")
        await client.reply()
        here.pass_time(49)
        assert len(here.server.connections) == 1
        here.pass_time(2)

        assert await client.closed()
        assert len(here.server.connections) == 0


@played
async def test_a_head_that_trickles_in() -> None:
    async with scene(limits=TIMEOUTS) as here:
        client = await here.connect()
        await connections(here)
        for byte in b"GET / HT":
            client.send(bytes((byte,)))
            await client.taken()
            here.pass_time(2.4)  # a byte now and then is no excuse
        here.pass_time(2.4)
        reply = await client.reply()

        assert (reply.status, reply.headers["connection"]) == (408, "close")


@played
async def test_a_stalled_body_times_out() -> None:
    async with scene(limits=TIMEOUTS) as here:
        client = await here.connect()
        await connections(here)
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n")
        await client.taken()
        for _ in range(3):
            client.send(bytes(2048))
            await client.taken()
            here.pass_time(29)
        assert here.server.counters.requests == {}
        client.send(bytes(10))  # too little to count as progress
        here.pass_time(2)

        assert (await client.reply()).status == 408


@played
async def test_a_stalled_reader_times_out() -> None:
    application = Recorder(lambda exchange: exchange.reply(200, (bytes(20_000_000),)))
    async with scene(application, TIMEOUTS) as here:
        client = await here.connect()
        client.get("/")
        await until(lambda: application.exchanges)
        await client.taken()
        here.pass_time(39)
        assert len(here.server.connections) == 1
        here.pass_time(2)

        assert len(here.server.connections) == 0


@played
async def test_a_slow_reader_gives_way_while_others_lack_memory() -> None:
    """It takes some bytes of its answer before each write timeout, and would keep the model's memory for hours."""

    released: list[bool] = []
    lacks = itertools.count(1)
    application = Recorder(
        lambda exchange: exchange.reply(200, (bytes(20_000_000),), on_sent=lambda: released.append(True))
    )
    limits = HttpLimits(write_timeout=40, body_rate=1 << 20)
    sharing = SharedLimits(memory=BodyMemory(shortages=lambda: next(lacks)))
    async with scene(application, limits, sharing=sharing) as here:
        client = await here.connect()
        client.get("/")
        await until(lambda: application.exchanges)
        here.pass_time(20)
        await client.reader.readexactly(8_000_000)
        here.pass_time(19)
        assert not released
        here.pass_time(1)
        assert released


@played
async def test_the_application_may_take_its_time() -> None:
    async with scene(Recorder(hold=True), TIMEOUTS) as here:
        client = await here.connect()
        client.get("/slow")
        await until(lambda: here.application.exchanges)
        here.pass_time(10_000)
        here.application.answer(here.application.exchanges[0])

        assert (await client.reply()).body == b"/slow 0"


@played
async def test_a_refused_client_that_does_not_close() -> None:
    async with scene(limits=TIMEOUTS) as here:
        client = await here.connect()
        client.send(b"NONSENSE\r\n\r\n")
        assert (await client.reply()).status == 400
        client.send(b"more")
        here.pass_time(9)
        assert len(here.server.connections) == 1
        here.pass_time(2)

        assert len(here.server.connections) == 0
