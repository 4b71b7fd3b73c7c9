"""Errors as replies."""

from __future__ import annotations

import json

import pytest

from edge_serve.errors import BY_TRITON_CODE, EdgeServeError, Unavailable
from edge_serve.protocol.inference.compression import UnsupportedEncoding
from edge_serve.transport.http.replies import MethodNotAllowed, error_body, refuse
from tests.transport.v2_scene import JSON, PLAIN, FakeExchange, head_of


@pytest.mark.parametrize("text", ["", 'say "hi"\n', "ä世", "half a pair \ud800 and bytes \udcff"])
def test_any_text_is_a_json_object(text: str) -> None:
    assert json.loads(error_body(text)) == {"error": text}


@pytest.mark.parametrize("kind", BY_TRITON_CODE.values())
def test_a_reply_has_the_errors_status_and_text(kind: type[EdgeServeError]) -> None:
    exchange = FakeExchange(head_of("GET", "/"))
    refuse(exchange, kind("why"), PLAIN)

    assert (exchange.status, exchange.error, exchange.content_type) == (kind.http_status, "why", PLAIN)
    assert exchange.headers == {}


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (UnsupportedEncoding(), {"Accept-Encoding": "gzip, deflate"}),
        (MethodNotAllowed(("GET", "POST")), {"Allow": "GET, POST"}),
        (Unavailable("later"), {}),
    ],
)
def test_some_errors_say_what_would_be_accepted(error: EdgeServeError, headers: dict[str, str]) -> None:
    exchange = FakeExchange(head_of("GET", "/"))
    refuse(exchange, error, JSON)

    assert exchange.headers == headers
