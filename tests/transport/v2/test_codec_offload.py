"""The model version is held while a codec process works for a request, and the job is cancelled with the request."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge_serve.errors import Unavailable
from edge_serve.transport.v2.codec_offload import CodecTicket, run_for_client, run_in_codec
from tests.transport.v2_scene import SIGNATURE, FakeExchange, FakeServed, FakeTicket, head_of


class Scene:
    """A request of a client, and one job that ends when the test says so."""

    def __init__(self) -> None:
        self.served = FakeServed(SIGNATURE)
        self.exchange = FakeExchange(head_of("POST", "/"))
        self.job = FakeTicket()
        self.done: list[Callable[[str], None]] = []
        self.outcomes: list[str] = []

    def run(self, start: Callable[[Callable[[str], None]], CodecTicket]) -> None:
        """Run the job."""
        run_for_client(self.exchange, self.served, start, self.outcomes.append)

    def start(self, done: Callable[[str], None]) -> CodecTicket:
        """Start the job."""
        self.done.append(done)
        return self.job


def test_a_job_that_cannot_be_started_holds_nothing() -> None:
    served = FakeServed(SIGNATURE)

    def start(done: Callable[[int], None]) -> CodecTicket:
        raise Unavailable("no descriptors")

    with pytest.raises(Unavailable):
        run_in_codec(served, start, lambda outcome: None)
    assert served.held == 0


def test_the_version_is_held_until_the_job_is_done() -> None:
    here = Scene()
    here.run(here.start)
    assert here.served.held == 1
    here.done[0]("request")

    assert (here.outcomes, here.served.held) == (["request"], 0)
    assert here.exchange.on_cancelled is None


def test_a_client_that_disconnects_cancels_the_job() -> None:
    here = Scene()
    here.run(here.start)
    assert here.exchange.on_cancelled is not None
    here.exchange.on_cancelled()

    assert here.job.cancelled == 1
    assert here.served.held == 1, "the process may still use the version's memory"


def test_a_job_that_is_done_at_once_leaves_nothing_to_cancel() -> None:
    here = Scene()

    def start(done: Callable[[str], None]) -> CodecTicket:
        done("refused")
        return here.job

    here.run(start)
    assert (here.outcomes, here.served.held) == (["refused"], 0)
    assert here.exchange.on_cancelled is None
