"""Requests of browsers for pages of other origins (CORS)."""

from __future__ import annotations

from edge_serve.transport.http.cors import Cors
from tests.transport.http_scene import Recorder
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
