"""What counts as the first response to a request, and when."""

from __future__ import annotations

from collections.abc import Hashable

from edge_serve.errors import EdgeServeError, Internal, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.models.run.first_response import FirstResponseTimer
from edge_serve.models.run.runner import ANSWERED, OnResponse, Submitter, Ticket
from edge_serve.models.run.statistics import new_statistics


class Answers(Submitter):
    """A clock, and a runner that answers at once, or when the test says so."""

    def __init__(self, at_once: InferResponse | None = None) -> None:
        self.ms = 0
        self.at_once = at_once
        self.on_response: OnResponse

    def now_ns(self) -> int:
        return self.ms * 1_000_000 + 999_999

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Ticket:
        self.on_response = on_response
        if self.at_once is not None:
            on_response(self.at_once)
        return ANSWERED


def response(error: EdgeServeError | None = None, *, final: bool = True, null: bool = False) -> InferResponse:
    return InferResponse("m", "1", "", [], {}, error, final, null=null)


def observed(*responses: InferResponse, at_once: InferResponse | None = None) -> tuple[int, int]:
    """The number and the sum of milliseconds after responses that come 7 ms apart."""
    runner, statistics, got = Answers(at_once), new_statistics(histograms=True), list[InferResponse]()
    timer = FirstResponseTimer(statistics, runner)
    assert timer.submit(runner, InferRequest("m"), 1, None, got.append) is ANSWERED
    for one in responses:
        runner.ms += 7
        runner.on_response(one)
    assert got == [one for one in (at_once, *responses) if one is not None]
    assert statistics.first_response is not None
    return sum(statistics.first_response.counts), statistics.first_response.sum_ms


def test_only_the_first_response_counts_and_an_empty_end_is_none() -> None:
    assert observed(response()) == (1, 7)
    assert observed(response(final=False), response(final=False), response(null=True)) == (1, 7)
    assert observed(response(null=True)) == (0, 0)


def test_an_error_counts_unless_the_request_was_refused_at_once() -> None:
    assert observed(response(Internal("failed"))) == (1, 7)
    assert observed(at_once=response(Unavailable("queue full"))) == (0, 0)
    assert observed(at_once=response()) == (1, 0), "from the response cache"
