"""Responses to `generate` that are written elsewhere: the order stays, memory comes back, a client may leave."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable

import pytest

from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.protocol.v2 import generate
from edge_serve.transport.v2.generate import EventStream, GenerateAnswer, Single
from tests.transport.v2.test_generate import Wire, event, failure, response
from tests.transport.v2_scene import FakeLease, FakeTicket

LONG = 1_000_000


class Job:
    """One response that is being written."""

    def __init__(self, long: InferResponse, then: Callable[[bytes | EdgeServeError], None]) -> None:
        self.long = long
        self.then = then
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1

    def finish(self, error: EdgeServeError | None = None) -> None:
        if self.long.lease is not None:
            self.long.lease.release()
        self.then(error or generate.write(self.long))


class Elsewhere:
    """Keeps the responses that are to be written, until the test says so; or writes them `at_once`."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.at_once = False

    def __call__(self, long: InferResponse, then: Callable[[bytes | EdgeServeError], None]) -> Job | None:
        job = Job(long, then)
        self.jobs.append(job)
        if self.at_once:
            job.finish()
            return None
        return job


def long_response(value: int, *, final: bool = False, lease: FakeLease | None = None) -> InferResponse:
    tensor = InferTensor("out", DataType.UINT8, (LONG,), bytes([value]) * LONG)
    return InferResponse("m", "1", outputs=[tensor], final=final, lease=lease)


def scene(kind: type[GenerateAnswer], *, can_hold: bool = True) -> tuple[Wire, GenerateAnswer, FakeTicket, Elsewhere]:
    wire, ticket, elsewhere = Wire(), FakeTicket(can_hold=can_hold), Elsewhere()
    answer = kind(wire, elsewhere)
    answer.accept(ticket)
    return wire, answer, ticket, elsewhere


def told(wire: Wire) -> list[object]:
    """Each event: the text, the value of a long response, or the error."""
    found: list[object] = []
    for one in wire.events:
        out = one.get("out")
        found.append(out[0] if isinstance(out, list) else out or one["error"])
    return found


def test_a_long_response_is_the_reply_once_it_is_written() -> None:
    wire, answer, _, elsewhere = scene(Single)
    answer.on_response(long_response(3, final=True))
    assert wire.status == 0
    elsewhere.jobs[0].finish()

    assert (wire.status, wire.json["out"][-1]) == (200, 3)


def test_outputs_that_cannot_be_written_are_an_error() -> None:
    wire, answer, _, elsewhere = scene(Single)
    answer.on_response(long_response(3, final=True))
    elsewhere.jobs[0].finish(Internal("no memory"))

    assert (wire.status, wire.error) == (400, "no memory")


@pytest.mark.parametrize("at_once", [False, True])
def test_events_keep_their_order(at_once: bool) -> None:
    wire, answer, _, elsewhere = scene(EventStream)
    elsewhere.at_once = at_once
    for one in (response("a"), long_response(1), response("b"), long_response(2), response("c"), failure()):
        answer.on_response(one)
    if not at_once:
        assert told(wire) == ["a"]
        assert len(elsewhere.jobs) == 1, "one at a time"
        elsewhere.jobs[0].finish()
        assert told(wire) == ["a", 1, "b"]
        assert wire.ended == 0
        elsewhere.jobs[1].finish()

    assert told(wire) == ["a", 1, "b", 2, "c", "generation failed"]
    assert wire.ended == 1


def test_many_that_are_written_at_once_need_no_stack() -> None:
    wire, answer, _, elsewhere = scene(EventStream)
    answer.on_response(long_response(0))
    for value in range(1, 40):
        answer.on_response(long_response(value))
    elsewhere.at_once = True
    depth: list[int] = []

    def write(data: object) -> bool:
        depth.append(len(inspect.stack(0)))
        return True

    wire.write = write  # type: ignore[method-assign]  # counts the frames below it
    elsewhere.jobs[0].finish()

    assert len(depth) == 40
    assert max(depth) == depth[2]


@pytest.mark.parametrize("kind", [Single, EventStream])
def test_a_client_that_leaves_cancels_what_is_being_written_and_frees_what_waits(kind: type[GenerateAnswer]) -> None:
    wire, answer, ticket, elsewhere = scene(kind)
    leases = [FakeLease() for _ in range(3)]
    for value, lease in enumerate(leases):
        answer.on_response(long_response(value, lease=lease, final=value == 2))
    wire.leave()
    assert (ticket.cancelled, elsewhere.jobs[0].cancelled) == (1, 1)
    elsewhere.jobs[0].finish(Internal("cancelled"))

    assert [lease.released for lease in leases] == [1, 1, 1]
    assert (len(elsewhere.jobs), wire.chunks) == (1, [])


def test_the_sender_is_held_while_much_waits_to_be_written() -> None:
    _, answer, ticket, elsewhere = scene(EventStream)
    for value in range(2):
        answer.on_response(long_response(value))
    assert ticket.held == [True]
    elsewhere.jobs[0].finish()
    elsewhere.jobs[1].finish()
    answer.on_response(response("z", final=True))

    assert ticket.held == [True, False]


def test_short_responses_are_written_here() -> None:
    wire, answer, _, elsewhere = scene(EventStream)
    answer.on_response(response("a", final=True))

    assert wire.events == [event("a")]
    assert elsewhere.jobs == []
    assert json.loads(wire.chunks[0][6:]) == event("a")
