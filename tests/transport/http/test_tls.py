"""HTTP over TLS: the same door behind a handshake."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from pathlib import Path

import pytest

from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.door.reloaded import Reloaded
from edge_serve.transport.http.door_state import HttpLimits
from edge_serve.transport.http.exchange import HttpExchange
from edge_serve.transport.sockets.tls import TlsFiles, make_context
from tests.certificates import Authority
from tests.stories import played
from tests.transport.http_scene import Recorder, scene, until

LARGE = bytes(range(256)) * 20_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def context_of(authority: Authority, *, demanded: bool = False) -> ssl.SSLContext:
    pair = authority.issue()
    clients = str(authority.root) if demanded else ""
    return make_context(TlsFiles(str(pair.certificate), str(pair.key), clients, demanded), ("http/1.1",))


@played
async def test_requests_large_and_small_and_pipelined(authority: Authority) -> None:
    def handle(exchange: object) -> None:
        application.exchanges[-1].reply(200, (application.exchanges[-1].body,))

    application = Recorder(handle)
    context = context_of(authority)
    async with scene(application, tls=lambda: context) as here:
        client = await here.connect(authority.client(alpn="http/1.1"))
        for body in (b"small", LARGE, b""):
            client.post("/echo", body)
            assert (await client.reply()).body == body
        for number in range(20):
            client.post("/echo", str(number).encode())
        assert [(await client.reply()).body for _ in range(20)] == [str(number).encode() for number in range(20)]


@played
async def test_a_client_that_sends_no_more_after_its_request(authority: Authority) -> None:
    def ask(port: int) -> bytes:
        received = b""
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            authority.client(alpn="http/1.1").wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nxyz")
            client.setblocking(False)
            with contextlib.suppress(ssl.SSLWantReadError):
                client.unwrap()  # sends close_notify
            closed.set()
            client.settimeout(10)
            with contextlib.suppress(ssl.SSLZeroReturnError):
                while True:
                    received += client.recv(4096)
        return received

    closed = threading.Event()
    context = context_of(authority)
    async with scene(Recorder(hold=True), tls=lambda: context) as here:
        asking = asyncio.get_running_loop().run_in_executor(None, ask, here.port)
        await until(lambda: here.application.exchanges and closed.is_set())
        await asyncio.sleep(0.02)
        here.application.answer(here.application.exchanges[0])

        assert (await asking).endswith(b"/a 3")


@played
async def test_a_client_that_leaves_before_its_answer(authority: Authority) -> None:
    context = context_of(authority)
    async with scene(Recorder(hold=True), tls=lambda: context) as here:
        client = await here.connect(authority.client(alpn="http/1.1"))
        client.get("/a")
        await until(lambda: here.application.exchanges)
        await asyncio.sleep(0.12)
        client.writer.close()
        await until(lambda: here.application.abandoned)
        assert here.application.abandoned == ["/a"]


@played
async def test_for_traces_it_is_noted_when_a_request_began(authority: Authority) -> None:
    def handle(exchange: Exchange) -> None:
        assert isinstance(exchange, HttpExchange)
        begun.append(exchange.begun_ns)
        exchange.reply(200)

    begun: list[int] = []
    application = Recorder(handle)
    context = context_of(authority)
    async with scene(application, tls=lambda: context) as here:
        client = await here.connect(authority.client(alpn="http/1.1"))
        client.get("/before")
        await client.reply()
        here.server.trace(True)
        client.post("/large", LARGE)
        await client.reply()
        here.clock.seconds += 5
        client.get("/small")
        await client.reply()
        assert begun == [0, 1_000_000_000_000, 1_005_000_000_000]


@played
async def test_a_body_is_received_into_its_lease(authority: Authority) -> None:
    application = Recorder()
    application.places = True
    context = context_of(authority)
    async with scene(application, tls=lambda: context) as here:
        client = await here.connect(authority.client())
        client.post("/there", LARGE)
        await client.reply()
        assert bytes(application.slots[0].memory[: len(LARGE)]) == LARGE


@played
async def test_bytes_that_openssl_holds_are_not_forgotten_when_reading_was_stopped(authority: Authority) -> None:
    """More requests than may be pipelined come in one record; the last of them is answered all the same."""

    application = Recorder(hold=True)
    context = context_of(authority)
    async with scene(application, HttpLimits(pipelined=2, receive_buffer=1024), tls=lambda: context) as here:
        client = await here.connect(authority.client())
        client.send(b"".join(b"GET /%d HTTP/1.1\r\nX: %s\r\n\r\n" % (n, b"y" * 300) for n in range(20)))
        for number in range(20):
            await until(lambda: len(application.exchanges) > number)  # noqa: B023
            application.answer(application.exchanges[number])
            assert (await client.reply()).body == b"/%d 0" % number


@played
async def test_a_slow_reader_gets_all(authority: Authority) -> None:
    application = Recorder(lambda exchange: exchange.reply(200, (LARGE,)))
    context = context_of(authority)
    async with scene(application, tls=lambda: context) as here:
        client = await here.connect(authority.client())
        client.get("/")
        await client.reader.readuntil(b"\r\n\r\n")
        got = 0
        while got < len(LARGE):
            await asyncio.sleep(0.001)
            data = await client.reader.read(100_000)
            assert data == LARGE[got : got + len(data)]
            got += len(data)


@played
async def test_the_last_answer_ends_with_a_goodbye(authority: Authority) -> None:
    context = context_of(authority)
    async with scene(tls=lambda: context) as here:
        client = await here.connect(authority.client())
        client.get("/", "Connection: close\r\n")
        assert (await client.reply()).status == 200
        assert await client.rest() == b""


@played
async def test_http_without_tls_gets_an_error(authority: Authority) -> None:
    context = context_of(authority)
    async with scene(tls=lambda: context) as here:
        client = await here.connect()
        client.get("/v2")
        reply = await client.reply()
        assert reply.status == 400
        assert b"use https://" in reply.body
        assert await client.closed()


@pytest.mark.parametrize(
    "data",
    [b"\0" * 100, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 600, b"\xff"],
    ids=["zeros", "hello", "little"],
)
@played
async def test_garbage_costs_its_connection_only(authority: Authority, data: bytes) -> None:
    context = context_of(authority)
    async with scene(limits=HttpLimits(handshake_timeout=0.2), tls=lambda: context) as here:
        bad = await here.connect()
        bad.send(data)
        good = await here.connect(authority.client())
        good.get("/")
        assert (await good.reply()).status == 200
        with contextlib.suppress(ConnectionResetError):
            await bad.rest()  # an alert, or nothing, then the end


@played
async def test_a_client_that_never_shakes_hands_is_closed(authority: Authority) -> None:
    context = context_of(authority)
    async with scene(limits=HttpLimits(handshake_timeout=0.05), tls=lambda: context) as here:
        assert await (await here.connect()).closed()


@played
async def test_handshakes_count_as_connections(authority: Authority) -> None:
    context = context_of(authority)
    async with scene(limits=HttpLimits(connections=1), tls=lambda: context) as here:
        first = await here.connect()
        await here.connect()
        assert await first.closed()
        counters = here.server.counters
        assert (counters.connections_refused, counters.connections_evicted, counters.handshakes_failed) == (0, 1, 1)


@played
async def test_mutual_tls(authority: Authority, tmp_path: Path) -> None:
    context = context_of(authority, demanded=True)
    async with scene(tls=lambda: context) as here:
        known = await here.connect(authority.client(authority.issue("client")))
        known.get("/")
        assert (await known.reply()).status == 200
        stranger = Authority(tmp_path)
        for pair in (None, stranger.issue("client")):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):  # noqa: PT012
                client = await here.connect(authority.client(pair))
                client.get("/")
                await client.reply()


@played
async def test_a_new_certificate_is_for_new_connections(authority: Authority) -> None:
    mine = authority.issue()
    files = TlsFiles(str(mine.certificate), str(mine.key))
    contexts = Reloaded("certificate", files.paths, lambda: make_context(files))
    async with scene(tls=lambda: contexts.value) as here:
        old = await here.connect(authority.client())
        certificate = _certificate(old.writer)
        other = authority.issue()
        mine.key.write_bytes(other.key.read_bytes())  # for a moment they do not fit
        await contexts.reload_changed()
        mine.certificate.write_bytes(other.certificate.read_bytes())
        await contexts.reload_changed()
        assert await contexts.reload_changed()
        new = await here.connect(authority.client())
        assert _certificate(new.writer) != certificate
        for client in (old, new):
            client.get("/")
            assert (await client.reply()).status == 200


def _certificate(writer: asyncio.StreamWriter) -> bytes:
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert isinstance(found, bytes)
    return found
