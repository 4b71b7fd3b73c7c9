"""`generate` and `generate_stream`: which status an answer has, and what becomes of a client that does not read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from edge_serve.errors import InvalidArgument, NotFound, Unavailable
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.tensors import DataType, InferTensor, join_bytes
from edge_serve.transport.sockets import backlog
from edge_serve.transport.v2.generate import EVENT_STREAM, EventStream, Single, check_encoding
from tests.transport.v2_scene import JSON, Door, FakeExchange, FakeLease, FakeTicket, head_of

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)
NULL = InferResponse("m", "1", null=True)


class Wire(FakeExchange):
    """An exchange that streams; its client stops reading after `window` writes until the test resumes it."""

    def __init__(self, window: int = 1 << 30) -> None:
        super().__init__(head_of("POST", "/v2/models/m/generate_stream"))
        self.window = window
        self.chunks: list[bytes] = []
        self.ended = 0

    def start(self, status: int, *, content_type: str, headers: Any = ()) -> None:
        assert self.status == 0, "answered twice"
        self.status, self.content_type = status, content_type

    def write(self, data: Any) -> bool:
        assert self.status, "write before start"
        assert not self.ended, "write after end"
        self.chunks.append(bytes(data))
        self.window -= 1
        return self.window > 0

    def end(self) -> None:
        self.ended += 1
        assert self.ended == 1

    def read(self, window: int = 1 << 30) -> None:
        """The client reads what is there and takes `window` writes more."""
        self.window = window
        assert self.on_drained is not None
        self.on_drained()

    def leave(self) -> None:
        assert self.on_cancelled is not None
        self.on_cancelled()

    @property
    def events(self) -> list[Any]:
        texts = b"".join(self.chunks).split(b"\n\n")
        assert texts.pop() == b""
        assert all(text.startswith(b"data: ") for text in texts)
        return [json.loads(text[6:]) for text in texts]


def response(text: str, *, final: bool = False, lease: FakeLease | None = None) -> InferResponse:
    data = join_bytes([text])
    return InferResponse("m", "1", outputs=[InferTensor("out", DataType.BYTES, (1,), data)], final=final, lease=lease)


def event(text: str) -> dict[str, str]:
    return {"model_name": "m", "model_version": "1", "out": text}


def failure(text: str = "generation failed", *, final: bool = True) -> InferResponse:
    return InferResponse("m", "1", error=Unavailable(text), final=final)


def single() -> tuple[Wire, Single, FakeTicket]:
    wire, ticket = Wire(), FakeTicket()
    answer = Single(wire)
    answer.accept(ticket)
    return wire, answer, ticket


def stream(window: int = 1 << 30, *, can_hold: bool = True) -> tuple[Wire, EventStream, FakeTicket]:
    wire, ticket = Wire(window), FakeTicket(can_hold=can_hold)
    answer = EventStream(wire)
    answer.accept(ticket)
    return wire, answer, ticket


def tell(answer: Single | EventStream, *responses: InferResponse) -> None:
    for one in responses:
        answer.on_response(one)


# ---- generate -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [["a"], ["a", None], [None, "a"]])
def test_one_response_is_the_reply(texts: list[str | None]) -> None:
    wire, answer, ticket = single()
    for number, text in enumerate(texts, 1):
        final = number == len(texts)
        empty = InferResponse("m", "1", null=True, final=final)
        answer.on_response(empty if text is None else response(text, final=final))

    assert (wire.status, wire.content_type, wire.json) == (200, JSON, event("a"))
    assert ticket.cancelled == 0
    assert wire.on_cancelled is None


def test_the_reply_waits_for_the_news_that_no_other_follows() -> None:
    wire, answer, _ = single()
    tell(answer, response("a"))

    assert wire.status == 0


def test_no_response_is_an_error() -> None:
    wire, answer, _ = single()
    tell(answer, InferResponse("m", "1", null=True))

    assert (wire.status, wire.error) == (500, NOT_ONE)


def test_a_second_response_is_an_error_at_once_and_stops_the_model() -> None:
    wire, answer, ticket = single()
    tell(answer, response("a"), response("b"))

    assert (wire.status, wire.error, ticket.cancelled) == (500, NOT_ONE, 1)
    tell(answer, response("c"), failure())
    assert ticket.cancelled == 1


def test_an_error_of_the_model_is_400_for_any_code() -> None:
    wire, answer, ticket = single()
    tell(answer, failure())

    assert (wire.status, wire.error, ticket.cancelled) == (400, "generation failed", 0)


def test_an_error_that_is_not_the_last_stops_the_model() -> None:
    wire, answer, ticket = single()
    tell(answer, failure(final=False), response("late", final=True))

    assert (wire.status, ticket.cancelled) == (400, 1)


def test_a_response_that_cannot_be_written_is_an_error() -> None:
    wire, answer, _ = single()
    tell(answer, InferResponse("m", "1", outputs=[InferTensor("out", DataType.FP16, (1,), bytes(2))]))

    assert wire.status == 400
    assert "sending FP16 data via JSON is not supported" in wire.error


def test_an_internal_error_is_sent_without_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    wire, answer, _ = single()
    tell(answer, InferResponse("m", "1", parameters={"x": object()}))  # type: ignore[dict-item]  # what must not be

    assert (wire.status, wire.error) == (400, "the server failed to encode the response, its log says why")
    assert "encoding a response of model" in caplog.text


# ---- generate_stream ----------------------------------------------------------------------------------------------


def test_responses_are_events_as_they_come() -> None:
    wire, answer, ticket = stream()
    tell(answer, response("a"))
    assert (wire.status, wire.content_type, wire.events, wire.ended) == (200, EVENT_STREAM, [event("a")], 0)
    tell(answer, response("b", final=True))

    assert (wire.events, wire.ended, ticket.cancelled) == ([event("a"), event("b")], 1, 0)
    assert wire.on_cancelled is None


def test_a_stream_without_responses_is_empty() -> None:
    wire, answer, _ = stream()
    tell(answer, NULL)

    assert (wire.status, wire.chunks, wire.ended) == (200, [], 1)


def test_the_first_response_decides_the_status() -> None:
    wire, answer, _ = stream()
    tell(answer, failure())
    assert (wire.status, wire.content_type, wire.events) == (400, EVENT_STREAM, [{"error": "generation failed"}])

    wire, answer, _ = stream()
    tell(answer, response("a"), failure())
    assert (wire.status, wire.events, wire.ended) == (200, [event("a"), {"error": "generation failed"}], 1)


def test_events_wait_for_a_client_that_does_not_read() -> None:
    wire, answer, ticket = stream(window=2)
    tell(answer, *map(response, "abcd"), NULL)
    assert (wire.events, wire.ended) == ([event("a"), event("b")], 0)

    wire.read(1)
    assert (wire.events[2:], wire.ended) == ([event("c")], 0)
    wire.read()
    assert (wire.events[3:], wire.ended) == ([event("d")], 1)
    assert ticket.cancelled == 0


def test_the_end_waits_while_the_last_event_is_unread() -> None:
    wire, answer, _ = stream(window=1)
    tell(answer, response("a"), response("b", final=True))
    wire.read(1)
    assert (len(wire.events), wire.ended) == (2, 0)

    wire.read()
    assert wire.ended == 1


def test_a_client_that_reads_again_gets_later_events_at_once() -> None:
    wire, answer, _ = stream(window=1)
    tell(answer, response("a"), response("b"))
    wire.read()
    tell(answer, response("c"))

    assert wire.events == [event("a"), event("b"), event("c")]


#: what a waiting event of one letter counts
EVENT = len(b"data: ") + len(b'{"model_name":"m","model_version":"1","out":"b"}') + 2 + backlog._EVENT_BYTES


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is held from its third waiting event on, goes on with the last one, and has at most five without."""
    monkeypatch.setattr(backlog, "PAUSE_ABOVE", 2 * EVENT)
    monkeypatch.setattr(backlog, "RESUME_BELOW", EVENT)
    monkeypatch.setattr(backlog, "MAX_UNREAD", 4 * EVENT)


@pytest.mark.usefixtures("small")
def test_the_sender_of_a_slow_clients_stream_waits_and_nothing_is_lost() -> None:
    wire, answer, ticket = stream(window=1)
    tell(answer, *map(response, "abc"))
    assert ticket.held == []
    tell(answer, *map(response, "defgh"))  # those on their way still come, however many
    assert ticket.held == [True]

    wire.read(5)
    assert ticket.held == [True]
    wire.read(1)
    assert ticket.held == [True, False]
    wire.read()
    tell(answer, response("i", final=True))

    assert wire.events == [event(letter) for letter in "abcdefghi"]
    assert (wire.ended, ticket.held, ticket.cancelled) == (1, [True, False], 0)


@pytest.mark.usefixtures("small")
def test_the_last_response_pauses_no_stream() -> None:
    _, answer, ticket = stream(window=1)
    tell(answer, *map(response, "abc"), response("d", final=True))

    assert ticket.held == []


@pytest.mark.usefixtures("small")
def test_a_client_that_leaves_while_the_sender_waits_cancels() -> None:
    wire, answer, ticket = stream(window=1)
    tell(answer, *map(response, "abcd"))
    wire.leave()
    tell(answer, *map(response, "efgh"))

    assert (ticket.held, ticket.cancelled) == ([True], 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("reason", ["nobody can be held", "an earlier request is unanswered"])
def test_without_pauses_a_client_that_leaves_too_much_unread_is_disconnected(reason: str) -> None:
    wire, answer, ticket = stream(window=1, can_hold=reason != "nobody can be held")
    wire.behind = reason == "an earlier request is unanswered"
    tell(answer, *map(response, "abcde"))
    assert ticket.cancelled == 0
    tell(answer, response("f"))
    assert ticket.cancelled == 1
    lease = FakeLease()
    tell(answer, response("g", lease=lease, final=True))  # what the model has sent before it knew
    assert lease.released == 1

    wire.read()

    assert wire.events[:6] == [event(letter) for letter in "abcdef"]
    text = f"the stream was ended because the client left more than {4 * EVENT} bytes of it unread"
    assert wire.events[6:] == [{"error": text}]
    assert (wire.ended, ticket.held) == (1, [])


@pytest.mark.usefixtures("small")
def test_a_stream_whose_turn_has_come_is_held() -> None:
    wire, answer, ticket = stream(window=1)
    wire.behind = True
    tell(answer, *map(response, "abcd"))
    assert ticket.held == []

    wire.behind = False
    tell(answer, response("e"))
    assert ticket.held == [True]


@pytest.mark.usefixtures("small")
def test_read_events_do_not_count_as_unread() -> None:
    wire, answer, ticket = stream(window=1, can_hold=False)
    tell(answer, response("x"))
    for _ in range(20):
        tell(answer, response("y"), response("z"))
        wire.read(2)

    assert ticket.cancelled == 0
    assert len(wire.events) == 41


# ---- both ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [single, stream])
def test_a_client_that_leaves_cancels(make: Callable[[], tuple[Wire, Single | EventStream, FakeTicket]]) -> None:
    wire, answer, ticket = make()
    wire.leave()
    assert ticket.cancelled == 1
    lease = FakeLease()
    tell(answer, response("a", lease=lease, final=True))

    assert (wire.status, wire.chunks, lease.released) == (0, [], 1)


@pytest.mark.parametrize("kind", [Single, EventStream])
def test_a_client_that_left_before_the_request_was_accepted_cancels(kind: type[Single | EventStream]) -> None:
    wire, ticket = Wire(), FakeTicket()
    answer = kind(wire)
    wire.leave()
    answer.accept(ticket)

    assert ticket.cancelled == 1


@pytest.mark.parametrize("make", [single, stream])
def test_memory_of_responses_is_given_back_once(
    make: Callable[[], tuple[Wire, Single | EventStream, FakeTicket]],
) -> None:
    _, answer, _ = make()
    leases = [FakeLease() for _ in range(2)]
    tell(answer, response("a", lease=leases[0]), response("b", lease=leases[1], final=True))

    assert [lease.released for lease in leases] == [1, 1]


@pytest.mark.parametrize("operation", ["generate", "generate_stream"])
def test_requests_refused_before_the_model_get_the_status_of_the_error(operation: str) -> None:
    door = Door()
    door.service.error = NotFound("gone")

    exchange = door.call("POST", f"/v2/models/m/{operation}", b'{"X":[1,2]}')

    assert (exchange.status, exchange.content_type, exchange.error) == (404, JSON, "gone")


@pytest.mark.parametrize("operation", ["generate", "generate_stream"])
def test_only_plain_bodies_are_read(operation: str) -> None:
    exchange = Door().call("POST", f"/v2/models/m/{operation}", b'{"X":1}', {"Content-Encoding": "gzip"})

    assert (exchange.status, exchange.error) == (400, "Unsupported content-encoding, only 'identity' is supported.")


@pytest.mark.parametrize("encoding", [None, "", "identity", " Identity "])
def test_identity_is_no_compression(encoding: str | None) -> None:
    check_encoding(encoding)


def test_any_other_encoding_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        check_encoding("identity, gzip")


def test_generate_through_the_door() -> None:
    exchange = Door().call("POST", "/v2/models/m/generate", b'{"X":[1,2],"id":"r"}')

    assert (exchange.status, exchange.json["Y"], exchange.json["id"]) == (200, [1, 2], "r")
