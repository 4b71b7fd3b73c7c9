"""Requests of browsers for pages of other origins (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edge_serve.errors import Unauthenticated
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.transport.door.body_memory import BodyMemory
from edge_serve.transport.door.shared_limits import InFlight, SharedLimits
from edge_serve.transport.http.cors import Cors
from edge_serve.transport.http.door_state import HttpLimits
from tests.stories import played
from tests.transport.http_scene import Recorder, scene, until
from tests.transport.v2_scene import FakeExchange, head_of

ORIGIN = "https://dashboard.example"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-y"}


def ask(method: str, origin: str | None, *origins: str, **headers: str) -> tuple[FakeExchange, Recorder]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if origin is not None:
        fields["Origin"] = origin
    inner = Recorder()
    exchange = FakeExchange(head_of(method, "/v2", fields))
    Cors(inner, origins).handle(exchange)
    return exchange, inner


def test_a_preflight_is_answered_here() -> None:
    exchange, inner = ask("OPTIONS", ORIGIN, ORIGIN, **PREFLIGHT)
    assert exchange.status == 204
    assert exchange.headers["Access-Control-Allow-Methods"] == "GET, POST"
    assert exchange.headers["Access-Control-Allow-Headers"] == "authorization, x-y"
    assert dict(exchange.extra)["Access-Control-Allow-Origin"] == ORIGIN
    assert inner.exchanges == []


def test_a_preflight_of_a_stranger_says_nothing() -> None:
    exchange, inner = ask("OPTIONS", "https://evil", ORIGIN, **PREFLIGHT)
    assert (exchange.status, exchange.headers, exchange.extra) == (204, {}, ())
    assert inner.exchanges == []


def test_answers_carry_the_origin() -> None:
    exchange, inner = ask("POST", ORIGIN, ORIGIN, "https://other")
    assert dict(exchange.extra)["Access-Control-Allow-Origin"] == ORIGIN
    assert dict(exchange.extra)["Vary"] == "Origin"
    assert "Inference-Header-Content-Length" in dict(exchange.extra)["Access-Control-Expose-Headers"]
    assert len(inner.exchanges) == 1


def test_any_origin() -> None:
    exchange, _ = ask("GET", "https://who.ever", "*")
    assert dict(exchange.extra)["Access-Control-Allow-Origin"] == "*"


def test_no_page_and_no_friend_pass_untouched() -> None:
    for origin in (None, "https://evil", "null"):
        exchange, inner = ask("GET", origin, ORIGIN)
        assert exchange.extra == ()
        assert exchange.status == 200
        assert len(inner.exchanges) == 1


def test_options_without_a_preflight_is_the_applications() -> None:
    _, inner = ask("OPTIONS", ORIGIN, ORIGIN)
    assert len(inner.exchanges) == 1


def test_private_networks() -> None:
    exchange, _ = ask("OPTIONS", ORIGIN, ORIGIN, **PREFLIGHT, Access_Control_Request_Private_Network="true")
    assert exchange.headers["Access-Control-Allow-Private-Network"] == "true"


class Page(Recorder):
    """An application with CORS, which refuses the path `/secret` before it reads a body."""

    def __init__(self, *, hold: bool = False) -> None:
        super().__init__(hold=hold)
        self._cors = Cors(Recorder(), [ORIGIN])

    def build_extra(self, head: RequestHead) -> Sequence[tuple[str, str]]:
        return self._cors.build_extra(head)

    def check(self, head: RequestHead, length: int) -> None:
        if head.path == "/secret":
            raise Unauthenticated("show a token")


LARGE = 100_000
LIMITS = HttpLimits(memory_wait=5, body_timeout=10)


@pytest.mark.parametrize(
    ("framing", "status", "seconds"),
    [
        (f"POST /secret HTTP/1.1\r\nContent-Length: {LARGE}", 401, 0),
        ("POST /secret HTTP/1.1\r\nTransfer-Encoding: chunked", 401, 0),
        (f"POST /a HTTP/1.1\r\nContent-Length: {LARGE + 1}", 413, 0),
        (f"POST /a HTTP/1.1\r\nContent-Length: {LARGE}", 503, 6),
        ("POST /a HTTP/1.1\r\nContent-Length: 10", 408, 11),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked", 408, 11),
    ],
)
@played
async def test_a_page_reads_why_its_body_is_refused(framing: str, status: int, seconds: float) -> None:
    memory = BodyMemory(LARGE)
    holder = memory.claim(LARGE, lambda: None)
    async with scene(Page(), LIMITS, sharing=SharedLimits(memory=memory)) as here:
        client = await here.connect()
        client.send(f"{framing}\r\nOrigin: {ORIGIN}\r\n\r\n".encode())
        await client.taken()
        if seconds:
            here.pass_time(seconds)
        reply = await client.reply()
        assert (reply.status, reply.headers.get("access-control-allow-origin")) == (status, ORIGIN)
    holder.release()


@played
async def test_a_page_reads_that_the_server_is_busy() -> None:
    page = Page(hold=True)
    async with scene(page, sharing=SharedLimits(InFlight(1))) as here:
        other, client = await here.connect(), await here.connect()
        other.post("/a", b"x")
        await until(lambda: page.exchanges)
        client.post("/a", b"x", f"Origin: {ORIGIN}\r\n")
        reply = await client.reply()
        assert (reply.status, reply.headers.get("access-control-allow-origin")) == (503, ORIGIN)
        client.send(b"OPTIONS /a HTTP/1.1\r\n\r\n")
        await until(lambda: len(page.exchanges) == 2)


@played
async def test_a_malformed_request_is_not_answered_as_the_one_before() -> None:
    async with scene(Page()) as here:
        client = await here.connect()
        client.post("/a", bytes(40_000), f"Origin: {ORIGIN}\r\n")
        assert (await client.reply()).status == 200
        client.send(b"NONSENSE\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, "access-control-allow-origin" in reply.headers) == (400, False)
