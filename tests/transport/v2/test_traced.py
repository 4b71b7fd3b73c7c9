"""Traces of requests at the HTTP door."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edge_serve.messages.peer import Peer
from edge_serve.messages.settings import TraceSettings
from edge_serve.messages.tensors import Buffer
from edge_serve.messages.trace import Trace
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.transport.http.exchange import HttpExchange
from edge_serve.transport.v2.application import V2Application
from edge_serve.transport.v2.head import V2Settings
from edge_serve.transport.v2.infer import start_trace
from tests.observe.tracing.recorder import Collected, Steps
from tests.stories import played
from tests.transport.http_scene import Recorder, scene, until
from tests.transport.traced_service import TracedService
from tests.transport.v2_scene import FakeExchange, FixedClock, head_of

BODY = b'{"inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [7]}]}'
STARTED = ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START"]
ANSWERED = ["INFER_RESPONSE_COMPLETE", "REQUEST_END"]
SENT = ["HTTP_SEND_START", "HTTP_SEND_END"]


class Door:
    """An application that traces everything."""

    def __init__(self, tmp_path: Path) -> None:
        self.tracing = Tracing(TraceSettings(("TIMESTAMPS",), 1, file=str(tmp_path / "t")), Steps())
        self.service = TracedService(self.tracing)
        self.application = V2Application(
            self.service, V2Settings(), config_to_json=lambda config: config, clock=FixedClock()
        )
        self.application.trace(self.tracing)

    def post(self, path: str, body: bytes, application: V2Application | None = None) -> FakeExchange:
        exchange = FakeExchange(head_of("POST", path, {}, len(body)), body)
        (application or self.application).handle(exchange)
        return exchange

    @property
    def marks(self) -> list[str]:
        """Of the newest trace."""
        return [name for name, _ in self.service.traces[-1].timestamps or ()]

    @property
    def complete(self) -> bool:
        """The newest trace is."""
        return self.service.traces[-1].closed


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    yield made
    made.tracing.close()  # ends the thread that writes files


def test_a_trace_ends_when_the_kernel_has_the_answer(door: Door) -> None:
    exchange = door.post("/v2/models/m/infer", BODY)
    assert exchange.status == 200
    assert (door.marks, door.complete) == ([*STARTED, *ANSWERED, SENT[0]], False)
    assert exchange.on_sent is not None
    exchange.on_sent()

    assert (door.marks, door.complete) == ([*STARTED, *ANSWERED, *SENT], True)


def test_generate_is_traced_too(door: Door) -> None:
    exchange = door.post("/v2/models/m/generate", b'{"X": 7}')
    assert exchange.status == 200
    assert exchange.on_sent is not None
    exchange.on_sent()

    assert (door.marks, door.complete) == ([*STARTED, *ANSWERED, *SENT], True)


def test_a_client_that_disconnects_ends_the_trace_with_the_last_response(door: Door) -> None:
    door.service.later = True
    exchange = door.post("/v2/models/m/infer", BODY)
    assert exchange.on_cancelled is not None
    assert exchange.arrival is not None
    exchange.arrival.release()  # as `HttpExchange.cancel`
    exchange.on_cancelled()
    assert door.service.ticket.cancelled
    assert not door.complete
    door.service.waiting.pop()()

    assert (door.marks, door.complete) == ([*STARTED, "REQUEST_END"], True)


def test_requests_refused_before_their_model_leave_no_trace(door: Door) -> None:
    assert door.post("/v2/models/m/infer", b"{}").status >= 400
    assert door.post("/v2/models/m/generate", b"[]").status >= 400

    assert door.service.traces == []


def test_every_client_has_it_and_none_when_it_ends(door: Door) -> None:
    own = door.application.for_peer(Peer(local=True))
    door.application.trace(None)
    plain = door.post("/v2/models/m/infer", BODY, own)
    assert plain.on_sent is None
    door.application.trace(door.tracing)
    exchange = door.post("/v2/models/m/infer", BODY, own)

    assert exchange.on_sent is not None


# ---- the exchange -------------------------------------------------------------------------------------------------


class Sending:
    """A connection on which everything waits."""

    begun_ns = 0

    def __init__(self) -> None:
        self.content = b""

    def is_last(self, exchange: HttpExchange) -> bool:
        return False

    def count(self, status: int) -> None: ...

    def send(self, exchange: HttpExchange, parts: Sequence[Buffer], size: int, sent: object) -> bool:
        self.content += b"".join(parts)
        return False


def traced(connection: Any) -> tuple[HttpExchange, Trace]:
    exchange = HttpExchange(connection, head_of("POST", "/", {}, 0), b"", None)
    start_trace(exchange, 5)
    assert exchange.arrival is not None
    trace = Trace(1, Collected(), timestamps=True, tensors=False)
    exchange.arrival.traced(trace)
    trace.release()
    return exchange, trace


def test_each_chunk_has_its_marks_and_the_end_ends_it() -> None:
    connection = Sending()
    exchange, trace = traced(connection)
    exchange.start(200, content_type="text/plain")
    assert not exchange.write(b"a")
    exchange.write(b"b")
    assert not trace.closed
    exchange.end()

    assert connection.content.endswith(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
    assert trace.closed
    assert trace.timestamps == [
        ("HTTP_RECV_START", 5),
        ("HTTP_RECV_END", 5),
        *zip(SENT * 2, range(1, 5), strict=True),
    ]


def test_a_client_that_disconnects_ends_it() -> None:
    exchange, trace = traced(Sending())
    exchange.start(200, content_type="text/plain")
    exchange.cancel()

    assert trace.closed


# ---- when a request began -----------------------------------------------------------------------------------------


class Noting(Recorder):
    """Remembers when each request began, as the exchange says."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []

    def handle(self, exchange: Any) -> None:
        assert isinstance(exchange, HttpExchange)
        self.begun.append(exchange.begun_ns)
        exchange.reply(200)


@played
async def test_a_request_begins_with_its_first_byte() -> None:
    application = Noting()
    async with scene(application) as here:
        client = await here.connect()
        client.get("/before")
        await client.reply()
        here.server.trace(True)
        client.send(b"GET / HTTP/1.1\r\n")
        (connection,) = here.server.connections
        await until(lambda: connection.begun_ns)
        here.clock.seconds += 5
        client.send(b"Host: t\r\n\r\nGET / HTTP/1.1\r\nHo")
        await client.reply()
        await until(lambda: connection.begun_ns == 1_005_000_000_000)
        here.clock.seconds += 5
        client.send(b"st: t\r\n\r\n")
        await client.reply()
        here.server.trace(False)
        client.get("/after")
        await client.reply()
        assert application.begun == [0, 1_000_000_000_000, 1_005_000_000_000, 0]
