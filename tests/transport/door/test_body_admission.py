"""Bodies on connections, when there is not memory for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator

import pytest

from edge_serve.aio import bulk_copy
from edge_serve.errors import InvalidArgument
from edge_serve.transport.door.body_memory import STEP, BodyMemory
from edge_serve.transport.door.shared_limits import Addresses, InFlight, SharedLimits
from edge_serve.transport.http.door_state import HttpLimits
from tests.footprint import footprint
from tests.stories import played
from tests.transport.http_scene import Client, Recorder, Scene, scene, until

SIZE = 100_000
BODY = bytes(SIZE)
#: the bytes of a chunked body that is moved to tensor memory when it is complete
LARGE = STEP + 1


def begin(client: Client, size: int = SIZE, sent: int = 1000) -> None:
    client.send(b"POST /%d HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (size, size) + bytes(sent))


@contextlib.asynccontextmanager
async def full(limits: HttpLimits | None = None) -> AsyncIterator[tuple[Scene, BodyMemory, Client]]:
    """Memory for one body, and a client that holds it: it has sent only the beginning of its own."""
    memory = BodyMemory(SIZE)
    async with scene(limits=limits, sharing=SharedLimits(memory=memory)) as here:
        holder = await here.connect()
        begin(holder)
        await until(lambda: memory.used == SIZE)
        yield here, memory, holder


@played
async def test_a_body_waits_unread_until_there_is_memory() -> None:
    async with full() as (here, memory, first):
        second = await here.connect()
        second.post("/second", BODY)
        await until(lambda: memory.waiting == 1)
        assert here.application.exchanges == []
        first.send(bytes(SIZE - 1000))
        assert (await first.reply()).status == 200
        assert (await second.reply()).body == b"/second %d" % SIZE
        assert memory.used == 0


@played
async def test_the_oldest_is_first_and_small_requests_do_not_wait() -> None:
    async with full() as (here, memory, holder):
        waiting: list[Client] = []
        for number in range(5):
            client = await here.connect()
            client.post(f"/{number}", BODY)
            await until(lambda: memory.waiting == len(waiting) + 1)
            waiting.append(client)
        small = await here.connect()
        small.post("/small", b"x" * 1000)
        small.get("/get")
        assert [(await small.reply()).status for _ in range(2)] == [200, 200]
        holder.abort()
        for client in waiting:
            await client.reply()
        assert [e.head.path for e in here.application.exchanges[2:]] == ["/0", "/1", "/2", "/3", "/4"]


@played
async def test_memory_is_held_until_the_answer_or_the_lease_ends() -> None:
    for places in (False, True):
        memory = BodyMemory(SIZE)
        application = Recorder(hold=True)
        application.places = places
        async with scene(application, sharing=SharedLimits(memory=memory)) as here:
            client = await here.connect()
            client.post("/a", BODY)
            await until(lambda: application.exchanges)  # noqa: B023
            assert memory.used == SIZE
            exchange = application.exchanges[0]
            application.answer(exchange)
            await client.reply()
            assert memory.used == (SIZE if places else 0)
            if exchange.lease is not None:
                exchange.lease.release()
            assert memory.used == 0


@played
async def test_a_client_that_leaves_gives_its_memory_back() -> None:
    memory = BodyMemory(SIZE)
    application = Recorder(hold=True)
    async with scene(application, sharing=SharedLimits(memory=memory)) as here:
        for complete in (False, True):
            client = await here.connect()
            begin(client, sent=SIZE if complete else 10)
            await until(lambda: memory.used == SIZE)
            if complete:
                await until(lambda: application.exchanges)
            client.abort()
            await until(lambda: memory.used == 0)


@played
async def test_larger_than_all_memory_is_refused_at_the_head() -> None:
    memory = BodyMemory(SIZE - 1)
    async with scene(sharing=SharedLimits(memory=memory)) as here:
        client = await here.connect()
        begin(client, sent=0)
        assert (await client.reply()).status == 413
        assert memory.refused["too_large"] == 1


@played
async def test_the_application_is_asked_before_memory_is() -> None:
    class Picky(Recorder):
        def check(self, head: object, length: int) -> None:
            raise InvalidArgument("not you")

    memory = BodyMemory(SIZE)
    async with scene(Picky(), sharing=SharedLimits(memory=memory)) as here:
        client = await here.connect()
        begin(client, sent=0)
        assert (await client.reply()).status == 400
        assert memory.used == 0


@played
async def test_a_chunked_body_is_refused_at_its_head() -> None:
    """Otherwise a client that may do nothing is told to continue, and fills the memory of all others."""

    class Picky(Recorder):
        def check(self, head: object, length: int) -> None:
            raise InvalidArgument("not you")

    async with scene(Picky()) as here:
        client = await here.connect()
        client.send(b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.reply()).status == 400


@played
async def test_a_body_that_waits_too_long_is_refused_with_retry_after() -> None:
    async with full(HttpLimits(memory_wait=30, body_rate=0, body_timeout=1000)) as (here, memory, holder):
        waiting = await here.connect()
        begin(waiting)
        await until(lambda: memory.waiting)
        here.pass_time(29)
        assert memory.waiting == 1
        here.pass_time(2)
        reply = await waiting.reply()
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert memory.waiting == 0
        assert memory.refused["waited"] == 1
        holder.send(bytes(SIZE - 1000))
        assert (await holder.reply()).status == 200


@played
async def test_a_slow_sender_loses_its_memory_only_when_others_wait() -> None:
    limits = HttpLimits(body_rate=10_000, memory_wait=1000, head_timeout=1000, body_timeout=1000)
    async with full(limits) as (here, memory, slow):
        other = await here.connect()
        for _ in range(3):
            here.pass_time(20)
        other.post("/other", BODY)
        await until(lambda: memory.waiting)
        here.server.sweep()
        slow.send(bytes(60_000))
        await slow.taken()
        here.pass_time(5.5)  # fast enough
        assert memory.waiting == 1
        here.pass_time(5.5)
        assert (await slow.reply()).status == 408
        assert (await other.reply()).status == 200
        assert memory.refused["slow"] == 1


def chunk(size: int) -> bytes:
    return b"%x\r\n" % size + bytes(size) + b"\r\n"


def chunked(size: int) -> bytes:
    """Build a whole request."""
    return b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(size) + b"0\r\n\r\n"


@played
async def test_the_youngest_chunked_body_is_refused() -> None:
    memory = BodyMemory(3 * STEP)
    async with scene(sharing=SharedLimits(memory=memory)) as here:
        old, young = await here.connect(), await here.connect()
        for client in (old, young):
            client.send(b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(STEP // 2))
            await until(lambda: memory.used % STEP == 0 and memory.used)
        await until(lambda: memory.used == 2 * STEP)
        old.send(chunk(2 * STEP))
        reply = await young.reply()
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        old.send(b"0\r\n\r\n")
        assert (await old.reply()).body == b"/c %d" % (2 * STEP + STEP // 2)
        assert memory.used == 0


@played
async def test_too_many_requests_in_flight() -> None:
    in_flight = InFlight(2)
    application = Recorder(hold=True)
    async with scene(application, sharing=SharedLimits(in_flight)) as here:
        clients = [await here.connect() for _ in range(3)]
        for client in clients[:2]:
            client.post("/a", b"x")
        await until(lambda: in_flight.now == 2)
        clients[2].post("/b", b"x")
        reply = await clients[2].reply()
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        clients[2].get("/health")
        await until(lambda: len(application.exchanges) == 3)
        for exchange in application.exchanges:
            application.answer(exchange)
        for client in clients:
            assert (await client.reply()).status == 200
        clients[2].post("/b", b"x")
        await until(lambda: len(application.exchanges) == 4)
        clients[2].abort()
        await until(lambda: in_flight.now == 0)
        assert in_flight.refused == 1


@played
async def test_large_chunked_bodies_count_as_requests_in_flight() -> None:
    in_flight = InFlight(1)
    application = Recorder(hold=True)
    application.places = True
    async with scene(application, sharing=SharedLimits(in_flight)) as here:
        first, second = await here.connect(), await here.connect()
        first.post("/a", b"x")
        await until(lambda: in_flight.now == 1)
        second.send(chunked(LARGE))
        assert (await second.reply()).status == 503
        assert (len(application.exchanges), application.slots, in_flight.now) == (1, [], 1)


@played
async def test_a_large_chunked_body_is_moved_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no thread can be started")

    monkeypatch.setattr(bulk_copy._threads, "start", fail)
    application = Recorder()
    application.places = True
    async with scene(application) as here:
        client = await here.connect()
        for number in range(2):
            client.send(chunked(LARGE))
            assert (await client.reply()).body == b"/c %d" % LARGE
            assert application.exchanges[number].lease is application.slots[number]
            client.get("/b")
            assert (await client.reply()).body == b"/b 0"
            application.exchanges.pop()


@pytest.mark.parametrize("coded", [True, False])
@played
async def test_an_idle_connection_keeps_no_body(coded: bool) -> None:
    application = Recorder()
    async with scene(application) as here:
        client = await here.connect()
        if coded:
            client.send(chunked(STEP))
        else:
            client.post("/c", bytes(STEP))
        await client.reply()
        here.server.sweep()
        assert len(application.exchanges[0].body) == STEP
        reader = next(iter(here.server.connections))._reader
        assert (len(reader.body), reader.lease) == (0, None)


@played
async def test_an_address_has_its_share_of_connections() -> None:
    addresses = Addresses(2)
    async with scene(sharing=SharedLimits(addresses=addresses)) as here:
        clients = [await here.connect() for _ in range(2)]
        for client in clients:
            client.get("/")
            assert (await client.reply()).status == 200
        third = await here.connect()
        assert b"503" in await third.rest()
        assert addresses.refused == 1
        clients[0].abort()
        await until(lambda: len(here.server.connections) == 1)
        fourth = await here.connect()
        fourth.get("/")
        assert (await fourth.reply()).status == 200


@played
async def test_nothing_is_left_of_clients_that_come_and_go() -> None:
    memory, in_flight, addresses = BodyMemory(2 * SIZE), InFlight(10), Addresses(100)
    async with scene(Recorder(), sharing=SharedLimits(in_flight, addresses, memory)) as here:
        for number in range(60):
            client = await here.connect()
            if number % 3 == 0:
                begin(client)
            elif number % 3 == 1:
                client.post("/x", BODY)
            else:
                client.send(b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(50_000))
            await asyncio.sleep(0)
            if number % 2:
                client.abort()
        for client in here.clients:
            client.abort()
        await until(lambda: len(here.server.connections) == 0)
        await until(lambda: (memory.used, memory.waiting, in_flight.now) == (0, 0, 0))
        assert footprint(addresses) < 10
