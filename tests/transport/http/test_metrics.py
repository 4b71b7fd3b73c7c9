"""Answers of the metrics port, as recorded from Triton (conformance case paths_metrics_port)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from edge_serve.messages.infer import Lease
from edge_serve.messages.tensors import Buffer
from edge_serve.messages.trace import Arrival
from edge_serve.protocol.http1.head import HeadParser, MessageLimits
from edge_serve.transport.door.exchange import Application, Exchange
from edge_serve.transport.http.metrics import MetricsApplication
from tests.transport.metrics_scene import answered, page_of


class RecordingExchange:
    """Keeps its one answer."""

    body: Buffer = b""
    lease: Lease | None = None
    on_cancelled: Callable[[], None] | None = None
    on_drained: Callable[[], None] | None = None
    arrival: Arrival | None = None
    begun_ns = 0
    behind = False
    extra: Sequence[tuple[str, str]] = ()

    def __init__(self, method: str, target: str) -> None:
        self.head = HeadParser(MessageLimits()).parse(f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        self.answers: list[tuple[int, bytes, str | None]] = []

    def reply(
        self, status: int, buffers: Sequence[Buffer] = (), *, content_type: str | None = "application/json", **_: Any
    ) -> None:
        self.answers.append((status, b"".join(buffers), content_type))

    def start(self, status: int, *, content_type: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        raise NotImplementedError

    def write(self, data: Buffer) -> bool:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


def ask(application: Application, method: str, target: str) -> tuple[int, bytes, str | None]:
    exchange = RecordingExchange(method, target)
    as_exchange: Exchange = exchange

    answered(application, as_exchange)
    (answer,) = exchange.answers
    return answer


TEXT = "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "target", "answer"),
    [
        ("GET", "/metrics", (200, b"page\n", TEXT)),
        ("GET", "/metrics/", (200, b"page\n", TEXT)),
        ("GET", "/metrics?x=1", (200, b"page\n", TEXT)),
        ("GET", "/metrics/x", (200, b"", TEXT)),
        ("GET", "/", (200, b"", TEXT)),
        ("GET", "/v2/health/live", (200, b"", TEXT)),
        ("POST", "/metrics", (405, b'{"error":"Method Not Allowed"}', "text/plain")),
        ("HEAD", "/metrics", (405, b'{"error":"Method Not Allowed"}', "text/plain")),
    ],
)
def test_answers(method: str, target: str, answer: tuple[int, bytes, str]) -> None:
    assert ask(MetricsApplication(page_of(b"page\n")), method, target) == answer


def test_each_scrape_is_rendered_anew() -> None:
    pages = iter((b"1", b"2"))

    async def render() -> Sequence[bytes]:
        return [next(pages)]

    application = MetricsApplication(render)
    assert [ask(application, "GET", "/metrics")[1] for _ in range(2)] == [b"1", b"2"]


def test_a_page_that_fails_is_a_clean_500(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> Sequence[bytes]:
        raise ZeroDivisionError("secret detail")

    status, body, _ = ask(MetricsApplication(broken), "GET", "/metrics")
    assert status == 500
    assert b"secret" not in body
    assert "secret detail" in caplog.text
